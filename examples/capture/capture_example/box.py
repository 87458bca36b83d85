"""`todoku run --app capture_example.box:box`."""

from __future__ import annotations

import os

from capture_example.application import make_box
from capture_example.settings import read_settings

box = make_box(read_settings(os.environ))

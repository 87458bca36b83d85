"""The App by itself, for todoku's own commands: `todoku run --app projections_example.box:box`."""

from __future__ import annotations

import os

from projections_example.application import Application
from projections_example.settings import read_settings

box = Application(read_settings(os.environ)).box

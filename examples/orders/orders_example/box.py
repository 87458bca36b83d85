"""The App by itself, for todoku's own commands: `todoku run --app orders_example.box:box`."""

from __future__ import annotations

import os

from orders_example.application import Application
from orders_example.settings import read_settings

box = Application(read_settings(os.environ)).box

"""The App by itself, for todoku's own commands: `todoku run --app users_example.box:box` supervises workers."""

from __future__ import annotations

import os

from users_example.application import Application
from users_example.settings import read_settings

box = Application(read_settings(os.environ)).box

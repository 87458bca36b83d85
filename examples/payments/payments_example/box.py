"""The App by itself, for todoku's own commands: `todoku run --app payments_example.box:box`."""

from __future__ import annotations

import os

from payments_example.application import Payments
from payments_example.settings import read_settings
from payments_example.watching import watch

watch(os.environ)
box = Payments(read_settings(os.environ)).box

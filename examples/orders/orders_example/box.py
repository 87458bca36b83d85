"""The App by itself, for todoku's own commands: `todoku run --app orders_example.box:box`."""

from __future__ import annotations

import os

from orders_example.application import Application
from orders_example.settings import DEFAULT_CONCURRENCY, read_settings

os.environ["OUTBOX_CONCURRENCY"] = os.environ.get("OUTBOX_CONCURRENCY") or str(DEFAULT_CONCURRENCY)  # the App reads it

box = Application(read_settings(os.environ)).box

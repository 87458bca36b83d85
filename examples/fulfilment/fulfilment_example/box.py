"""The App by itself, for todoku's own commands: `todoku run --app fulfilment_example.box:box`."""

from __future__ import annotations

import os

from fulfilment_example.shop import Shop

box = Shop(os.environ.get("DATABASE_URL", "sqlite:///fulfilment.db")).box

"""The shop example at work: a shop, its consumer, and its program as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from shop_example.orders import Shop
from shop_example.points import Points

from tests.daemon.running import KEPT, PATIENCE

SHOP = Path(__file__).resolve().parents[2] / "examples" / "shop"
ADA = UUID("11111111-1111-4111-8111-111111111111")


@contextmanager
def shop_at(url: str, to: Any) -> Iterator[Shop]:
    """An open shop."""
    shop = Shop(url, to)
    try:
        shop.prepare()
        yield shop
    finally:
        shop.close()


@contextmanager
def points_at(url: str) -> Iterator[Points]:
    """An open consumer."""
    points = Points(url)
    try:
        points.prepare()
        yield points
    finally:
        points.close()


def environ(**more: str) -> dict[str, str]:
    """What a process of the example needs."""
    kept = {name: os.environ[name] for name in ("HOME", *KEPT) if name in os.environ}
    return kept | {"PYTHONPATH": str(SHOP), "TODOKU_POLL_INTERVAL_SEC": "0.05"} | more


@contextmanager
def open_shop(home: Path, **more: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m shop_example`, and nothing of it stays."""
    process = subprocess.Popen(
        [sys.executable, "-m", "shop_example"], cwd=home, env=environ(**more), text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE)

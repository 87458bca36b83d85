"""The capture example at work: its program as a process, and its shop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.running import KEPT, PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "capture"
IMPORTABLE = f"{ROOT}:{ROOT / 'src'}:{EXAMPLE}"


def environ(**more: str) -> dict[str, str]:
    """What its processes have."""
    kept = {name: os.environ[name] for name in ("HOME", *KEPT) if name in os.environ}
    return kept | {"PYTHONPATH": IMPORTABLE} | more


@contextmanager
def running_example(home: Path, **more: str) -> Iterator[str]:
    """`python -m capture_example`, greeting us; ended by Ctrl-C. Yields what it printed."""
    out, err = home / "out", home / "err"
    with out.open("wb") as said, err.open("wb") as complained:
        example = subprocess.Popen(
            [sys.executable, "-m", "capture_example"], cwd=home, stdin=subprocess.DEVNULL, stdout=said,
            stderr=complained, env=environ(**more),
        )  # fmt: skip
    try:
        until(lambda: b"Ctrl-C stops all" in out.read_bytes() or example.poll() is not None, "its greeting")
        assert example.poll() is None, out.read_text("utf-8") + err.read_text("utf-8")
        yield out.read_text("utf-8")
        example.send_signal(signal.SIGINT)
        assert example.wait(PATIENCE) == 0, err.read_text("utf-8")
    finally:
        if example.poll() is None:
            example.send_signal(signal.SIGTERM)  # so that it ends its own processes
            example.wait(PATIENCE)


def run_in(home: Path, *words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """`python -m …` beside it."""
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=home, env=environ(**more), capture_output=True, text=True, check=False,
        timeout=PATIENCE,
    )  # fmt: skip

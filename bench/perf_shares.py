"""Where the processor time of a PostgreSQL server goes, by `perf`: the functions that take most of it."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

T = TypeVar("T")
_MOST: Final = 12
_LINE: Final = re.compile(r"^\s*(?P<share>[\d.]+)%\s+\[(?P<where>.)\]\s+(?P<symbol>\S+)")


def shared(work: Callable[[], T]) -> tuple[str, T]:
    """Do the work; the largest shares in words, or why there are none, and what the work returns."""
    perf = shutil.which("perf")
    if perf is None:
        return "perf: not installed (Debian's package linux-perf has it), passed over", work()
    with tempfile.TemporaryDirectory() as folder:
        samples = Path(folder) / "samples"
        record = [perf, "record", "--quiet", "--all-cpus", "--event=cpu-clock", "--freq=997", f"--output={samples}"]
        recording = subprocess.Popen(record, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            result = work()
        finally:
            recording.send_signal(signal.SIGINT)
            said = recording.communicate()[1]
        report = subprocess.run(
            [perf, "report", f"--input={samples}", "--stdio", "--comm=postgres", "--percentage=relative",
             "--sort=symbol"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    found = [match for line in report.stdout.splitlines() if (match := _LINE.match(line))]
    if not found:
        return f"perf: found nothing ({(said or report.stderr).strip()[:200]}), passed over", result
    return "perf, shares of the server's time: " + ", ".join(map(_said, found[:_MOST])), result


def _said(found: re.Match[str]) -> str:
    kernel = " (kernel)" if found["where"] == "k" else ""
    return f"{found['symbol']}{kernel} {found['share']} %"

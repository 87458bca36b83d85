"""The App of todoku's own program, and of the daemon that it starts: `todoku run --app bench.peers.todoku_app:box`."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

from bench.peers.program import SAY_SEC, URL, Work
from todoku.app import App

NOTES = os.environ.get("BENCH_NOTES")
"""A directory where the worker processes of a daemon write what other programs print."""
RELEASED = "released"
"""While there is no such file in it, `held` does not end: its worker is about to be killed."""
HELD_SEC = 60.0


class Noted(Work):
    """Writes into files: the standard output of a daemon is the daemon's own."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def count(self) -> None:
        """The thread begins with the first job: a process that was forked has none of its parent's."""
        if not self.done:
            threading.Thread(target=self._write, daemon=True).start()
        super().count()

    def _write(self) -> None:
        said = 0
        while True:
            if self.done != said:
                said = self.done
                part = self._folder / f"part-{os.getpid()}"
                part.write_text(str(said))
                part.replace(self._folder / f"count-{os.getpid()}")
            time.sleep(SAY_SEC)


box = App(URL if "://" in URL else f"sqlite:///{URL}")
work = Work() if NOTES is None else Noted(Path(NOTES))


@box.job(queue="bench")
async def bench(n: int, text: str) -> None:  # noqa: ARG001 - part of the payload
    """A job that does nothing, or waits as long as it was asked to."""
    await work.handle(n)


@box.job(queue="bench", ordered=True)
async def in_turn(n: int, text: str) -> None:  # noqa: ARG001 - part of the payload
    """The same; of one key one after the other."""
    await work.handle(n)


@box.job(queue="bench")
async def held(n: int, text: str) -> None:  # noqa: ARG001 - part of the payload
    """A job that its first worker holds until it is killed."""
    assert NOTES is not None
    folder = Path(NOTES)
    with (folder / f"starts-{os.getpid()}").open("a", encoding="utf-8") as file:
        file.write(f"{n} {time.monotonic()}\n")
    if not (folder / RELEASED).exists():
        await asyncio.sleep(HELD_SEC)
    await work.handle(n)

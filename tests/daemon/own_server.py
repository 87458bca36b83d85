"""A PostgreSQL server of one test's own, to stop and start."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support import postgres
from tests.support.place import place


class OwnServer:
    """Stopped as a power failure stops it (`immediate`), and started again on the same data."""

    def __init__(self, home: Path, options: str) -> None:
        self._home = home
        self.url = postgres.start(home, options)

    def stop(self) -> None:
        postgres.stop_at_once(self._home)

    def start(self) -> None:
        postgres.start_again(self._home)


@contextmanager
def own_server(options: str = postgres.FOR_TESTS) -> Iterator[OwnServer]:
    home = Path(tempfile.mkdtemp(prefix="todoku-own-server-", dir=place()))
    try:
        server = OwnServer(home, options)
        yield server
        with suppress(RuntimeError):  # it may be stopped
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)

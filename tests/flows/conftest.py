"""An App on each database, and a clock that tests move."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

import todoku


@pytest.fixture
def box(url: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[todoku.App]:
    """An App. `@pytest.mark.settings(lease_sec="3")`: with other settings than the usual ones."""
    given = request.node.get_closest_marker("settings")
    for name, value in (given.kwargs if given else {}).items():
        monkeypatch.setenv(f"TODOKU_{name.upper()}", value)
    box = todoku.App(url)
    box.migrate()
    yield box
    box.store.database.set_clock(None)
    box.close()


class Clock:
    """The clock of the database, which stands still until a test moves it."""

    def __init__(self, box: todoku.App) -> None:
        self._box = box
        self._at = time.time()
        box.store.database.set_clock(self._at)

    def forward(self, seconds: float) -> None:
        self._at += seconds
        self._box.store.database.set_clock(self._at)


@pytest.fixture
def clock(box: todoku.App) -> Clock:
    return Clock(box)

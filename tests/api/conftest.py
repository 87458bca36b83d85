"""An App on each database, and a worker's part played by hand: claim, call, and see what the handler was given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import todoku
from tests.support.serving import Server, serving
from tests.support.world import World
from todoku.core.message import Claimed

Attempt = Callable[[], list[Any]]


@pytest.fixture
def box(world: World, url: str) -> Iterator[todoku.App]:
    """An App on the world's database, with the world's clock."""
    box = todoku.App(url)
    if world.backend == "sqlite":
        box._database._clock = world._now  # type: ignore[attr-defined]
    yield box
    box.close()


@pytest.fixture
def server(box: todoku.App) -> Iterator[Server]:
    """A real HTTP server over that App."""
    with serving(box) as server:
        yield server


@pytest.fixture
def claims(world: World) -> Callable[[], list[Claimed]]:
    """Take everything that is due."""
    worker = world.worker(lease=3600)
    return lambda: world.claim(worker)


@pytest.fixture
def attempt(box: todoku.App, claims: Callable[[], list[Claimed]]) -> Attempt:
    """Claim everything and call its handlers: what each returned, or the outcome it raised."""

    def attempted() -> list[Any]:
        found = []
        for claim in sorted(claims(), key=lambda claim: claim.id):
            call = box.registry[claim.destination].call
            assert call is not None
            try:
                found.append(call(todoku.Context(claim)))
            except (todoku.Abort, todoku.Retry, todoku.Snooze) as outcome:
                found.append(outcome)
        return found

    return attempted

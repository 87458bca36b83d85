"""MEND-6: who says how often a delivery is tried. Publisher and worker are two Apps with settings of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

import todoku
from tests.support.world import World
from todoku.engine.diagnostics.explanation import explain

Made = Callable[..., todoku.App]


class Said(NamedTuple):
    """Who named which number of attempts."""

    worker: int | None = None
    publisher: int | None = None
    declared: int | None = None
    called: int | None = None


@pytest.fixture
def app(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """Apps of processes with this OUTBOX_MAX_ATTEMPTS, or without one."""
    made: list[todoku.App] = []

    def app(attempts: int | None) -> todoku.App:
        if attempts is None:
            monkeypatch.delenv("OUTBOX_MAX_ATTEMPTS", raising=False)
        else:
            monkeypatch.setenv("OUTBOX_MAX_ATTEMPTS", str(attempts))
        made.append(todoku.App(url))
        return made[-1]

    yield app
    for one in made:
        one.close()


@pytest.mark.parametrize(
    ("said", "tried"),
    [
        (Said(), 6),
        (Said(worker=2), 2),
        (Said(worker=9), 9),
        (Said(worker=2, publisher=4), 4),
        (Said(worker=2, declared=3), 3),
        (Said(worker=2, declared=6), 6),
        (Said(worker=2, publisher=4, declared=3, called=5), 5),
    ],
    ids=str,
)
def test_MEND_6_the_first_that_names_a_number_decides(app: Made, world: World, said: Said, tried: int) -> None:
    """The call, the declaration, the publisher's setting, the worker's OUTBOX_MAX_ATTEMPTS, the default."""
    seen: list[int] = []
    options: dict[str, Any] = {} if said.declared is None else {"max_attempts": said.declared}
    mine, theirs = app(said.publisher), app(said.worker)

    @mine.job("fragile", **options)
    async def enqueued() -> None: ...

    @theirs.job("fragile", backoff=todoku.table(0), **options)
    async def fragile(ctx: todoku.Context) -> None:
        seen.append(ctx.max_attempts)
        raise RuntimeError("always")

    enqueued.using(max_attempts=said.called).enqueue()
    assert theirs.drain() == tried
    assert seen == [tried] * tried
    (row,) = world.deliveries()
    assert (row.status, row.attempts, row.max_attempts) == ("aborted", tried, tried)
    situation = world.store.situation(row.id)
    assert situation is not None
    assert explain(situation)[0].text.endswith(f", after {tried} of {tried} attempts")
    assert not any(mine.store.broken(history_ttl=1e9, ledger_ttl=1e9).values())


def test_MEND_6_the_workers_number_is_recorded_with_the_first_attempt_that_fails(app: Made, world: World) -> None:
    """A destination that is served elsewhere: its publisher knows nothing of it but its name."""
    mine, theirs = app(None), app(3)
    mine.route("order.*", to="warehouse")

    def refuse(_message: todoku.Outgoing) -> None:
        raise RuntimeError("no")

    theirs.route("order.*", to=refuse, name="warehouse")
    mine.publish("order.created", {}, tx=None)
    assert [row.max_attempts for row in world.deliveries()] == [6]
    assert theirs.drain() == 1
    (row,) = world.deliveries()
    assert (row.status, row.attempts, row.max_attempts) == ("failed", 1, 3)
    situation = world.store.situation(row.id)
    assert situation is not None
    (because,) = [because for because in explain(situation) if because.cause == "later"]
    assert because.text.startswith("attempt 2 of 3 is due in")
    assert "of the worker that tried it" in because.hint

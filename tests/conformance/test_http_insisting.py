"""No act is lost to a lock: workers change rows all the time, and publishers lock lanes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from uuid import UUID

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import SOMEBODY, World
from todoku.core.errors import DatabaseBusy
from todoku.engine.http import dead_letters, request_acts, requests
from todoku.engine.http.dead_letters import Selection
from todoku.engine.http.request_draft import Posting
from todoku.store.deliveries import Filter

pytestmark = pytest.mark.postgres


@pytest.fixture
def world(postgres_url: str) -> Iterator[World]:
    """PostgreSQL: nothing is passed over on SQLite, whose writers wait for each other."""
    world = World("postgres", postgres_url)
    yield world
    world.close()


@contextmanager
def locked(world: World, id: UUID) -> Iterator[Callable[[float], None]]:
    """The message is being changed by somebody; calling what is given lets it go."""
    with world.connect() as holding:
        holding.execute(
            "select from todoku_delivery where message_seq = (select seq from todoku_message where id = %s) for update",
            (id,),
        )
        yield lambda _seconds: holding.rollback()


def test_what_is_being_changed_is_cancelled_once_it_is_let_go(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """webhooks 2.1, 6: two were asked for, and both count, whatever a worker does to one of them meanwhile."""
    requesting = Requesting(world)
    ids = [requesting.post(), requesting.post()]
    with locked(world, ids[0]) as let_go:
        monkeypatch.setattr(request_acts, "time", SimpleNamespace(sleep=let_go))
        assert requests.cancel_many(requesting.outbox, Filter(message_ids=tuple(ids)), SOMEBODY).number == 2
    assert all(found.is_cancelled for id in ids if (found := requests.get(requesting.outbox, id)) is not None)


def test_what_somebody_keeps_locked_is_said_to_be_busy_and_not_to_have_ended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    requesting = Requesting(world)
    id = requesting.post()
    monkeypatch.setattr(request_acts, "time", SimpleNamespace(sleep=lambda _seconds: None))
    with locked(world, id), pytest.raises(DatabaseBusy, match="locked"):
        requests.cancel(requesting.outbox, id, SOMEBODY)
    assert requests.cancel(requesting.outbox, id, SOMEBODY) == 1


def test_a_dead_letter_of_a_lane_that_is_being_published_to_is_sent_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: who asks for it over HTTP is not told that there is no such letter, only because somebody enqueues."""
    requesting = Requesting(world)
    id = requesting.post(queue="orders", posting=Posting(fifo=True))
    requesting.run(answered(500, dead=True))
    ((lane,),) = world.sql("select lane from todoku_delivery")
    assert lane is not None
    (letter,) = dead_letters.find(requesting.outbox).items
    with world.connect() as publishing:
        publishing.execute("select pg_advisory_xact_lock(%s)", (lane,))
        monkeypatch.setattr(request_acts, "time", SimpleNamespace(sleep=lambda _seconds: publishing.rollback()))
        assert dead_letters.replay(requesting.outbox, Selection(dead_ids=(letter.id,)), SOMEBODY).message_ids == (id,)

"""Replay: dead letters run again, by id or by reason, signed and audited (I9)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import todoku
from tests.support.world import World, aborted
from todoku.core.message import Claimed

Claims = Callable[[], list[Claimed]]


def dead(box: todoku.App, world: World, claims: Claims, *reasons: str) -> list[todoku.Handle[None]]:
    """One dead letter for each reason."""

    @box.job
    def work(n: int) -> None: ...

    handles = [work.enqueue(n) for n in range(len(reasons))]
    for claim, reason in zip(sorted(claims(), key=lambda claim: claim.id), reasons, strict=True):
        world.settle([claim], aborted(reason))
    return handles


def test_dead_letters_are_replayed_by_id_and_by_reason(box: todoku.App, world: World, claims: Claims) -> None:
    one, two, three = dead(box, world, claims, "TIMEOUT", "TIMEOUT", "REFUSED")
    woken: list[int] = []
    box.outbox.wake = lambda: woken.append(1)
    assert box.replay(reason="TIMEOUT", by="ada", why="it is back", dry_run=True) == todoku.Replayed(2, 2, {})
    assert one.status() is todoku.Status.ABORTED
    assert woken == []
    assert box.replay(one.id, by="ada", why="looked at it") == todoku.Replayed(1, 1, {})
    assert box.replay(reason="TIMEOUT", by="ada", why="it is back").replayed == 1
    assert [handle.status() for handle in (one, two, three)] == ["pending", "pending", "aborted"]
    assert woken == [1, 1]
    (delivery,) = world.deliveries(message_id=one.id)
    assert (delivery.attempts, delivery.replay_count) == (0, 1)
    story = world.store.messages.story(one.id)
    assert story is not None
    assert [(row.by, row.action, row.why) for row in story.audit] == [("ada", "replay", "looked at it")]


def test_a_replay_is_limited(box: todoku.App, world: World, claims: Claims) -> None:
    handles = dead(box, world, claims, *["TIMEOUT"] * 5)
    assert box.replay(reason="TIMEOUT", by="ada", why="a few first", limit=2).replayed == 2
    assert sum(handle.status() == "pending" for handle in handles) == 2


def test_what_is_not_dead_is_passed_over_and_counted(box: todoku.App, world: World, claims: Claims) -> None:
    (one,) = dead(box, world, claims, "TIMEOUT")
    waiting = box.jobs["work"].enqueue(9)
    assert box.replay(one.id, waiting.id, by="ada", why="all") == todoku.Replayed(2, 1, {"is pending": 1})


def test_a_replay_says_what_who_and_why(box: todoku.App, world: World, claims: Claims) -> None:
    (one,) = dead(box, world, claims, "TIMEOUT")
    with pytest.raises(todoku.TodokuError, match="replay needs ids, or a filter"):
        box.replay(by="ada", why="all of it")
    for by, why in (("", "x"), ("ada", " ")):
        with pytest.raises(todoku.TodokuError, match="does not say who and why"):
            box.replay(one.id, by=by, why=why)
        with pytest.raises(todoku.TodokuError, match="does not say who and why"):
            one.cancel(by=by, why=why)
    assert one.status() is todoku.Status.ABORTED

"""Once and replay: what was accepted under the name of the job that does it is open again when that is (H15)."""

from __future__ import annotations

import pytest

import todoku


@pytest.fixture
def dead(box: todoku.App) -> int:
    """The number of a dead letter of the job `ship`, with a key that was accepted before, and has been told to fail."""
    numbers: list[int] = []

    @box.job(max_attempts=1)
    def ship(ctx: todoku.Context, order: int) -> None:
        numbers.append(ctx.delivery_id)
        raise todoku.Abort("NO_TRUCK")

    for scope in ("ship", "bill"):
        with box.once("o-7", scope=scope, tx=None, body=7) as done:
            done.store({"is": "accepted"}, status=202, state="accepted")
    ship.using(idempotency_key="o-7").enqueue(7)
    box.drain()
    for scope in ("ship", "bill"):
        assert box.ledger.conclude("o-7", scope=scope, tx=None, response={"is": "error"}, status=503, ok=False)
    return numbers[0]


def state(box: todoku.App, scope: str) -> str:
    entry = box.ledger.entry("o-7", scope=scope)
    assert entry is not None
    return entry.state


def test_a_replay_opens_the_entry_of_its_destination_and_no_other(box: todoku.App, dead: int) -> None:
    assert box.replay(dead, by="ada", why="there is one now", dry_run=True).matched == 1
    assert state(box, "ship") == "failed", "a dry run changes nothing"
    assert box.replay(dead, by="ada", why="there is one now").replayed == 1
    assert (state(box, "ship"), state(box, "bill")) == ("accepted", "failed")
    with box.once("o-7", scope="ship", tx=None, body=7) as again:
        assert (again.first, again.state) == (False, "accepted")
    assert box.ledger.conclude("o-7", scope="ship", tx=None, response={"is": "shipped"})
    assert state(box, "ship") == "succeeded"


def test_a_success_stays_one_whatever_is_replayed(box: todoku.App, dead: int) -> None:
    """I5, I7."""
    box.replay(dead, by="ada", why="there is one now")
    box.ledger.conclude("o-7", scope="ship", tx=None, response={"is": "shipped"})
    box.drain()
    assert box.replay(dead, by="ada", why="once more").replayed == 1
    assert state(box, "ship") == "succeeded"

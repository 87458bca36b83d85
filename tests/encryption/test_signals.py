"""Signals to encrypted runs, and the undos of their steps: sealed with the run's data key, lost with it (R13)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

import todoku
from tests.encryption.conftest import Boxes, new_key
from tests.support.world import SOMEBODY, World
from todoku import App, CannotOpen, Flow
from todoku.core.errors import InvalidAct
from todoku.core.sealed import parse_sealed_result
from todoku.engine.encryption.key_rotation import Days, rotate, shred
from todoku.engine.flows import operations

SECRET = "4111-1111-1111-1111"
EVER = Days("0001-01-01", "9999-01-01")
refunded: list[Any] = []


def charge(card: str) -> str:
    return f"charged {card}"


def refund(card: str, payment: str | None) -> None:
    refunded.append((card, payment))
    if len(refunded) == 1:
        raise ValueError(f"{card}: the bank is closed")


def paying(box: App) -> todoku.Workflow[[str], str]:
    @box.workflow(encrypted=True)
    async def pay(ctx: Flow, card: str) -> str:
        await ctx.step(charge, card, undo=partial(refund, card))
        return await ctx.wait("pin", str)

    return pay


def texts(world: World) -> str:
    """Everything that is stored about steps and signals."""
    return repr([world.sql(f"select * from todoku_{name}") for name in ("step", "signal", "run_call")])


def test_a_signal_is_sealed_before_and_after_its_wait_got_it_and_its_name_is_not(box: App, world: World) -> None:
    pay = paying(box)
    run = pay.start(SECRET)
    box.signal(run, "pin", SECRET, tx=None)
    ((name, payload),) = world.sql("select name, payload from todoku_signal")
    assert name == "pin"
    assert parse_sealed_result(payload) is not None
    box.drain()
    assert run.result(timeout=0) == SECRET
    assert SECRET not in texts(world)
    charged, waited = operations.show(box.store, run.id).steps
    for shown in (charged.arguments, charged.result, waited.result):
        assert str(shown).startswith("encrypted (")
    assert (charged.name, waited.name, waited.arguments) == ("charge", "wait", "pin")


def test_a_signal_of_a_person_is_sealed_and_refused_without_the_master_key(
    boxes: Boxes, box: App, world: World
) -> None:
    run = paying(box).start(SECRET)
    with pytest.raises(
        CannotOpen, match="is encrypted; its data key is wrapped by the master key 2026-05, which is not"
    ):
        operations.signal(boxes(new_key("other")).outbox, run.id, "pin", SECRET, SOMEBODY)
    with pytest.raises(CannotOpen):
        operations.signal(boxes().outbox, run.id, "pin", SECRET, SOMEBODY)
    assert world.sql("select count(*) from todoku_signal, todoku_run_call") == [(0,)]
    operations.signal(box.outbox, run.id, "pin", SECRET, SOMEBODY)
    assert SECRET not in texts(world)
    box.drain()
    assert run.result(timeout=0) == SECRET


def test_a_sealed_signal_opens_for_its_own_run_and_name_only(box: App, world: World) -> None:
    """SEC-13: bytes that were moved to another place are refused, and are no value."""
    pay = paying(box)
    first, second = pay.start(SECRET), pay.start(SECRET)
    box.signal(first, "pin", "1", tx=None)
    box.signal(second, "pin", "2", tx=None)
    world.sql("update todoku_signal set payload = (select payload from todoku_signal order by id limit 1)")
    box.drain()
    assert first.result(timeout=0) == "1"
    assert second.status() != "succeeded"


def test_a_signal_that_was_stored_plain_by_an_older_version_still_arrives_and_is_sealed_then(
    box: App, world: World
) -> None:
    run = paying(box).start(SECRET)
    box.signal(run, "pin", "1", tx=None)
    world.sql(f"update todoku_signal set payload = '{json.dumps(SECRET)}'")
    box.drain()
    assert run.result(timeout=0) == SECRET
    assert SECRET not in repr(world.sql("select * from todoku_step"))


def test_the_arguments_of_an_undo_are_sealed_and_its_errors_do_not_quote_them(box: App, world: World) -> None:
    refunded.clear()
    run = paying(box).start(SECRET)
    box.drain()
    assert SECRET not in texts(world)
    run.cancel(by="ada", why="asked to")
    box.drain()
    assert refunded == [(SECRET, f"charged {SECRET}")]
    assert SECRET not in texts(world)
    failed = world.sql("select reason, error, traceback from todoku_attempt")
    assert ("INTERNAL_ERROR", "ValueError", None) in failed
    assert SECRET not in repr(failed)
    world.sql("update todoku_delivery set next_run_at = updated_at where status = 'failed'")
    box.drain()
    assert len(refunded) == 2


def test_the_text_of_an_error_in_a_step_of_an_encrypted_run_is_not_stored(box: App, world: World) -> None:
    """As of any encrypted message: it may quote what it was called with."""

    def decline(card: str) -> None:
        raise ValueError(f"{card} is declined")

    @box.workflow(encrypted=True)
    async def pay(ctx: Flow, card: str) -> str:
        try:
            await ctx.step(decline, card, max_attempts=1)
        except todoku.StepFailed as failed:
            return str(failed)
        return "paid"

    run = pay.start(SECRET)
    box.drain()
    assert run.status() == "succeeded"
    assert world.sql("select error from todoku_step") == [("ValueError",)]


def test_after_a_rotation_waiting_signals_and_steps_are_read_by_the_new_master_key(
    boxes: Boxes, old: str, new: str
) -> None:
    box = boxes(old)
    run = paying(box).start(SECRET)
    box.drain()
    both = boxes(new, old)
    rotate(both.store.data_keys, both.settings.master_keys, SOMEBODY)
    box.close()
    only_new = boxes(new)
    pay = paying(only_new)
    only_new.signal(run.id, "pin", SECRET, tx=None)
    only_new.drain()
    assert pay.handle(run.id).result(timeout=0) == SECRET


def test_shredding_counts_the_steps_and_signals_that_it_makes_unreadable(boxes: Boxes, box: App, old: str) -> None:
    """R13: also those of runs that have succeeded, which are kept for a while."""
    pay, keys = paying(box), box.store.data_keys
    ended, waiting = pay.start(SECRET), pay.start(SECRET)
    box.drain()
    box.signal(ended, "pin", "1", tx=None)
    box.drain()
    box.signal(waiting, "pin", "2", tx=None)
    found = shred(keys, EVER, SOMEBODY, dry_run=True)
    # charge of both, and the wait that got its signal: an open wait keeps nothing.
    assert (found.unfinished, found.dead, found.steps, found.signals) == (1, 0, 3, 2)
    with pytest.raises(InvalidAct, match="1 unfinished"):
        shred(keys, EVER, SOMEBODY)
    shred(keys, EVER, SOMEBODY, force=True)
    later = boxes(old)  # a process that has the key in no cache
    with pytest.raises(CannotOpen, match="was deleted"):
        later.signal(waiting.id, "pin", "3", tx=None)
    pay = paying(later)
    later.drain()
    (delivery,) = later.store.messages.story(waiting.id).deliveries  # type: ignore[union-attr]
    assert (str(delivery.status), delivery.reason) == ("aborted", "SHREDDED")
    with pytest.raises(CannotOpen):
        pay.handle(ended.id).result(timeout=0)
    assert shred(keys, EVER, SOMEBODY, dry_run=True).steps == 0


def test_a_sender_that_knows_the_key_seals_nothing_after_it_was_shredded(box: App, world: World) -> None:
    pay = paying(box)
    run = pay.start(SECRET)
    box.signal(run, "pin", "1", tx=None)
    shred(box.store.data_keys, EVER, SOMEBODY, force=True)
    with pytest.raises(CannotOpen, match="was deleted"):
        box.signal(run, "pin", "2", tx=None)
    assert world.sql("select count(*) from todoku_signal") == [(1,)]


def test_a_plain_run_beside_encrypted_ones_gets_its_signal_as_it_was_sent(box: App, world: World) -> None:
    @box.workflow
    async def plain(ctx: Flow) -> int:
        return await ctx.wait("number", int)

    paying(box).start(SECRET)
    run = plain.start()
    box.signal(run, "number", 7, tx=None)
    assert world.sql("select payload from todoku_signal") == [("7",)]
    box.drain()
    assert run.result(timeout=0) == 7

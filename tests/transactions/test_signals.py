"""Signals in the caller's own transaction: by the run's key, to a run of the same transaction, sealed (R2, R13).

Every test runs with every supported kind of `tx`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.encryption.conftest import new_key
from tests.support.world import World
from tests.transactions.callers import Caller
from todoku import App, CannotOpen, Flow, Workflow
from todoku.core.errors import NotThere

AWKWARD = 'it\'s "quoted" \\ 100% %s %(name)s :name ::json $1 ? {x} 届く 🎉'
SECRET = "4111-1111-1111-1111"


@pytest.fixture
def approving(shop: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """An App with a master key."""
    monkeypatch.setenv("TODOKU_MASTER_KEYS", new_key("spring"))
    box = App(shop.url)
    yield box
    box.close()


def declared(box: App, *, encrypted: bool = False) -> Workflow[[], str]:
    async def approve(ctx: Flow) -> str:
        return await ctx.wait("approval", str)

    return box.workflow(encrypted=encrypted)(approve)


def stored(shop: World) -> list[int]:
    """How many signals and calls everybody else can see."""
    return [int(shop.sql(f"select count(*) from todoku_{name}")[0][0]) for name in ("signal", "run_call")]


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_run_that_the_same_transaction_started_gets_a_signal_by_its_key(
    shop: World, approving: App, caller: Caller, encrypted: bool
) -> None:
    """R2: it is early, and it is kept. R13: of an encrypted run, whose data key only this transaction sees, sealed."""
    approve = declared(approving, encrypted=encrypted)
    caller.begin()
    run = caller.start(approve, idempotency_key=AWKWARD)
    caller.signal(approving, approve.run(idempotency_key=AWKWARD), "approval", SECRET)
    assert stored(shop) == [0, 0]
    caller.commit()
    assert stored(shop) == [1, 1]
    assert (SECRET in repr(shop.sql("select name, payload from todoku_signal"))) is not encrypted
    approving.drain()
    assert run.result(timeout=0) == SECRET


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_run_that_waits_gets_a_signal_by_its_key_or_none_after_a_rollback(
    shop: World, approving: App, caller: Caller, encrypted: bool
) -> None:
    approve = declared(approving, encrypted=encrypted)
    run = approve.using(idempotency_key="order 7").start()
    approving.drain()
    for end in (caller.rollback, caller.commit):
        caller.begin()
        caller.execute("insert into shop_order (id, note) values (1, 'mine')")
        caller.signal(approving, approve.run(idempotency_key="order 7"), "approval", AWKWARD)
        end()
        approving.drain()
    assert run.result(timeout=0) == AWKWARD
    assert shop.sql("select note from shop_order") == [("mine",)]


def test_a_signal_that_is_refused_leaves_nothing_although_the_caller_commits(
    shop: World, approving: App, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R13: a sender without the master key, or of a key that no run has, stores nothing, and no plain text."""
    approve = declared(approving, encrypted=True)
    run = approve.using(idempotency_key="order 7").start()
    monkeypatch.setenv("TODOKU_MASTER_KEYS", new_key("another"))
    stranger = App(shop.url)
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    with pytest.raises(
        CannotOpen, match="is encrypted; its data key is wrapped by the master key spring, which is not"
    ):
        caller.signal(stranger, run, "approval", SECRET)
    with pytest.raises(CannotOpen):
        caller.signal(stranger, approve.run(idempotency_key="order 7"), "approval", SECRET)
    with pytest.raises(NotThere, match="no run of approve with the idempotency key 'order 8'"):
        caller.signal(approving, approve.run(idempotency_key="order 8"), "approval", SECRET)
    caller.commit()
    stranger.close()
    assert stored(shop) == [0, 0]
    assert shop.sql("select note from shop_order") == [("mine",)]

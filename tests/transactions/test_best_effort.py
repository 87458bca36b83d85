"""Jobs in the caller's own transaction, with every kind of `tx`: one commit, and best effort costs nobody a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.world import World
from tests.transactions.callers import AsyncCaller, Caller
from tests.transactions.test_drivers import NOTHING, orders, stored
from todoku import App, Handle, Job


@pytest.fixture
def welcome(box: App) -> Job[[int], None]:
    @box.job
    def welcome(user_id: int) -> None: ...

    return welcome


def enqueue(caller: Caller, job: Job[[int], Any], **options: Any) -> Handle[Any]:
    using = job.using(tx=caller.tx, **options)
    if isinstance(caller, AsyncCaller):
        return caller.run(using.aenqueue(7))  # type: ignore[no-any-return]
    return using.enqueue(7)


@pytest.fixture
def broken(shop: World) -> Iterator[None]:
    """Publishing fails half-way: the message can be inserted, its delivery cannot."""
    shop.sql("alter table todoku_delivery rename to todoku_delivery_away")
    yield
    shop.sql("alter table todoku_delivery_away rename to todoku_delivery")


@pytest.mark.parametrize("best_effort", [False, True])
def test_a_job_and_the_caller_s_row_are_one_commit(
    shop: World, caller: Caller, welcome: Job[[int], None], best_effort: bool
) -> None:
    """I2. Also where the enqueue is the first statement: its savepoint must not become a transaction of its own."""
    caller.begin()
    enqueue(caller, welcome, best_effort=best_effort)
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    assert (orders(shop), stored(shop)) == ([], NOTHING)
    caller.rollback()
    assert (orders(shop), stored(shop)) == ([], NOTHING)
    caller.begin()
    handle = enqueue(caller, welcome, best_effort=best_effort)
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    caller.commit()
    assert orders(shop) == [(1, "mine")]
    assert [row.message_id for row in shop.deliveries()] == [handle.id]


@pytest.mark.usefixtures("broken")
def test_an_enqueue_that_fails_leaves_the_rest_of_the_transaction(
    shop: World, caller: Caller, welcome: Job[[int], None]
) -> None:
    """S3-72: what was done before it and what is done after it commits; nothing of it stays."""
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'before')")
    assert not enqueue(caller, welcome, best_effort=True).stored
    caller.execute("insert into shop_order (id, note) values (2, 'after')")
    caller.commit()
    assert orders(shop) == [(1, "before"), (2, "after")]
    assert shop.sql("select count(*) from todoku_message") == [(0,)]

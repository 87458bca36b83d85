"""Databases and callers whose transactions are repeatable read or serializable (MEND-1).

Such a transaction sees the database as it was when it began. todoku's own transactions look again after they waited, so
they are read committed whatever the default is. A caller's is what the caller wants; where that cannot be, the caller
is an error for the caller: nothing is lost, doubled or disordered (I1, I5, I10).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel, errors

from tests.postgres.conftest import Make, Open
from tests.support.crew import until
from tests.transactions.callers import KINDS, Caller
from todoku import Context

pytestmark = pytest.mark.postgres

LEVELS = ("repeatable read", "serializable")
AGAIN = "roll back and run the whole transaction again"
ROUNDS = 25


@pytest.fixture(params=LEVELS)
def url(request: pytest.FixtureRequest, make_database: Make) -> str:
    """A database in which every transaction is of that level, unless it says otherwise."""
    return make_database(default_transaction_isolation=request.param)


@contextmanager
def began(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A caller's transaction that has looked at the database already: from now on it sees nothing new."""
    with psycopg.connect(url) as connection:
        assert connection.execute("show transaction_isolation").fetchone() != ("read committed",)
        connection.execute("select from shop_book")
        yield connection


def forget_keys(url: str) -> None:
    """As prune does when their retention has passed, in a transaction of ours: read committed."""
    with psycopg.connect(url) as pruner:
        pruner.isolation_level = IsolationLevel.READ_COMMITTED
        assert pruner.execute("delete from todoku_ledger").rowcount > 0


def test_MEND_1_transactions_of_ours_are_read_committed(url: str, open_shop: Open) -> None:
    """Claims, settles, reads and the transaction of a handler."""
    shop = open_shop(url)
    seen: list[str] = []

    @shop.box.on("look.*", name="look", transactional=True)
    def look(ctx: Context, _: Any) -> None:
        seen.append(ctx.tx.execute("show transaction_isolation").fetchone()[0])

    def level(tx: Any) -> str:
        return tx.connection.execute("show transaction_isolation").fetchone()[0]  # type: ignore[no-any-return]

    seen += [shop.box.store.database.write("claim", level), shop.box.store.database.read(level)]
    shop.box.publish("look.here", {}, tx=None)
    assert shop.box.drain() == 1
    assert seen == ["read committed"] * 3


def test_MEND_1_what_is_published_to_a_lane_while_its_handler_runs_is_not_left_behind(
    url: str, open_shop: Open
) -> None:
    """I10: the settle removes a lane in which it sees nothing more. A handler's transaction that had begun before the
    next message was published would not see it, and the message would wait in a lane that no worker sees."""
    shop = open_shop(url)
    box, ran = shop.box, []

    @box.on("lane.*", name="lane", transactional=True, ordered=True)
    def lane(ctx: Context, number: int) -> None:
        ctx.tx.execute("select from shop_book")
        if number == 1:
            with psycopg.connect(url) as caller:
                box.publish("lane.go", 2, tx=caller, key="k")
        ran.append(number)

    box.publish("lane.go", 1, tx=None, key="k")
    with shop.open():
        until(lambda: ran == [1, 2], what="the second of the lane")


def test_MEND_1_a_key_that_another_used_meanwhile_is_an_error_to_try_again_on(url: str, open_shop: Open) -> None:
    """I5: the caller cannot see whose the key is, so it can neither be told "duplicate" nor publish a second."""
    box = open_shop(url).box
    order = {"fails": "never"}
    with began(url) as caller:
        first = box.publish("order.made", order, tx=None, idempotency_key="k")
        with pytest.raises(errors.SerializationFailure) as told:
            box.publish("order.made", order, tx=caller, idempotency_key="k")
        assert AGAIN in "".join(told.value.__notes__)
        caller.rollback()
        again = box.publish("order.made", order, tx=caller, idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    assert box.store.statistics.counts().of("pending") == 1


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.backend == "postgres"], ids=lambda kind: kind.__name__)
def test_MEND_1_every_driver_says_what_to_do(kind: type[Caller], make_database: Make, open_shop: Open) -> None:
    """The error is the driver's own, as loops that try again expect it; what to do is added to its text."""
    url = make_database(default_transaction_isolation="repeatable read")
    box = open_shop(url).box
    caller = kind(url)
    try:
        caller.begin()
        caller.execute("select from shop_book")
        box.publish("order.made", {"fails": "never"}, tx=None, idempotency_key="k")
        with pytest.raises(Exception, match="could not serialize access") as told:
            caller.publish(box, "order.made", {"fails": "never"}, idempotency_key="k")
        assert AGAIN in "".join(told.value.__notes__)
        caller.rollback()
    finally:
        caller.close()
    assert box.store.statistics.counts().of("pending") == 1


def test_MEND_1_a_key_that_was_forgotten_meanwhile_is_free(url: str, open_shop: Open) -> None:
    """I1: a caller that began before the entry was pruned sees it still, beside its own new one. Its own counts: else
    it would be told "duplicate", store nothing, and leave a key behind that belongs to a message which never was."""
    box = open_shop(url).box
    order = {"fails": "never"}
    box.publish("order.made", order, tx=None, idempotency_key="k")
    assert box.drain() == 1
    with began(url) as caller:
        forget_keys(url)
        published = box.publish("order.made", order, tx=caller, idempotency_key="k")
    assert not published.duplicate
    assert box.store.statistics.counts().of("pending") == 1
    assert box.publish("order.made", order, tx=None, idempotency_key="k").id == published.id


def test_MEND_1_a_reservation_that_was_given_up_meanwhile_is_free(url: str, open_shop: Open) -> None:
    """`box.once`: the same for keys of people's own."""
    box = open_shop(url).box
    with box.once("k", scope="s", tx=None) as answer:
        answer.store({"by": "the first"})
    with began(url) as caller:
        forget_keys(url)
        with box.once("k", scope="s", tx=caller) as answer:
            assert answer.first
            answer.store({"by": "the second"})


def test_MEND_1_a_message_seen_meanwhile_is_not_seen_twice(url: str, open_shop: Open) -> None:
    """I6: the inbox."""
    box = open_shop(url).box
    message = box.publish("order.made", {"fails": "never"}, tx=None)
    with began(url) as caller:
        with psycopg.connect(url) as other, box.inbox("points").once(message.id, tx=other) as first:
            assert first
        with pytest.raises(errors.SerializationFailure), box.inbox("points").once(message.id, tx=caller):
            raise AssertionError("seen twice")


def test_MEND_1_best_effort_goes_on_without_the_message(url: str, open_shop: Open) -> None:
    """S3-72: the caller's own rows commit, and the handle says that nothing was enqueued."""
    box = open_shop(url).box

    @box.job
    async def greet(name: str) -> None: ...

    with began(url) as caller:
        assert greet.using(tx=None, idempotency_key="k").enqueue("a").stored
        caller.execute("insert into shop_book (line) values ('mine')")
        assert not greet.using(tx=caller, idempotency_key="k", best_effort=True).enqueue("a").stored
    assert box.store.statistics.counts().of("pending") == 1
    with psycopg.connect(url) as reader:
        assert reader.execute("select line from shop_book").fetchall() == [("mine",)]


def test_MEND_1_many_publishers_at_once(url: str, open_shop: Open) -> None:
    """I1, I5, I10: 4 callers with old snapshots share keys and a lane, beside a worker; each tries again when told to:
    in the end each key has one message, and each caller's messages ran once and in its order."""
    shop = open_shop(url)
    box, ran = shop.box, []

    @box.on("lane.*", name="lane", ordered=True)
    async def lane(moved: Any) -> None:
        ran.append(tuple(moved))

    def publish_all(who: int) -> int:
        refused = 0
        with psycopg.connect(url) as caller:
            for number in range(ROUNDS):
                while True:
                    try:
                        caller.execute("select from shop_book")
                        box.publish("lane.go", [who, number], tx=caller, key="k")
                        box.publish(
                            "order.made", {"fails": "never", "n": number}, tx=caller, idempotency_key=f"k{number}"
                        )
                        caller.commit()
                        break
                    except errors.SerializationFailure:
                        refused += 1
                        caller.rollback()
        return refused

    with shop.open(), ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(publish_all, range(4))) > 0, "no two publishers met: nothing was tried"
        until(lambda: shop.standing() == {"succeeded": 4 * ROUNDS + ROUNDS}, what="everything")
    for who in range(4):
        assert [number for by, number in ran if by == who] == list(range(ROUNDS))
    assert sorted(item["n"] for item in shop.ran) == list(range(ROUNDS))
    assert box.store.broken(history_ttl=86_400.0, ledger_ttl=86_400.0) == {}

"""Once, with every kind of `tx`: a key or a message takes effect one time, and in the caller's own commit (I2, I6)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.support.world import World
from tests.transactions.callers import AsyncCaller, Caller
from tests.transactions.test_drivers import orders
from todoku import App, IdempotencyConflict, InvalidMessage
from todoku.engine.ledger import Block

ROW = "insert into shop_order (id, note) values (1, 'mine')"


class Stop(Exception):
    """Raised by the code inside a block."""


def entered(caller: Caller, block: Block[Any], act: Callable[[Any], object] = bool) -> Any:
    """Go through a block as this caller's code does, `with` or `async with`. What it was given."""

    async def awaited() -> Any:
        async with block as given:
            act(given)
            return given

    if isinstance(caller, AsyncCaller):
        return caller.run(awaited())
    with block as given:
        act(given)
        return given


def storing(response: object, status: int = 200, **state: Any) -> Callable[[Any], None]:
    return lambda done: done.store(response, status, **state)


def stop(_given: object) -> None:
    raise Stop


def test_a_key_is_done_once_and_whoever_asks_again_is_given_the_response(shop: World, box: App, caller: Caller) -> None:
    def once(body: object, scope: str = "refunds", act: Callable[[Any], object] = bool) -> Any:
        return entered(caller, box.once("r-7", scope=scope, tx=caller.tx, body=body), act)

    caller.begin()
    assert once({"a": 1}, act=storing({"n": 7}, 201)).first
    caller.execute(ROW)
    caller.rollback()
    assert (orders(shop), box.ledger.entry("r-7", scope="refunds")) == ([], None)

    caller.begin()
    assert once({"a": 1}, act=storing({"n": 7}, 201)).first
    caller.execute(ROW)
    caller.commit()
    caller.begin()
    again = once({"a": 1.0})
    assert (again.first, again.status, again.response, again.state) == (False, 201, {"n": 7}, "succeeded")
    assert once({"b": 2}, scope="invoices").first, "a key is unique in its scope, not in the installation (H12)"
    with pytest.raises(IdempotencyConflict, match=r"'r-7' was used at .* with another body"):
        once({"a": 2})
    with pytest.raises(InvalidMessage, match="already has a response"):
        once({"a": 1}, act=storing("another"))
    caller.commit()
    assert orders(shop) == [(1, "mine")]


def test_a_block_that_raises_leaves_the_key_free_also_if_the_caller_commits(
    shop: World, box: App, caller: Caller
) -> None:
    caller.begin()
    caller.execute(ROW)
    with pytest.raises(Stop):
        entered(caller, box.once("r-7", scope="refunds", tx=caller.tx), stop)
    caller.commit()
    assert orders(shop) == [(1, "mine")]
    assert box.ledger.entry("r-7", scope="refunds") is None


def test_what_was_accepted_is_concluded_later_and_once(box: App, caller: Caller) -> None:
    """S0: accepted → succeeded | failed. The first to tell the end is the one who is heard."""

    def conclude(key: str, response: object, **how: Any) -> Any:
        if isinstance(caller, AsyncCaller):
            return caller.run(box.ledger.aconclude(key, scope="orders", tx=caller.tx, response=response, **how))
        return box.ledger.conclude(key, scope="orders", tx=caller.tx, response=response, **how)

    def once(act: Callable[[Any], object] = bool) -> Any:
        return entered(caller, box.once("o-1", scope="orders", tx=caller.tx, body=b"raw"), act)

    caller.begin()
    assert once(storing({"is": "queued"}, 201, state="accepted")).first
    caller.commit()
    caller.begin()
    waiting = once()
    assert (waiting.first, waiting.state, waiting.status) == (False, "accepted", 201)
    assert conclude("o-1", {"is": "error"}, status=504, ok=False) is True
    assert conclude("o-1", {"is": "ok"}) is False
    assert conclude("o-2", {"is": "ok"}) is False
    caller.commit()
    caller.begin()
    over = once()
    assert (over.state, over.status, over.response) == ("failed", 504, {"is": "error"})
    caller.rollback()


def test_a_consumer_sees_a_message_once_in_its_own_commit(shop: World, box: App, caller: Caller) -> None:
    """I6: mark and effect commit together, are rolled back together, and are undone together if the block raises."""
    message, inbox = uuid4(), box.inbox("points")
    caller.begin()
    assert entered(caller, inbox.once(message, tx=caller.tx)) is True
    caller.rollback()
    caller.begin()
    with pytest.raises(Stop):
        entered(caller, inbox.once(message, tx=caller.tx), stop)
    caller.commit()
    caller.begin()
    assert entered(caller, inbox.once(str(message), tx=caller.tx)) is True
    caller.commit()
    caller.begin()
    assert entered(caller, inbox.once(message, tx=caller.tx)) is False
    assert entered(caller, box.inbox("stock").once(message, tx=caller.tx)) is True, "each consumer for itself"
    caller.commit()
    assert shop.sql("select count(*) from todoku_inbox") == [(2,)]


def test_a_consumer_of_states_takes_only_what_is_newer(box: App, caller: Caller) -> None:
    stock = box.inbox("stock")
    seen = []
    for sequence in (3, 1, 3, 2**62, 5):
        caller.begin()
        seen.append(entered(caller, stock.newer("sku-1", sequence, tx=caller.tx)))
        caller.commit()
    assert seen == [True, False, False, True, False]
    caller.begin()
    assert entered(caller, stock.newer("sku-2", -1, tx=caller.tx)) is True
    caller.rollback()


@pytest.mark.parametrize("wrong", ["key", "scope", "empty", "consumer", "id", "sequence", "no tx"])
def test_what_cannot_be_is_refused_with_its_name(box: App, wrong: str) -> None:
    refused: dict[str, tuple[Callable[[], object], str]] = {
        "key": (lambda: box.once("k" * 513, scope="s", tx=None), "the key has 513 characters"),
        "scope": (lambda: box.once("k", scope="", tx=None), "the scope has 0 characters"),
        "empty": (lambda: box.inbox("c").newer("", 1, tx=object()), "the key has 0 characters"),
        "consumer": (lambda: box.inbox("a\0b"), "the consumer has a NUL"),
        "id": (lambda: box.inbox("c").once("7", tx=object()), "message_id cannot be '7'"),
        "sequence": (lambda: box.inbox("c").newer("k", 1.5, tx=object()), "sequence cannot be 1.5"),  # type: ignore[arg-type]
        "no tx": (lambda: box.inbox("c").once(uuid4(), tx=None), "an inbox needs a transaction"),
    }
    call, text = refused[wrong]
    with pytest.raises(InvalidMessage, match=text):
        call()

"""Publish in the caller's own transaction: message, deliveries and the caller's rows are one commit, or none (I2).

Every test runs with every supported kind of `tx`.
"""

from __future__ import annotations

import json

import pytest

from tests.support.world import World
from tests.transactions.callers import Caller
from todoku import App, IdempotencyConflict, InvalidMessage
from todoku.engine.publish import MessageOptions

AWKWARD = {
    "text": 'it\'s "quoted" \\ \\u0041 100% %s %(name)s %% :name ::json $1 ? {x} [a] -- /* */ ; null',
    "unicode": "届く 🎉 é e\u0301 \u2028 \x7f\ttab\nline\r\n",
    "numbers": [2**53 + 1, 2**63, -(2**63), 2**200, 0.1, 1e308, 5e-324, -0.0, 1.0],
    "nested": {"": {"a": [{}, [], None, True, False, ""]}, "%s": ":x", "клю'ч": 1},
}
HEADERS = {"traceparent": "00-4bf9-01", "x-naïve": 'it\'s 100% :x %(y)s \\ "届く" 🎉'}
TABLES = ("message", "delivery", "ledger", "lane")


def stored(shop: World) -> dict[str, int]:
    """How many rows of todoku everybody else can see."""
    return {name: int(shop.sql(f"select count(*) from todoku_{name}")[0][0]) for name in TABLES}


def orders(shop: World) -> list[tuple[int, str]]:
    """The caller's own rows, as everybody else sees them."""
    return [(id, note) for id, note in shop.sql("select id, note from shop_order order by id")]


NOTHING = dict.fromkeys(TABLES, 0)


def test_a_commit_makes_row_message_and_deliveries_visible_together(shop: World, box: App, caller: Caller) -> None:
    """I2, I1: until the commit nobody sees anything; then the row, the message and one delivery per route."""
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    message = caller.publish(box, "order.created", AWKWARD, headers=HEADERS, key="it's :x 100% 届く", priority=3)
    assert stored(shop) == NOTHING
    assert orders(shop) == []
    caller.commit()

    assert orders(shop) == [(1, "mine")]
    assert stored(shop) == NOTHING | {"message": 1, "delivery": 2}
    assert (message.topic, message.key, message.duplicate) == ("order.created", "it's :x 100% 届く", False)
    rows = shop.deliveries(message_id=message.id)
    assert {(row.destination, row.status, row.priority, row.attempts) for row in rows} == {
        ("warehouse", "pending", 3, 0),
        ("billing", "pending", 3, 0),
    }


def test_what_was_published_is_what_arrives(shop: World, box: App, caller: Caller) -> None:
    """Payload, headers and key come out of a claim as they went in, whatever characters and numbers they hold."""
    caller.begin()
    message = caller.publish(box, "order.created", AWKWARD, headers=HEADERS, key="it's :x 100% 届く")
    caller.commit()

    claims = shop.claim(shop.worker())
    assert [claim.message_id for claim in claims] == [str(message.id)] * 2
    for claim in claims:
        assert claim.payload is not None
        assert claim.headers is not None
        assert repr(json.loads(claim.payload)) == repr(AWKWARD)  # repr: 1 is not 1.0, and -0.0 is not 0.0
        assert json.loads(claim.headers) == HEADERS
        assert claim.key == "it's :x 100% 届く"


def test_bytes_arrive_as_bytes(shop: World, box: App, caller: Caller) -> None:
    """A payload that is not JSON travels beside it, NULs and all."""
    raw = bytes(range(256)) + b"%s :x \\"
    caller.begin()
    caller.publish(box, "order.created", raw)
    caller.commit()

    for claim in shop.claim(shop.worker()):
        assert (claim.payload, claim.payload_bytes) == (None, raw)
        assert claim.content_type == "application/octet-stream"


def test_a_rollback_leaves_nothing(shop: World, box: App, caller: Caller) -> None:
    """I2: no message, no delivery, no ledger entry, no lane; and the key is free for the next one."""
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'never')")
    caller.publish(box, "order.created", {"n": 1}, idempotency_key="k1")
    caller.publish(box, "stock.moved", {"n": 2}, key="shelf 7", idempotency_key="k2")
    caller.publish_many(box, [("order.created", {"n": n}) for n in range(3)])
    caller.rollback()
    assert (orders(shop), stored(shop)) == ([], NOTHING)

    caller.begin()
    again = caller.publish(box, "order.created", {"n": "another body"}, idempotency_key="k1")
    caller.commit()
    assert not again.duplicate
    assert stored(shop) == {"message": 1, "delivery": 2, "ledger": 1, "lane": 0}


def test_many_messages_are_all_stored_or_none_though_the_caller_commits(
    shop: World, box: App, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I2: a caller may catch the error and commit its own row; so there are no parts here (decision 43)."""
    monkeypatch.setattr("todoku.engine.outbox.PART", 10)
    monkeypatch.setattr("todoku.store.publish_parts.PART", 10)
    many: list[tuple[str, object]] = [("order.created", {"n": n}) for n in range(35)]
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    with pytest.raises(InvalidMessage):
        caller.publish_many(box, [*many, ("no.route", {})])
    caller.commit()
    assert (orders(shop), stored(shop)) == ([(1, "mine")], NOTHING)

    caller.begin()
    caller.publish_many(box, many)
    caller.rollback()
    assert stored(shop) == NOTHING

    caller.begin()
    messages = caller.publish_many(box, many)
    caller.commit()
    assert stored(shop) == NOTHING | {"message": 35, "delivery": 70}
    assert {row.message_id for row in shop.deliveries()} == {message.id for message in messages}


def test_a_repeated_publish_finds_the_earlier_message(shop: World, box: App, caller: Caller) -> None:
    """I5: same key, same body: the earlier message, nothing new queued; in its own transaction and in a later one."""
    caller.begin()
    first = caller.publish(box, "order.created", {"amount": 42, "é": 1.0}, idempotency_key="it's %s :x 届く")
    same = caller.publish(box, "order.created", {"e\u0301": 1, "amount": 42}, idempotency_key="it's %s :x 届く")
    caller.commit()
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    later = caller.publish(box, "order.created", {"amount": 42, "é": 1.0}, idempotency_key="it's %s :x 届く")
    caller.commit()

    assert [found.duplicate for found in (first, same, later)] == [False, True, True]
    assert first.id == same.id == later.id
    assert stored(shop) == {"message": 1, "delivery": 2, "ledger": 1, "lane": 0}
    assert orders(shop) == [(1, "mine")]


def test_a_key_used_with_another_body_is_refused_and_the_transaction_goes_on(
    shop: World, box: App, caller: Caller
) -> None:
    """I5: IdempotencyConflict says what differs; the caller's transaction is not spoilt and commits its own rows."""
    caller.begin()
    caller.publish(box, "order.created", {"amount": 42, "who": "a"}, idempotency_key="u7")
    caller.commit()

    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'before')")
    with pytest.raises(IdempotencyConflict, match=r"key 'u7' was used at .* differs in: amount"):
        caller.publish(box, "order.created", {"amount": 43, "who": "a"}, idempotency_key="u7")
    caller.execute("insert into shop_order (id, note) values (2, 'after')")
    other = caller.publish(box, "order.created", {"amount": 43}, idempotency_key="u8")
    caller.commit()

    assert orders(shop) == [(1, "before"), (2, "after")]
    assert not other.duplicate
    assert stored(shop) == {"message": 2, "delivery": 4, "ledger": 2, "lane": 0}


def test_a_conflict_of_one_key_does_not_use_up_the_others(shop: World, box: App, caller: Caller) -> None:
    """I1, I5: of several keys in one call one conflicts; the caller commits, and the other keys are still free.

    Reserved for a message that never was, a key would answer every later publish with a duplicate of nothing.
    """
    caller.begin()
    caller.publish(box, "order.created", {"n": 1}, idempotency_key="used")
    drafts = [
        box.outbox.draft("order.created", {"n": 2}, MessageOptions(idempotency_key=key), box.routes)
        for key in ("new", "used", "newer")
    ]
    with pytest.raises(IdempotencyConflict, match="'used'"):
        caller.store(box, drafts)
    caller.commit()
    caller.begin()
    again = caller.publish(box, "order.created", {"n": 2}, idempotency_key="new")
    caller.commit()

    assert not again.duplicate
    assert stored(shop) == {"message": 2, "delivery": 4, "ledger": 2, "lane": 0}


def test_messages_of_one_key_to_an_ordered_route_share_a_lane(shop: World, box: App, caller: Caller) -> None:
    """I10: the lane is made by the publish, in the same commit, and gives its rows in order."""
    caller.begin()
    ids = [caller.publish(box, "stock.moved", {"n": n}, key="shelf 7").id for n in range(3)]
    other = caller.publish(box, "stock.moved", {"n": 3}, key="shelf 8", idempotency_key="k").id
    caller.commit()

    assert stored(shop) == {"message": 4, "delivery": 4, "ledger": 1, "lane": 2}
    claims = shop.claim_lanes(shop.worker())
    lanes: dict[int | None, list[str]] = {}
    for claim in claims:
        lanes.setdefault(claim.lane, []).append(claim.message_id)
    assert sorted(lanes.values()) == sorted([[str(id) for id in ids], [str(other)]])


def test_five_hundred_at_once(shop: World, box: App, caller: Caller) -> None:
    """publish_many: all of them in the order given, in the caller's transaction."""
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    messages = caller.publish_many(box, [("order.created", {"n": n, "text": "it's 100% :x"}) for n in range(500)])
    assert stored(shop) == NOTHING
    caller.commit()

    assert stored(shop) == NOTHING | {"message": 500, "delivery": 1000}
    assert orders(shop) == [(1, "mine")]
    rows = shop.sql("select id, payload from todoku_message order by seq")
    assert [str(id) for id, _ in rows] == [str(message.id) for message in messages]
    bodies = [json.loads(payload) if isinstance(payload, str) else payload for _, payload in rows]
    assert [body["n"] for body in bodies] == list(range(500))


def test_publishing_none_at_once_is_nothing(shop: World, box: App, caller: Caller) -> None:
    """publish_many of an empty list leaves the caller's transaction as it was."""
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'mine')")
    assert caller.publish_many(box, []) == []
    caller.commit()
    assert (orders(shop), stored(shop)) == ([(1, "mine")], NOTHING)


def test_a_savepoint_that_is_rolled_back_takes_its_publish_along(shop: World, box: App, caller: Caller) -> None:
    """I2, for a part of a transaction: what the inner one published is gone, what the outer one did stays."""
    caller.begin()
    caller.execute("insert into shop_order (id, note) values (1, 'outer')")
    outer = caller.publish(box, "order.created", {"n": 1}, idempotency_key="outer")
    with caller.undone():
        caller.execute("insert into shop_order (id, note) values (2, 'inner')")
        caller.publish(box, "stock.moved", {"n": 2}, key="shelf 7", idempotency_key="inner")
        caller.publish(box, "order.created", {"n": 3})
    after = caller.publish(box, "stock.moved", {"n": 4}, key="shelf 7")
    caller.commit()

    assert orders(shop) == [(1, "outer")]
    assert stored(shop) == {"message": 2, "delivery": 3, "ledger": 1, "lane": 1}
    assert {row.message_id for row in shop.deliveries()} == {outer.id, after.id}

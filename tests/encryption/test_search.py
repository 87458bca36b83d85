"""What is encrypted or masked is searched by keyed digests: equal values are found, and nothing is readable."""

from __future__ import annotations

import pytest

import todoku
from tests.encryption.conftest import Boxes
from tests.support.world import World
from todoku.core.errors import InvalidAct
from todoku.engine.search import Searcher


def found(box: todoku.App, text: str, **more: object) -> int:
    return len(Searcher(box.store, box.settings).search(text, reader="admin", **more).items)  # type: ignore[arg-type]


def test_a_field_of_an_encrypted_message_is_found_and_never_stored(
    boxes: Boxes, world: World, old: str, new: str
) -> None:
    box = boxes(old)

    @box.job(encrypted=True, search=["order_id"])
    def pack(order_id: str) -> None: ...

    pack.enqueue("order-4711")
    stored = str(world.sql("select * from todoku_message")) + str(world.sql("select * from todoku_label"))
    assert "order-4711" not in stored
    assert found(box, "payload.order_id:order-4711") == 1
    assert found(box, "payload.order_id:order-4712") == 0
    rotated = boxes(new, old)
    assert found(rotated, "payload.order_id:order-4711") == 1
    assert found(boxes(new), "payload.order_id:order-4711") == 0, "its key is gone"


def test_a_masked_field_is_kept_as_a_digest_and_found_by_an_admin_only(boxes: Boxes, world: World, old: str) -> None:
    box = boxes(old)
    box.route("**", to="warehouse", search=["customer.email"])
    box.publish("order.created", {"customer": {"email": "ada@example.com"}}, tx=None)
    assert "ada@example.com" not in str(world.sql("select label from todoku_label"))
    assert found(box, "payload.customer.email:ada@example.com") == 1
    with pytest.raises(InvalidAct, match="is masked"):
        Searcher(box.store, box.settings).search("payload.customer.email:ada@example.com", reader="viewer")


def test_a_field_that_is_not_declared_is_not_found_in_encrypted_messages_but_they_are_counted(
    boxes: Boxes, old: str
) -> None:
    box = boxes(old, encrypt="all")
    box.route("**", to="warehouse")
    box.publish("order.created", {"n": 7}, tx=None)
    result = Searcher(box.store, box.settings).search("payload.n:7", reader="admin")
    assert (result.items, result.sealed, result.looked_at) == ((), 1, 1)

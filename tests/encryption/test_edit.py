"""An encrypted message is edited without being shown, stays encrypted, and opens only where its key is."""

from __future__ import annotations

from typing import Any

import todoku
from tests.encryption.conftest import Boxes, new_key
from todoku.core.sealed import kind_of
from todoku.engine.diagnostics.opened_message import open_message
from todoku.engine.edit import Edit, edit
from todoku.store.audit import Signed

ADA = Signed("ada", "a test")


def declare(box: todoku.App) -> list[dict[str, Any]]:
    calls: list[dict[str, Any]] = []

    @box.job("charge", max_attempts=1, encrypted=True, keep_result=True)
    def charge(amount: int, name: str) -> str:
        if amount < 0:
            raise ValueError(f"negative, {name}")
        calls.append({"amount": amount, "name": name})
        return name

    return calls


def dead(box: todoku.App) -> int:
    handle = box.jobs["charge"].enqueue(amount=-5, name="Grace Hopper")
    box.drain()
    return handle.delivery().id


def test_an_encrypted_message_stays_encrypted_and_unseen(box: todoku.App) -> None:
    calls = declare(box)
    number = dead(box)
    change = Edit(payload={"amount": 5, "name": "Ada Lovelace"})
    tried = edit(box.outbox, box.declarations, number, change, ADA, dry_run=True)
    assert (tried.diff, tried.hidden) == ("", ("the payload",))
    done = edit(box.outbox, box.declarations, number, change, ADA)
    story = box.store.messages.story(done.message_id)  # type: ignore[arg-type]
    assert story is not None
    assert kind_of(story.message.content_type) is not None
    assert b"Ada" not in bytes(story.message.payload_bytes or b"")
    assert "k1:" in story.audit[-1].action, "the digest of the change is keyed"
    box.drain()
    assert calls == [{"amount": 5, "name": "Ada Lovelace"}]


def test_it_opens_where_its_key_is_and_says_so_elsewhere(box: todoku.App, boxes: Boxes) -> None:
    declare(box)
    number = dead(box)
    message_id = box.deliveries.get(number).message_id
    story = box.store.messages.story(message_id)  # type: ignore[arg-type]
    assert story is not None
    opened = open_message(box.outbox, story, ADA)
    assert opened.payload == {"amount": -5, "name": "Grace Hopper"}
    assert "negative, Grace Hopper" in (opened.attempts[0].traceback or "")
    elsewhere = boxes(new_key("other"))
    closed = open_message(elsewhere.outbox, story, ADA)
    assert (closed.payload, closed.payload_base64, closed.attempts[0].traceback) == (None, None, None)
    assert "2026-05" in closed.unreadable[0]
    assert [entry.act.action for entry in box.store.audit.page()] == ["open", "open"]

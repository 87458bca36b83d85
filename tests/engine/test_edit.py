"""Edit and run: a new message with a corrected payload, checked, audited, and without showing what is masked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import todoku
from todoku.core.errors import InvalidAct, InvalidMessage, NotThere
from todoku.core.http_request import HttpRequest
from todoku.engine.edit import Edit, EditResult, edit
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.outbox import new_id
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.messages import StoredMessage

ADA = Signed("ada", "the sign was wrong")


def charge(box: todoku.App, **options: Any) -> list[dict[str, Any]]:
    """A job that refuses negative amounts; what it was called with."""
    calls: list[dict[str, Any]] = []

    @box.job("charge", max_attempts=1, **options)
    def charge(amount: int, password: str = "", note: str = "") -> None:
        if amount < 0:
            raise ValueError("negative")
        calls.append({"amount": amount, "password": password, "note": note})

    return calls


def dead(box: todoku.App, **arguments: Any) -> int:
    handle = box.jobs["charge"].using(idempotency_key="order 1").enqueue(**{"amount": -5} | arguments)
    box.drain()
    assert handle.delivery().status == "aborted"
    return handle.delivery().id


def run(box: todoku.App, id: int, change: Edit, **options: Any) -> EditResult:
    return edit(box.outbox, box.declarations, id, change, ADA, **options)


def stored(box: todoku.App, id: Any) -> StoredMessage:
    story = box.store.messages.story(id)
    assert story is not None
    return story.message


def test_a_dead_letter_runs_corrected_as_a_new_message(box: todoku.App) -> None:
    calls = charge(box)
    number = dead(box, note="tip")
    before = box.deliveries.get(number)
    done = run(box, number, Edit(payload={"amount": 5, "note": "tip"}))
    box.drain()
    assert calls == [{"amount": 5, "password": "", "note": "tip"}]
    assert '-  "amount": -5,' in done.diff
    assert '+  "amount": 5,' in done.diff
    assert done.diff.startswith(f"--- message {before.message_id}\n+++ edited")
    made = stored(box, done.message_id)
    assert msgspec.json.decode(made.labels or "[]") == [f"todoku.edited_of:{before.message_id}"]
    assert made.key_hash is None
    assert box.deliveries.get(number).status == "aborted"
    acts = {each.act.target: each.act for each in box.store.audit.page()}
    assert acts[f"delivery:{number}"].action.startswith(f"run edited as {done.message_id}, 1:")
    assert (acts[f"message:{done.message_id}"].by, acts[f"message:{done.message_id}"].why) == (ADA.by, ADA.why)


def test_stars_keep_what_the_viewer_may_not_see(box: todoku.App) -> None:
    calls = charge(box)
    number = dead(box, password="hunter2")
    seen = run(box, number, Edit(payload={"amount": 5, "password": "***"}), dry_run=True)
    assert (seen.hidden, seen.problems, seen.message_id) == ((), {}, None)
    assert "hunter2" not in seen.diff
    run(box, number, Edit(payload={"amount": 5, "password": "***"}))
    changed = run(box, number, Edit(payload={"amount": 5, "password": "hunter3"}))
    assert changed.hidden == ("password",)
    assert "hunter3" not in changed.diff
    box.drain()
    assert [call["password"] for call in calls] == ["hunter2", "hunter3"]


@pytest.mark.parametrize(
    ("payload", "refused"),
    [
        ({"amount": 5, "token": "***"}, "token: .* there is none"),
        ({"cards": ["***"]}, None),
        ([{"password": "***"}], "0.password: .* there is none"),
    ],
)
def test_stars_without_an_original_are_refused(box: todoku.App, payload: Any, refused: str | None) -> None:
    box.route("**", to=lambda _: todoku.Abort("REFUSED"), name="sink")
    message = box.publish("x", {"amount": 1, "cards": "4111"}, tx=None)
    box.drain()
    (row,) = box.deliveries.find(message_id=message.id).items
    if refused is None:
        assert run(box, row.id, Edit(payload=payload), dry_run=True).hidden == ("cards",)
    else:
        with pytest.raises(InvalidMessage, match=refused):
            run(box, row.id, Edit(payload=payload), dry_run=True)


def test_the_job_checks_the_edit_field_by_field(box: todoku.App) -> None:
    charge(box)
    number = dead(box)
    found = run(box, number, Edit(payload={"amount": "5", "nonsense": 1}), dry_run=True)
    assert found.problems == {"amount": "Expected `int`, got `str`", "nonsense": "there is no such argument"}
    assert run(box, number, Edit(payload={}), dry_run=True).problems == {"amount": "is required"}
    assert run(box, number, Edit(payload=[1]), dry_run=True).problems == {"": "Expected `object`, got `array`"}
    with pytest.raises(InvalidMessage, match="the edit is not acceptable: amount: is required"):
        run(box, number, Edit(payload={}))
    assert box.store.audit.page() == ()


def test_an_edit_of_a_success_and_one_that_purges_the_dead_letter(box: todoku.App) -> None:
    calls = charge(box)
    number = dead(box)
    assert run(box, number, Edit(payload={"amount": 1}), purge=True).purged
    with pytest.raises(NotThere):
        box.deliveries.get(number)
    box.drain()
    (done,) = box.store.deliveries.find(Filter(status="succeeded"), limit=5).items
    run(box, done.id, Edit(payload={"amount": 2}))
    with pytest.raises(InvalidAct, match="no dead letter"):
        run(box, done.id, Edit(payload={"amount": 2}), purge=True)
    box.drain()
    assert [call["amount"] for call in calls] == [1, 2]


def test_what_waits_is_not_edited(box: todoku.App) -> None:
    charge(box)
    handle = box.jobs["charge"].using(delay=60).enqueue(1)
    with pytest.raises(InvalidAct, match=r"is pending \(cancel it first"):
        run(box, handle.delivery().id, Edit(payload={"amount": 2}))
    with pytest.raises(NotThere):
        run(box, 999, Edit(payload={}))


def test_the_key_is_changed_and_its_order_is_that_of_the_new_key(box: todoku.App) -> None:
    calls = charge(box, ordered=True)
    handle = box.jobs["charge"].using(key="a").enqueue(amount=-1)
    box.drain()
    done = run(box, handle.delivery().id, Edit(payload={"amount": 1}, key="b"))
    assert "-key: a" in done.diff
    assert "+key: b" in done.diff
    assert stored(box, done.message_id).key == "b"
    box.drain()  # the lane of `a` is parked, that of `b` is not
    assert len(calls) == 1


def test_searched_fields_are_those_of_the_edited_payload(box: todoku.App) -> None:
    charge(box, search=["amount"])
    number = dead(box)
    done = run(box, number, Edit(payload={"amount": 7}))
    labels = msgspec.json.decode(stored(box, done.message_id).labels or "[]")
    assert [label for label in labels if label.startswith("payload.")] == ["payload.amount:7"]


def test_the_headers_and_the_body_of_a_request(box: todoku.App) -> None:
    request = HttpRequest(
        url="https://shop.example/hook", headers={"Authorization": "Bearer s3cret", "Content-Type": "application/json"}
    )
    draft = request_draft(new_id(), request, b'{"a":1}', Posting(dead="BAD_REQUEST"), max_payload_bytes=1000)
    box.outbox.put([draft], None, twin="aput")
    (row,) = box.deliveries.find(message_id=draft.id).items
    headers = {"Authorization": "***", "Content-Type": "application/json", "X-Tenant": "acme"}
    done = run(box, row.id, Edit(payload={"a": 2}, headers=headers))
    assert "s3cret" not in done.diff
    assert "+X-Tenant: acme" in done.diff
    made = stored(box, done.message_id)
    opened = box.outbox.opener.request(made)
    assert opened.headers == {**headers, "Authorization": "Bearer s3cret"}
    assert bytes(made.payload_bytes or b"") == b'{"a":2}'
    for bad, text in (
        ({"Host": "x"}, "Host cannot be set"),
        ({"X-Token": "***"}, "there is none"),
        ({"a b": "1"}, "a b"),
    ):
        with pytest.raises(InvalidMessage, match=text):
            run(box, row.id, Edit(headers=bad), dry_run=True)
    with pytest.raises(InvalidAct, match="flow key"):
        run(box, row.id, Edit(key="k"), dry_run=True)


def test_a_body_that_is_text_stays_text(box: todoku.App) -> None:
    request = HttpRequest(url="https://shop.example/hook", headers={"Content-Type": "text/plain"})
    draft = request_draft(new_id(), request, b"hello", Posting(dead="BAD_REQUEST"), max_payload_bytes=1000)
    box.outbox.put([draft], None, twin="aput")
    (row,) = box.deliveries.find(message_id=draft.id).items
    assert run(box, row.id, Edit(payload={"a": 1}), dry_run=True).problems == {
        "": "the payload of this message is text, not JSON"
    }
    done = run(box, row.id, Edit(payload="hello there"))
    assert bytes(stored(box, done.message_id).payload_bytes or b"") == b"hello there"

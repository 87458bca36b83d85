"""A callback tells what became of a request (webhooks.md §2.4), to whom it asked for, and of its own end to nobody."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from todoku.core.ending import EndedRequest, callback_body, callback_draft, callback_of
from todoku.core.http_request import Callback, HttpRequest, request_of
from todoku.core.outcome import KEPT_BODY_BYTES, KEPT_HEADER_BYTES, Response, trim_response

ID = UUID("01920000-0000-7000-8000-000000000001")
DONE, FAILED = Callback(url="https://a.example:8443/x"), Callback(url="http://b.example", retries=0, delay=3.0)
BOTH = HttpRequest(url="https://shop.example", callback=DONE, failure_callback=FAILED)


def ended(request: HttpRequest = BOTH, *, succeeded: bool = True, **given: object) -> EndedRequest:
    fields: dict[str, object] = {"attempts": 2, "created_at": 1.5, "body": b"b", "response": None, **given}
    return EndedRequest(message_id="m", delivery_id=7, replay_count=1, request=request, succeeded=succeeded, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("request_", "succeeded", "told"),
    [
        (BOTH, True, DONE),
        (BOTH, False, FAILED),
        (HttpRequest(url="x"), True, None),
        (HttpRequest(url="x", callback=DONE), False, None),
        (HttpRequest(url="x", callback=DONE, failure_callback=FAILED, source="m"), False, None),
    ],
)
def test_who_is_told(request_: HttpRequest, succeeded: bool, told: Callback | None) -> None:
    """A callback's own end is told to nobody, whatever it carries."""
    assert callback_of(request_, succeeded=succeeded) == told


def test_without_an_answer_the_status_is_0() -> None:
    body = json.loads(callback_body(ended(succeeded=False)))
    assert (body["status"], body["header"], body["body"], body["dlqId"]) == (0, {}, "", "7-1")
    assert (body["retried"], body["createdAt"], body["sourceBody"]) == (1, 1500, "Yg==")


def test_what_is_encrypted_is_told_to_nobody() -> None:
    assert "sourceBody" not in json.loads(callback_body(ended(body=None)))


def test_a_success_is_no_dead_letter_and_was_never_retried_less_than_not_at_all() -> None:
    body = json.loads(callback_body(ended(attempts=0, response=Response(204))))
    assert (body["status"], body["retried"]) == (204, 0)
    assert "dlqId" not in body


def test_its_message_is_a_request_like_any_other() -> None:
    draft = callback_draft(ID, ended(succeeded=False), FAILED, {"traceparent": "t"})
    (leg,) = draft.legs
    assert (leg.destination, leg.queue, leg.max_attempts, draft.delay) == ("http://b.example", "http", 1, 3.0)
    assert json.loads(draft.headers or "")["traceparent"] == "t"
    request = request_of(draft.headers)
    assert request is not None
    assert (request.url, request.source, request.callback, request.failure_callback) == (FAILED.url, "m", None, None)


def test_of_an_answer_so_much_is_kept() -> None:
    """§3: 16 KiB of the body, 8 KiB of headers, nothing that PostgreSQL cannot store."""
    headers = [("A", "1"), ("A", "2"), ("B", "nul\0"), ("C", "x" * KEPT_HEADER_BYTES), ("D", "not any more")]
    kept = trim_response(500, headers, b"x" * (KEPT_BODY_BYTES + 1))
    assert kept.headers == {"A": "1, 2", "B": "nul�"}
    assert len(kept.body) == KEPT_BODY_BYTES
    assert hash(kept) == hash(trim_response(500, (), b"x" * KEPT_BODY_BYTES))
    assert kept.without_content() == Response(500)

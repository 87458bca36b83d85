"""SEC-14: what is secret or redacted stays so in callbacks, dead letters and wherever else a request is shown, also
where no master key seals it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest

import todoku
from tests.destinations.http.receiving import Receiver, receiving
from tests.encryption.conftest import Boxes, boxes, new_key
from tests.encryption.test_at_rest import python
from tests.encryption.test_requests import _echo, ask, drained, publish, sending
from tests.support.serving import serving
from tests.support.world import World
from todoku.client.failed_events import failed_events

__all__ = ["boxes"]

CANARY = "canary-of-redacted-headers"


@pytest.fixture(params=["no master key", "a master key"])
def box(boxes: Boxes, request: pytest.FixtureRequest) -> todoku.App:
    return sending(boxes, *([] if request.param == "no master key" else [new_key("2026-11")]))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """One that answers with all that it was sent, in its body and in its headers; 500 below /fails."""
    with receiving() as made:
        made.reply = _echo
        yield made


SENT = {
    "forward_authorization": f"Bearer {CANARY}-1", "forward_x_mine": f"{CANARY}-2",
    "forward_x_gitlab_token": f"{CANARY}-3", "forward_x_event_id": f"{CANARY}-4", "forward_x_seen": "seen",
    "redact_fields": "header[x-MINE], header[X-Event-Id]",
}  # fmt: skip


def told_to(receiver: Receiver) -> list[dict[str, Any]]:
    """The bodies of the callbacks."""
    return [json.loads(request.body) for request in receiver.received if request.target == "/told"]


def send(
    box: todoku.App, receiver: Receiver, path: str, body: bytes = b"a body", **headers: str
) -> tuple[str, list[str]]:
    """A request with both callbacks, sent and ended; its id, and all that the server shows of it."""
    told = f"{receiver.url}/told"
    with serving(box) as server:
        sent = {**SENT, **headers}
        id = publish(
            server, f"{receiver.url}/{path}", body, retries="0", callback=told, failure_callback=told, **sent
        )  # fmt: skip
        drained(box)
        paths = ["/dlq", "/events", "/logs", f"/messages/{id}"]
        shown = [server.client("admin").get(f"/v2{each}").text for each in paths]
        return str(id), [*shown, server.client("admin").get(f"/api/v1/messages/{id}").text]


@pytest.mark.parametrize("path", ["works", "fails"])
def test_a_callback_is_told_no_redacted_header(box: todoku.App, receiver: Receiver, path: str) -> None:
    """Neither as what was sent, nor as what the receiver answered with."""
    _id, shown = send(box, receiver, path)
    sent = next(request for request in receiver.received if request.target == f"/{path}")
    assert sent.value("X-Mine") == f"{CANARY}-2", "the receiver gets what it was to get"
    assert sent.value("X-Event-Id") == f"{CANARY}-4"
    (told,) = told_to(receiver)
    answer = base64.b64decode(told["body"]).decode()
    assert CANARY not in json.dumps(told) + answer
    assert told["sourceHeader"]["X-Seen"] == ["seen"]
    assert told["sourceHeader"]["X-Mine"][0].startswith("REDACTED")
    assert "Authorization" not in told["sourceHeader"]
    assert all(CANARY not in each for each in shown)


def test_all_headers_may_be_redacted(box: todoku.App, receiver: Receiver) -> None:
    send(box, receiver, "fails", redact_fields="header", forward_x_seen="not-to-be-seen")
    (told,) = told_to(receiver)
    assert "not-to-be-seen" not in json.dumps(told) + base64.b64decode(told["body"]).decode()


def test_a_redacted_body_is_in_no_callback(box: todoku.App, receiver: Receiver) -> None:
    send(box, receiver, "works", CANARY.encode(), redact_fields="body,header")
    (told,) = told_to(receiver)
    assert base64.b64decode(told["sourceBody"]).startswith(b"REDACTED:")


def test_what_a_receiver_answers_is_not_stored_with_a_secret_in_it(
    box: todoku.App, receiver: Receiver, world: World
) -> None:
    """Dead letters are shown with the last answer; so it is the stored answer that must not have them."""
    send(box, receiver, "fails")
    stored = str(world.sql("select response, error from todoku_attempt"))
    assert "X-Echo" in stored
    assert CANARY not in stored


def test_a_cookie_that_a_receiver_sets_is_not_shown(box: todoku.App, receiver: Receiver) -> None:
    async def reply(_request: Any, writer: Any) -> None:
        writer.write(f"HTTP/1.1 500 X\r\nSet-Cookie: s={CANARY}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    receiver.reply = reply
    _id, shown = send(box, receiver, "fails", failure_callback_retries="0")
    assert all(CANARY not in each for each in shown)
    assert all(CANARY not in json.dumps(told) for told in told_to(receiver))


def test_the_command_line_and_its_replay_show_none(box: todoku.App, receiver: Receiver, world: World) -> None:
    """Replayed, it is sent with all its headers again: they were hidden, not lost."""
    id, _shown = send(box, receiver, "fails")
    shown = python(world, "todoku", "show", "--json", id)
    assert "X-Seen" in shown.stdout
    assert CANARY not in shown.stdout + shown.stderr
    with serving(box) as server:
        (dead,) = [one for one in ask(server, "GET", "/dlq")["messages"] if one["url"].endswith("/fails")]
        ask(server, "POST", f"/dlq/retry/{dead['dlqId']}")
    drained(box)
    sent = [request for request in receiver.received if request.target == "/fails"]
    assert [request.value("X-Mine") for request in sent] == [f"{CANARY}-2"] * 2


def test_a_failed_event_is_kept_without_them(box: todoku.App, receiver: Receiver, world: World) -> None:
    """And with no `REDACTED:…` in their place, which would be sent if it were published anew."""
    failed_events(box)
    send(box, receiver, "fails")
    ((request,),) = world.sql("select request from failed_webhook_events")
    assert "X-Seen" in str(request)
    assert CANARY not in str(request)
    assert "REDACTED" not in str(request)

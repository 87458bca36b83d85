"""A message with nothing masked: its payload, headers, results and tracebacks, decrypted where a key is here.

The audit records who looked, and why, before anything is read.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.errors import CannotOpen, InvalidMessage
from todoku.core.http_request import HTTP, SECRETS, HttpRequest, request_of
from todoku.engine.outbox import Outbox
from todoku.engine.repetition import stored_body
from todoku.store.audit import Signed
from todoku.store.messages import Story

_MOST_RESULTS: Final = 100


class OpenedResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a delivery."""

    delivery_id: int
    result: Any


class OpenedAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The error and the traceback of a failed attempt."""

    delivery_id: int
    epoch: int
    error: str | None
    traceback: str | None


class OpenedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message without masks. `payload` holds JSON, `payload_base64` any other content.

    `unreadable`: why a part could not be decrypted here; that part is null.
    """

    id: UUID
    payload: Any
    payload_base64: str | None
    headers: dict[str, str]
    request: HttpRequest | None
    results: tuple[OpenedResult, ...]
    attempts: tuple[OpenedAttempt, ...]
    unreadable: tuple[str, ...]


def open_message(outbox: Outbox, story: Story, signed: Signed) -> OpenedMessage:
    """Returns everything of a message in the clear, as far as it can be decrypted here; audited. Blocks."""
    message, opener = story.message, outbox.opener
    outbox.store.acts.record("open", f"message:{message.id}", signed)
    reading = _Reading()
    raw = reading.read(lambda: stored_body(outbox, message)) or b""
    payload, encoded = _decoded(raw)
    headers = {} if message.headers is None else msgspec.json.decode(message.headers, type=dict[str, str])
    for own in (HTTP, SECRETS):
        headers.pop(own, None)
    request = request_of(message.headers)
    if request is not None and request.source is None:
        request = reading.read(lambda: opener.request(message))
    names = {row.id: row.destination for row in story.deliveries}
    results = []
    for row in [row for row in story.deliveries if row.status == "succeeded"][:_MOST_RESULTS]:
        if (text := outbox.store.deliveries.result(row.id)) is not None:
            opened = reading.text(opener.result, text, str(message.id), row.destination)
            result = None if opened is None else msgspec.json.decode(opened)
            results.append(OpenedResult(delivery_id=row.id, result=result))
    attempts = [
        OpenedAttempt(
            delivery_id=each.delivery_id, epoch=each.epoch, error=each.error,
            traceback=reading.text(opener.traceback, each.traceback, str(message.id), names.get(each.delivery_id, "")),
        )
        for each in story.attempts
    ]  # fmt: skip
    return OpenedMessage(
        id=message.id, payload=payload, payload_base64=encoded, headers=headers, request=request,
        results=tuple(results), attempts=tuple(attempts), unreadable=tuple(reading.problems),
    )  # fmt: skip


class _Reading:
    """Decrypts parts, and collects why some cannot be."""

    def __init__(self) -> None:
        self.problems: dict[str, None] = {}

    def read(self, part: Callable[[], Any]) -> Any:
        try:
            return part()
        except (CannotOpen, InvalidMessage) as error:
            self.problems[str(error)] = None
            return None

    def text(self, open: Callable[[str, str, str], str], text: str | None, id: str, destination: str) -> str | None:
        found: str | None = None if text is None else self.read(lambda: open(text, id, destination))
        return found


def _decoded(raw: bytes) -> tuple[Any, str | None]:
    """(JSON value, base64), one of which is None."""
    try:
        return (msgspec.json.decode(raw) if raw else None), None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None, base64.b64encode(raw).decode()

"""A queue elsewhere: a todoku server, or QStash."""

from __future__ import annotations

from typing import Any, Final

from todoku.client import qstash_wire
from todoku.client.answers import DeadLetter, DeadLetters, Published, Queued, Which
from todoku.client.http_transport import Request, Transport
from todoku.client.publish_request import Posted
from todoku.core.errors import InvalidMessage, InvalidSetting, QueueRefused, QueueUnavailable
from todoku.core.http_request import origin

_PATIENCE: Final = 30.0
"""Seconds for what is only looked up: nobody's request waits for it."""


class Remote:
    """Speaks to it, with a token. Every call blocks."""

    def __init__(self, url: str, token: str | None, *, deduplicated_for: float | None = None) -> None:
        if not token:
            raise InvalidSetting("token is missing", hint="pass token=…, or set QSTASH_TOKEN")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidSetting(
                "the token holds what no header can", hint="was it copied whole, without a line break?"
            )
        base = url.rstrip("/").removesuffix("/v2")
        self._transport = Transport(base)
        self._path = base.partition("://")[2].partition("/")[2]
        self._token = token
        self._deduplicated_for = deduplicated_for
        self.name = f"queue:{origin(base)}{'/' + self._path if self._path else ''}"

    def publish(self, asked: Posted, body: bytes, *, within: float) -> Published:
        """Have it sent; QueueUnavailable: it may or may not be there, and can be published again."""
        request = qstash_wire.publish_request(asked, body, deduplicated_for=self._deduplicated_for)
        return qstash_wire.published(self._ask(request, within), asked)

    def ping(self, *, within: float) -> None:
        """Whether somebody answers at all; that this token may not look is an answer, too."""
        try:
            self._ask(qstash_wire.request("GET", "keys"), within)
        except QueueRefused:
            return

    def message(self, id: str) -> Queued:
        """A message by its id; QueueRefused with status 404: there is none."""
        return qstash_wire.queued(self._ask(qstash_wire.request("GET", "messages", _id(id))))

    def cancel(self, id: str, *, by: str, why: str) -> None:  # noqa: ARG002 - the queue's audit names the token
        """Let it not be sent."""
        self._ask(qstash_wire.request("DELETE", "messages", _id(id)))

    def dead_letters(self, which: Which, *, cursor: str | None, count: int) -> DeadLetters:
        """A page of dead letters."""
        return qstash_wire.dead_letters(self._ask(qstash_wire.dead_request(which, cursor, count)))

    def dead_letter(self, id: str) -> DeadLetter:
        """One of them; QueueRefused with status 404: there is none."""
        return qstash_wire.dead(self._ask(qstash_wire.request("GET", "dlq", _id(id))))

    def retry(self, id: str, *, by: str, why: str) -> str:  # noqa: ARG002 - as cancel
        """Let a dead letter be sent again, as a new message; returns its id."""
        said = self._ask(qstash_wire.request("POST", "dlq", "retry", _id(id)))
        found = said.get("responses") or [said] if isinstance(said, dict) else []
        return str(found[0].get("messageId", "")) if found and isinstance(found[0], dict) else ""

    def delete(self, id: str, *, by: str, why: str) -> None:  # noqa: ARG002 - as cancel
        """Remove a dead letter for good."""
        self._ask(qstash_wire.request("DELETE", "dlq", _id(id)))

    def close(self) -> None:
        """Give back the connections."""
        self._transport.close()

    def _ask(self, request: Request, within: float = _PATIENCE) -> Any:
        path = f"/{self._path}{request.path}" if self._path else request.path
        headers = {**request.headers, "Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        coded = {name: value.encode().decode("latin-1") for name, value in headers.items()}  # UTF-8, byte for byte
        answer = self._transport.ask(Request(request.method, path, coded, request.body, request.again), within=within)
        try:
            return qstash_wire.accepted(answer)
        except QueueUnavailable as error:
            raise QueueUnavailable(f"{self._transport.url}: {error}") from error


def _id(id: str) -> str:
    """An empty one would stand for all of them: `DELETE /v2/messages/` has cancelled everything before."""
    if not str(id or "").strip():
        raise InvalidMessage(f"id cannot be {id!r}", hint="the id of one message, or of one dead letter")
    return id

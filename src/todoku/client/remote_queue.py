"""The backend for a remote queue: a todoku server or QStash, by the HTTP API of QStash."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from todoku.client.answers import DeadLetter, DeadLetterFilter, DeadLetters, Published, Queued
from todoku.client.http_transport import ServerAnswer, Transport, TransportRequest
from todoku.client.publish_request import CONTENT_TYPE, PublishRequest
from todoku.core.errors import InvalidMessage, InvalidSetting, QueueRefused, QueueUnavailable
from todoku.core.http_request import FlowControl, origin
from todoku.core.msgspec_warmup import warm_up

_URL_CHARACTERS: Final = ":/?[]@!$&'()*+,;=%~"
_ERROR_LENGTH: Final = 300
"""How many characters of an error text are passed on."""

_CHECK_URL: Final = "check that the URL is that of a queue"


def encode_publish(request: PublishRequest, body: bytes, *, deduplicated_for: float | None) -> TransportRequest:
    """The HTTP request that publishes a message. Its deduplication id makes it harmless to repeat."""
    target = quote(request.to, safe=_URL_CHARACTERS)
    path = f"/v2/publish/{target}" if request.queue is None else f"/v2/enqueue/{quote(request.queue, safe='')}/{target}"
    headers = {
        CONTENT_TYPE: request.headers[CONTENT_TYPE],
        "Upstash-Method": request.method,
        "Upstash-Deduplication-Id": request.id,
        **{f"Upstash-Forward-{name}": value for name, value in request.headers.items() if name != CONTENT_TYPE},
        **request.trace,
        **{f"Upstash-Forward-{name}": value for name, value in request.trace.items()},
        **_options(request),
    }
    if deduplicated_for is not None:
        headers["Todoku-Deduplicated-For"] = f"{deduplicated_for:.0f}"
    return TransportRequest("POST", path, headers, body)


def _options(request: PublishRequest) -> dict[str, str]:
    options = {
        "Retries": None if request.retries is None else str(request.retries),
        "Retry-Delay": request.retry_delay,
        "Delay": None if request.delay is None else _interval(request.delay),
        "Not-Before": None if request.at is None else str(math.ceil(request.at)),
        "Timeout": None if request.timeout is None else _interval(request.timeout),
        "Callback": request.callback,
        "Failure-Callback": request.failure_callback,
        "Label": ",".join(request.labels) or None,
        "Flow-Control-Key": None if request.flow is None else request.flow.key,
        "Flow-Control-Value": None if request.flow is None else _flow(request.flow),
    }
    return {f"Upstash-{name}": value for name, value in options.items() if value is not None}


def _interval(seconds: float) -> str:
    """Formats an interval, rounded up: never earlier than requested."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{math.ceil(seconds * 1000)}ms"


def _flow(flow: FlowControl) -> str:
    limits = {"parallelism": flow.parallelism, "rate": flow.rate}
    parts = [f"{name}={value}" for name, value in limits.items() if value is not None]
    return ", ".join([*parts, f"period={_interval(flow.period)}"])


def build_request(method: str, *parts: str) -> TransportRequest:
    """An HTTP request about messages or dead letters. Only POST, which sends a dead letter again, is not repeatable."""
    path = "/v2/" + "/".join(quote(part, safe="") for part in parts)
    return TransportRequest(method, path, {}, is_repeatable=method != "POST")


def build_dead_letter_request(filters: DeadLetterFilter, cursor: str | None, count: int) -> TransportRequest:
    """The HTTP request for a page of dead letters."""
    parameters = {
        "count": str(count),
        "cursor": cursor,
        "queueName": filters.queue,
        None if filters.to is None else "url" if "://" in filters.to else "topicName": filters.to,
        "fromDate": None if filters.since is None else f"{filters.since.timestamp() * 1000:.0f}",
        "toDate": None if filters.until is None else f"{filters.until.timestamp() * 1000:.0f}",
    }
    query = urlencode({name: value for name, value in parameters.items() if name is not None and value is not None})
    return TransportRequest("GET", f"/v2/dlq?{query}", {})


# --------------------------------------------------------------------------------------------------- answers


def read_answer(answer: ServerAnswer) -> Any:
    """Returns the JSON of a successful answer. QueueRefused: 3xx, 4xx. QueueUnavailable: 5xx, or no JSON."""
    if 200 <= answer.status < 300:
        try:
            return json.loads(answer.body) if answer.body.strip() else {}
        except ValueError as error:
            raise QueueUnavailable(f"the answer is not JSON: {error}", hint=_CHECK_URL) from error
    text = _error(answer)
    if answer.status >= 500:
        raise QueueUnavailable(f"the queue answered {answer.status}: {text}")
    raise QueueRefused(f"the queue answered {answer.status}: {text}", hint=_hint(answer), status=answer.status)


def _error(answer: ServerAnswer) -> str:
    try:
        text = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        text = answer.body.decode("utf-8", "replace")
    return str(text).strip()[:_ERROR_LENGTH] or "no reason given"


def _hint(answer: ServerAnswer) -> str:
    match answer.status:
        case 401 | 403:
            return "check the token and its scopes"
        case 429:
            after = answer.headers.get("retry-after")
            return "too many requests; send fewer" if after is None else f"too many requests; try again in {after} s"
        case status if status < 400:
            return "redirects are not followed: give the final address"
        case _:
            return ""


def read_published(answer: Any, request: PublishRequest) -> Published:
    """Reads the answer to a publish: one message, or one per receiver of a topic."""
    each = answer if isinstance(answer, list) else [answer]
    ids = tuple(str(one["messageId"]) for one in each if isinstance(one, dict) and "messageId" in one)
    if not ids:
        raise QueueUnavailable("the answer has no messageId", hint=_CHECK_URL)
    duplicate = all(one.get("deduplicated") is True for one in each)
    return Published(id=ids[0], ids=ids, duplicate=duplicate, deduplication_id=request.id)


class _Message(msgspec.Struct):
    """A message as the API returns it; for a dead letter, also its id and the receiver's last response."""

    messageId: str  # noqa: N815 - names of the API
    createdAt: int  # noqa: N815
    url: str = ""
    method: str = "POST"
    topicName: str | None = None  # noqa: N815
    queueName: str | None = None  # noqa: N815
    header: dict[str, list[str]] | None = None
    body: str | None = None
    bodyBase64: str | None = None  # noqa: N815
    dlqId: str = ""  # noqa: N815
    responseStatus: int = 0  # noqa: N815
    responseBody: str | None = None  # noqa: N815
    responseBodyBase64: str | None = None  # noqa: N815
    failedAt: int | None = None  # noqa: N815 - of a todoku server


warm_up(_Message)


def read_message(answer: Any) -> Queued:
    """Reads a message."""
    return _queued(_decode(answer))


def read_dead_letter(answer: Any) -> DeadLetter:
    """Reads a dead letter."""
    found = _decode(answer)
    answered = _bytes(found.responseBody, found.responseBodyBase64).decode("utf-8", "replace")
    text = f"HTTP {found.responseStatus}" if found.responseStatus else "no answer"
    return DeadLetter(
        id=found.dlqId,
        message=_queued(found),
        status=found.responseStatus,
        error=f"{text}: {answered[:_ERROR_LENGTH]}" if answered else text,
        failed_at=_failed_at(found),
    )


def _failed_at(found: _Message) -> datetime | None:
    """When it became a dead letter: as a todoku server says, or by the id of QStash, which begins with the time."""
    known = re.fullmatch(r"([0-9]{13})-[0-9]+", found.dlqId)
    milliseconds = int(known[1]) if found.failedAt is None and known else found.failedAt
    return None if milliseconds is None else datetime.fromtimestamp(milliseconds / 1000, UTC)


def read_dead_letters(answer: Any) -> DeadLetters:
    """Reads a page of dead letters."""
    items: Iterable[Any] = answer.get("messages") or () if isinstance(answer, dict) else ()
    return DeadLetters(tuple(read_dead_letter(one) for one in items), (answer.get("cursor") or None) if items else None)


def _decode(answer: Any) -> _Message:
    try:
        return msgspec.convert(answer, _Message, strict=False)
    except msgspec.ValidationError as error:
        raise QueueUnavailable(f"the answer is not a message: {error}", hint=_CHECK_URL) from error


def _queued(found: _Message) -> Queued:
    return Queued(
        id=found.messageId,
        to=found.url or found.topicName or "",
        method=found.method,
        queue=found.queueName,
        headers={name: ", ".join(values) for name, values in (found.header or {}).items()},
        body=_bytes(found.body, found.bodyBase64),
        created_at=datetime.fromtimestamp(found.createdAt / 1000, UTC),
    )


def _bytes(text: str | None, coded: str | None) -> bytes:
    try:
        return (text or "").encode() if coded is None else base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        return (coded or "").encode()


_TIMEOUT: Final = 30.0
"""Seconds for all calls but publish: no request of the application waits for them."""


class RemoteBackend:
    """A remote queue, by its URL and a token. Every call blocks."""

    def __init__(self, url: str, token: str | None, *, deduplicated_for: float | None = None) -> None:
        if not token:
            raise InvalidSetting("token is missing", hint="pass token=…, or set QSTASH_TOKEN")
        if not token.isascii() or not token.isprintable() or " " in token:
            raise InvalidSetting(
                "the token has characters that are not allowed in a header",
                hint="copy it again, without spaces or line breaks",
            )
        base = url.rstrip("/").removesuffix("/v2")
        self._transport = Transport(base)
        self._path = base.partition("://")[2].partition("/")[2]
        self._token = token
        self._deduplicated_for = deduplicated_for
        self.name = f"queue:{origin(base)}{'/' + self._path if self._path else ''}"

    def publish(self, request: PublishRequest, body: bytes, *, within: float) -> Published:
        """Publishes. QueueUnavailable: the queue may or may not have the message; it is safe to publish again."""
        http_request = encode_publish(request, body, deduplicated_for=self._deduplicated_for)
        return read_published(self._send(http_request, within), request)

    def ping(self, *, within: float) -> None:
        """Raises QueueUnavailable unless the queue answers. A refusal is an answer, too."""
        try:
            self._send(build_request("GET", "keys"), within)
        except QueueRefused:
            return

    def message(self, id: str) -> Queued:
        """Returns a message by its id. QueueRefused with status 404: there is none."""
        return read_message(self._send(build_request("GET", "messages", _id(id))))

    def cancel(self, id: str, *, by: str, why: str) -> None:  # noqa: ARG002 - the queue's audit names the token
        """Cancels a message that has not been sent."""
        self._send(build_request("DELETE", "messages", _id(id)))

    def dead_letters(self, filters: DeadLetterFilter, *, cursor: str | None, count: int) -> DeadLetters:
        """Returns a page of dead letters."""
        return read_dead_letters(self._send(build_dead_letter_request(filters, cursor, count)))

    def dead_letter(self, id: str) -> DeadLetter:
        """Returns a dead letter by its id. QueueRefused with status 404: there is none."""
        return read_dead_letter(self._send(build_request("GET", "dlq", _id(id))))

    def retry(self, id: str, *, by: str, why: str) -> str:  # noqa: ARG002 - as cancel
        """Sends a dead letter again as a new message; returns its id."""
        answer = self._send(build_request("POST", "dlq", "retry", _id(id)))
        found = answer.get("responses") or [answer] if isinstance(answer, dict) else []
        return str(found[0].get("messageId", "")) if found and isinstance(found[0], dict) else ""

    def delete(self, id: str, *, by: str, why: str) -> None:  # noqa: ARG002 - as cancel
        """Deletes a dead letter."""
        self._send(build_request("DELETE", "dlq", _id(id)))

    def close(self) -> None:
        """Closes idle connections."""
        self._transport.close()

    def _send(self, request: TransportRequest, within: float = _TIMEOUT) -> Any:
        path = f"/{self._path}{request.path}" if self._path else request.path
        headers = {**request.headers, "Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        coded = {name: value.encode().decode("latin-1") for name, value in headers.items()}  # UTF-8, byte for byte
        answer = self._transport.send(
            TransportRequest(request.method, path, coded, request.body, request.is_repeatable), within=within
        )
        try:
            return read_answer(answer)
        except QueueUnavailable as error:
            raise QueueUnavailable(f"{self._transport.url}: {error}") from error


def _id(id: str) -> str:
    """Refuses an empty id: `DELETE /v2/messages/` would cancel every message."""
    if not str(id or "").strip():
        raise InvalidMessage(f"id cannot be {id!r}", hint="give the id of one message or of one dead letter")
    return id

"""A queue elsewhere: a todoku server, or QStash. Requests out, answers in, as QStash's HTTP API has them."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from todoku.client.answers import DeadLetter, DeadLetters, Published, Queued, Which
from todoku.client.http_transport import ServerAnswer, Transport, TransportRequest
from todoku.client.publish_request import CONTENT_TYPE, Posted
from todoku.core.errors import InvalidMessage, InvalidSetting, QueueRefused, QueueUnavailable
from todoku.core.http_request import Flow, origin
from todoku.core.msgspec_warmup import learned

_URL_CHARACTERS: Final = ":/?[]@!$&'()*+,;=%~"
_SHOWN: Final = 300
"""So much of an error's text is passed on."""


def publish_request(asked: Posted, body: bytes, *, deduplicated_for: float | None) -> TransportRequest:
    """The request that has a message sent. Its id makes it harmless to repeat."""
    where = quote(asked.to, safe=_URL_CHARACTERS)
    path = f"/v2/publish/{where}" if asked.queue is None else f"/v2/enqueue/{quote(asked.queue, safe='')}/{where}"
    headers = {
        CONTENT_TYPE: asked.headers[CONTENT_TYPE],
        "Upstash-Method": asked.method,
        "Upstash-Deduplication-Id": asked.id,
        **{f"Upstash-Forward-{name}": value for name, value in asked.headers.items() if name != CONTENT_TYPE},
        **asked.trace,
        **{f"Upstash-Forward-{name}": value for name, value in asked.trace.items()},
        **_options(asked),
    }
    if deduplicated_for is not None:
        headers["Todoku-Deduplicated-For"] = f"{deduplicated_for:.0f}"
    return TransportRequest("POST", path, headers, body)


def _options(asked: Posted) -> dict[str, str]:
    said = {
        "Retries": None if asked.retries is None else str(asked.retries),
        "Retry-Delay": asked.retry_delay,
        "Delay": None if asked.delay is None else _interval(asked.delay),
        "Not-Before": None if asked.at is None else str(math.ceil(asked.at)),
        "Timeout": None if asked.timeout is None else _interval(asked.timeout),
        "Callback": asked.callback,
        "Failure-Callback": asked.failure_callback,
        "Label": ",".join(asked.labels) or None,
        "Flow-Control-Key": None if asked.flow is None else asked.flow.key,
        "Flow-Control-Value": None if asked.flow is None else _flow(asked.flow),
    }
    return {f"Upstash-{name}": value for name, value in said.items() if value is not None}


def _interval(seconds: float) -> str:
    """Never earlier than asked for: what is less than a millisecond is one."""
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{math.ceil(seconds * 1000)}ms"


def _flow(flow: Flow) -> str:
    said = {"parallelism": flow.parallelism, "rate": flow.rate}
    parts = [f"{name}={value}" for name, value in said.items() if value is not None]
    return ", ".join([*parts, f"period={_interval(flow.period)}"])


def request(method: str, *parts: str) -> TransportRequest:
    """A request about what is there. Only to let something happen again is not to be repeated."""
    path = "/v2/" + "/".join(quote(part, safe="") for part in parts)
    return TransportRequest(method, path, {}, again=method != "POST")


def dead_request(which: Which, cursor: str | None, count: int) -> TransportRequest:
    """The request for a page of dead letters."""
    said = {
        "count": str(count),
        "cursor": cursor,
        "queueName": which.queue,
        None if which.to is None else "url" if "://" in which.to else "topicName": which.to,
        "fromDate": None if which.since is None else f"{which.since.timestamp() * 1000:.0f}",
        "toDate": None if which.until is None else f"{which.until.timestamp() * 1000:.0f}",
    }
    query = urlencode({name: value for name, value in said.items() if name is not None and value is not None})
    return TransportRequest("GET", f"/v2/dlq?{query}", {})


# --------------------------------------------------------------------------------------------------- answers


def accepted(answer: ServerAnswer) -> Any:
    """What an answer says. QueueRefused: no. QueueUnavailable: whoever answered is not able to."""
    if 200 <= answer.status < 300:
        try:
            return json.loads(answer.body) if answer.body.strip() else {}
        except ValueError as error:
            raise QueueUnavailable(f"the answer is no JSON: {error}", hint="does the URL name a queue?") from error
    text = _error(answer)
    if answer.status >= 500:
        raise QueueUnavailable(f"the queue answered {answer.status}: {text}")
    raise QueueRefused(f"the queue answered {answer.status}: {text}", hint=_hint(answer), status=answer.status)


def _error(answer: ServerAnswer) -> str:
    try:
        text = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        text = answer.body.decode("utf-8", "replace")
    return str(text).strip()[:_SHOWN] or "no reason given"


def _hint(answer: ServerAnswer) -> str:
    match answer.status:
        case 401 | 403:
            return "is the token right, and may it do this?"
        case 429:
            after = answer.headers.get("retry-after")
            return "too much at once" if after is None else f"too much at once; again in {after} s"
        case status if status < 400:
            return "redirects are not followed: give the address itself"
        case _:
            return ""


def published(said: Any, asked: Posted) -> Published:
    """What became of a publish: one message, or one for each receiver of a topic."""
    each = said if isinstance(said, list) else [said]
    ids = tuple(str(one["messageId"]) for one in each if isinstance(one, dict) and "messageId" in one)
    if not ids:
        raise QueueUnavailable("the answer has no messageId", hint="does the URL name a queue?")
    duplicate = all(one.get("deduplicated") is True for one in each)
    return Published(id=ids[0], ids=ids, duplicate=duplicate, deduplication_id=asked.id)


class _Message(msgspec.Struct):
    """A message on the wire; of a dead one, also its number and the last answer."""

    messageId: str  # noqa: N815 - the wire's own names
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


learned(_Message)


def queued(said: Any) -> Queued:
    """A message, as the queue tells of it."""
    return _queued(_read(said))


def dead(said: Any) -> DeadLetter:
    """A dead letter, as the queue tells of it."""
    found = _read(said)
    answered = _bytes(found.responseBody, found.responseBodyBase64).decode("utf-8", "replace")
    text = f"HTTP {found.responseStatus}" if found.responseStatus else "no answer"
    return DeadLetter(
        id=found.dlqId,
        message=_queued(found),
        status=found.responseStatus,
        error=f"{text}: {answered[:_SHOWN]}" if answered else text,
    )


def dead_letters(said: Any) -> DeadLetters:
    """A page of them."""
    items: Iterable[Any] = said.get("messages") or () if isinstance(said, dict) else ()
    return DeadLetters(tuple(dead(one) for one in items), (said.get("cursor") or None) if items else None)


def _read(said: Any) -> _Message:
    try:
        return msgspec.convert(said, _Message, strict=False)
    except msgspec.ValidationError as error:
        raise QueueUnavailable(f"the answer is no message: {error}", hint="does the URL name a queue?") from error


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
        request = publish_request(asked, body, deduplicated_for=self._deduplicated_for)
        return published(self._ask(request, within), asked)

    def ping(self, *, within: float) -> None:
        """Whether somebody answers at all; that this token may not look is an answer, too."""
        try:
            self._ask(request("GET", "keys"), within)
        except QueueRefused:
            return

    def message(self, id: str) -> Queued:
        """A message by its id; QueueRefused with status 404: there is none."""
        return queued(self._ask(request("GET", "messages", _id(id))))

    def cancel(self, id: str, *, by: str, why: str) -> None:  # noqa: ARG002 - the queue's audit names the token
        """Let it not be sent."""
        self._ask(request("DELETE", "messages", _id(id)))

    def dead_letters(self, which: Which, *, cursor: str | None, count: int) -> DeadLetters:
        """A page of dead letters."""
        return dead_letters(self._ask(dead_request(which, cursor, count)))

    def dead_letter(self, id: str) -> DeadLetter:
        """One of them; QueueRefused with status 404: there is none."""
        return dead(self._ask(request("GET", "dlq", _id(id))))

    def retry(self, id: str, *, by: str, why: str) -> str:  # noqa: ARG002 - as cancel
        """Let a dead letter be sent again, as a new message; returns its id."""
        said = self._ask(request("POST", "dlq", "retry", _id(id)))
        found = said.get("responses") or [said] if isinstance(said, dict) else []
        return str(found[0].get("messageId", "")) if found and isinstance(found[0], dict) else ""

    def delete(self, id: str, *, by: str, why: str) -> None:  # noqa: ARG002 - as cancel
        """Remove a dead letter for good."""
        self._ask(request("DELETE", "dlq", _id(id)))

    def close(self) -> None:
        """Give back the connections."""
        self._transport.close()

    def _ask(self, request: TransportRequest, within: float = _PATIENCE) -> Any:
        path = f"/{self._path}{request.path}" if self._path else request.path
        headers = {**request.headers, "Authorization": f"Bearer {self._token}", "Accept": "application/json"}
        coded = {name: value.encode().decode("latin-1") for name, value in headers.items()}  # UTF-8, byte for byte
        answer = self._transport.ask(
            TransportRequest(request.method, path, coded, request.body, request.again), within=within
        )
        try:
            return accepted(answer)
        except QueueUnavailable as error:
            raise QueueUnavailable(f"{self._transport.url}: {error}") from error


def _id(id: str) -> str:
    """An empty one would stand for all of them: `DELETE /v2/messages/` has cancelled everything before."""
    if not str(id or "").strip():
        raise InvalidMessage(f"id cannot be {id!r}", hint="the id of one message, or of one dead letter")
    return id

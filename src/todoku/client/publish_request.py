"""A checked request to publish: the same for every backend, and as it is stored in the spool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, TypedDict

import msgspec

from todoku.core.address_guard import check_url
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import CORRELATION, FlowControl, check_headers, is_forwardable
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.core.msgspec_warmup import warm_up
from todoku.core.outcome import Duration, seconds
from todoku.core.topic_pattern import check_topic
from todoku.engine.publish import check_text, encode

CONTENT_TYPE: Final = "Content-Type"
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
"""The header by which a receiver recognises a repetition, by whichever way the message reached it."""

MAX_RETRIES: Final = 1_000


class Sending(TypedDict, total=False):
    """The options of `publish` and `enqueue`.

    `retries` after the first attempt (default: the queue's, 3); `retry_delay`: an expression in milliseconds;
    `delay` or `at`: send no earlier; `deduplication_id`: within the queue's window, a repetition is a duplicate;
    `timeout` of one attempt; `method` and `headers` of the request; `callback`, `failure_callback`: URLs that receive
    the outcome; `labels`; `flow`: a key with a limit of concurrent requests and of requests per period.
    """

    retries: int | None
    retry_delay: str | None
    delay: Duration | None
    at: datetime | None
    deduplication_id: str | None
    timeout: Duration | None
    method: str
    headers: Mapping[str, str] | None
    callback: str | None
    failure_callback: str | None
    labels: Sequence[str]
    flow: FlowControl | None


class PublishRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything but the body. `to` is a URL or a topic."""

    to: str
    id: str
    """The deduplication id: the caller's, or a generated one. It stays the same however often this is sent."""
    queue: str | None = None
    method: str = "POST"
    headers: dict[str, str] = {}
    """Headers for the receiver, with the content type."""
    retries: int | None = None
    retry_delay: str | None = None
    delay: float | None = None
    at: float | None = None
    timeout: float | None = None
    callback: str | None = None
    failure_callback: str | None = None
    labels: tuple[str, ...] = ()
    flow: FlowControl | None = None
    trace: dict[str, str] = {}
    """Headers of the trace it was published in."""

    @property
    def is_url(self) -> bool:
        """Whether `to` is a URL; else it is a topic."""
        return "://" in self.to


warm_up(PublishRequest)


def check_publish(
    to: str, queue: str | None, payload: object, given: Sending, *, new_id: str, trace: Mapping[str, str]
) -> tuple[PublishRequest, bytes]:
    """Checks a publish. Returns the request and its body: bytes unchanged, anything else as JSON.

    InvalidMessage names the option that is wrong.
    """
    check_text(to, "destination", 4096)
    if queue is not None:
        check_text(queue, "queue", MAX_TOPIC_LENGTH)
    to = _destination(to)
    raw = isinstance(payload, bytes | bytearray | memoryview)
    body = bytes(payload) if isinstance(payload, bytes | bytearray | memoryview) else encode(payload).encode()
    id = given.get("deduplication_id")
    if id is not None:
        check_text(id, "deduplication_id", MAX_KEY_LENGTH)
        check_headers({"deduplication_id": id})  # it is sent in a header
    id = id or new_id
    headers = _headers(given.get("headers"))
    defaults = {CONTENT_TYPE: "application/octet-stream" if raw else "application/json", IDEMPOTENCY_KEY: id}
    at, delay = given.get("at"), given.get("delay")
    if at is not None and delay is not None:
        raise InvalidMessage("delay and at cannot both be given", hint="pass only one of them")
    return PublishRequest(
        to=to,
        id=id,
        queue=queue,
        method=_method(given.get("method", "POST")),
        headers=defaults | headers,
        retries=_retries(given.get("retries")),
        retry_delay=given.get("retry_delay"),
        delay=None if delay is None else seconds(delay, what="delay"),
        at=None if at is None else _moment(at),
        timeout=None if (limit := given.get("timeout")) is None else seconds(limit, what="timeout"),
        callback=_url(given.get("callback"), "callback"),
        failure_callback=_url(given.get("failure_callback"), "failure_callback"),
        labels=_labels(given.get("labels", ())),
        flow=given.get("flow"),
        trace=_without(trace, headers),
    ), body


def _without(trace: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """The trace headers that the caller has not set: a correlation id of its own, by either name, counts."""
    given = {name.lower() for name in headers}
    if not given.isdisjoint(CORRELATION):
        given.update(CORRELATION)
    return {name: value for name, value in trace.items() if name.lower() not in given}


def with_fixed_time(request: PublishRequest, now: float) -> PublishRequest:
    """The same request with its delay turned into a time: the delay counts from now, not from when it is forwarded."""
    if request.delay is None:
        return request
    return msgspec.structs.replace(request, delay=None, at=now + request.delay)


def _destination(to: str) -> str:
    if "://" in to:
        return check_url(to, what="destination")
    try:
        return check_topic(to)
    except InvalidMessage:
        hint = "give a URL (https://…), or a topic: words of letters, digits, - _ : separated by dots"
        raise InvalidMessage(f"the destination cannot be {to[:200]!r}", hint=hint) from None


def _url(url: str | None, what: str) -> str | None:
    return None if url is None else check_url(url, what=what)


def _headers(given: Mapping[str, str] | None) -> dict[str, str]:
    found = check_headers(given or {})
    if wrong := [name for name in found if not is_forwardable(name)]:
        hint = "leave it out: headers of the connection, Upstash-* and Webhook-* are set by the queue"
        raise InvalidMessage(f"the header {wrong[0]} cannot be forwarded", hint=hint)
    return found


def _method(method: object) -> str:
    if not isinstance(method, str) or not method.isalpha() or not method.isascii() or len(method) > 16:
        raise InvalidMessage(f"method cannot be {method!r}", hint="use POST, PUT, PATCH, DELETE or GET")
    return method.upper()


def _retries(retries: object) -> int | None:
    if retries is None:
        return None
    if type(retries) is not int or not 0 <= retries <= MAX_RETRIES:
        raise InvalidMessage(f"retries cannot be {retries!r}", hint=f"give a whole number from 0 to {MAX_RETRIES}")
    return retries


def _moment(at: datetime) -> float:
    if getattr(at, "tzinfo", None) is None:
        raise InvalidMessage(f"at={at!r} has no time zone", hint="use an aware datetime, e.g. datetime.now(UTC)")
    return at.timestamp()


def _labels(labels: Sequence[str]) -> tuple[str, ...]:
    if isinstance(labels, str):
        raise InvalidMessage(f"labels cannot be {labels!r}", hint='give a list of strings: labels=["payments"]')
    for label in labels:
        check_text(label, "label", MAX_TOPIC_LENGTH)
        if "," in label:
            raise InvalidMessage(f"a label cannot be {label!r}", hint="leave out the comma: it separates labels")
        check_headers({"labels": label})
    return tuple(labels)

"""1. Publish: check everything at the edge, resolve routes, and make a draft that the store can take as it is.

Bad input is refused here, with nothing stored; what passes is in a form that both databases take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, cast
from uuid import UUID

import msgspec
from cachetools import TTLCache
from msgspec.structs import replace

from todoku.core.ending import BATCH
from todoku.core.errors import InvalidMessage, NoRoute
from todoku.core.identity import digest, digest_bytes, gate_id, key_hash, lane_id, publish_scope, unique_scope
from todoku.core.message import LARGE_PAYLOAD, MAX_KEY_LENGTH, MAX_TOPIC_LENGTH, PRIORITIES, Draft, Idempotency, Leg
from todoku.core.outcome import Duration, seconds
from todoku.core.topic_pattern import Route, check_topic, resolve
from todoku.engine.json_form import ENCODER
from todoku.engine.observability.log import Log
from todoku.engine.registry import Registry


def directed(
    routes: Sequence[Route], registry: Registry, *, to: str | None, max_attempts: int | None, usual: int
) -> list[Route]:
    """The App's routes, or one to `to`: through the queue and in the order the App knows it by, if it knows it."""
    if to is not None:
        target = registry.get(to)
        plain = Route(pattern="**", destination=to, queue=target.queue if target else to, max_attempts=usual)
        known = next((route for route in routes if route.destination == to), plain)
        routes = [replace(known, pattern="**")]
    if max_attempts is not None:
        return [replace(route, max_attempts=max_attempts) for route in routes]
    return list(routes)


MAX_DEPTH: Final = 100
"""Deeper JSON is refused: somebody's decoder would fall over it long after it was acknowledged."""

_LONGEST_DELAY: Final = 10 * 365 * 86_400.0


class MessageOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to publish, apart from what: the keywords of `publish`."""

    key: str | None = None
    idempotency_key: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    expires: Duration | None = None
    priority: int = 0
    headers: Mapping[str, str] | None = None
    labels: Sequence[str] = ()
    reopen: bool = False
    unique_for: float | None = None
    """Seconds during which an equal payload is a duplicate; an idempotency key goes before it."""
    unique_until_end: bool = False
    """With `unique_for`: also afterwards, while the first has not ended."""


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A payload that went through `encode` already."""

    text: str


class PreparedDraft(msgspec.Struct, frozen=True):
    """Everything of a publish but its payload, checked: for all messages of a batch that differ in nothing else."""

    draft: Draft
    """What the messages have in common; its id and payload are those of none."""
    options: MessageOptions
    routes: Sequence[Route]
    wanting: Route | None
    """A projection that takes the key from the payload, because the publisher gives none."""
    max_payload_bytes: int
    no_route: Literal["error", "dead_letter"]


def prepare(
    topic: str,
    options: MessageOptions,
    routes: Sequence[Route],
    *,
    max_payload_bytes: int,
    no_route: Literal["error", "dead_letter"] = "error",
) -> PreparedDraft:
    """Checks how messages are to be published, and resolves their routes, or raises InvalidMessage."""
    check_text(topic, "topic", MAX_TOPIC_LENGTH)
    check_topic(topic)
    taken = resolve(routes, topic)
    wanting = next((route for route in taken if route.key is not None), None) if options.key is None else None
    if options.key is not None:
        check_text(options.key, "key", MAX_KEY_LENGTH)
    draft = Draft(
        id=_NO_ID,
        topic=topic,
        type=topic,
        key=options.key,
        headers=_headers(options.headers),
        labels=encode(list(options.labels)) if options.labels else None,
        legs=_legs(topic, options, taken, no_route),
        at=_moment(options.at),
        delay=_delay(options),
        expires=None if options.expires is None else _limited(options.expires, "expires", zero=False),
    )
    return PreparedDraft(draft, options, taken, wanting, max_payload_bytes, no_route)


_NO_ID: Final = UUID(int=0)


def fill(prepared: PreparedDraft, id: UUID, payload: object) -> Draft:
    """Returns the checked draft of one message, or raises InvalidMessage."""
    common = prepared.draft
    if prepared.wanting is not None:
        common = _keyed(prepared, encode(payload) if not isinstance(payload, bytes) else None)
    if isinstance(payload, bytes):
        _check_size(common.topic, len(payload), prepared.max_payload_bytes)
        draft = replace(common, id=id, payload_bytes=payload, content_type="application/octet-stream")
    else:
        text = encode(payload)
        _check_size(common.topic, _size(text), prepared.max_payload_bytes)
        draft = replace(common, id=id, payload=text)
    options = prepared.options
    if options.idempotency_key is None and options.unique_for is None:
        return draft
    return replace(draft, idempotency=_idempotency(draft, options))


def fills_alike(prepared: PreparedDraft) -> bool:
    """Whether `fill` gives a message with a JSON payload nothing of its own but its id and payload."""
    options = prepared.options
    return prepared.wanting is None and options.idempotency_key is None and options.unique_for is None


def check_sizes(prepared: PreparedDraft, payloads: list[str]) -> None:
    """Raises InvalidMessage if one of these JSON texts is too large."""
    most = min(prepared.max_payload_bytes, LARGE_PAYLOAD)
    if payloads and 4 * len(max(payloads, key=len)) > most:  # a character has four bytes at most
        for text in payloads:
            _check_size(prepared.draft.topic, _size(text), prepared.max_payload_bytes)


def draft(
    id: UUID, topic: str, payload: object, options: MessageOptions, routes: Sequence[Route], *,
    max_payload_bytes: int, no_route: Literal["error", "dead_letter"] = "error",
) -> Draft:  # fmt: skip
    """A checked draft with its deliveries, or InvalidMessage."""
    prepared = prepare(topic, options, routes, max_payload_bytes=max_payload_bytes, no_route=no_route)
    return fill(prepared, id, payload)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _check_size(topic: str, size: int, most: int) -> None:
    if size > most:
        raise InvalidMessage(
            f"the payload has {size} bytes, {most} are allowed",
            hint="store it elsewhere and send a reference, or raise TODOKU_MAX_PAYLOAD_BYTES",
        )
    if size > LARGE_PAYLOAD:
        _warn_of_size(topic, size)


_warned: Final[TTLCache[str, None]] = TTLCache(maxsize=1024, ttl=3600)


def _warn_of_size(topic: str, size: int) -> None:
    """Logs that a topic has large payloads, once an hour."""
    if topic not in _warned:
        _warned[topic] = None
        hint = "store it where it belongs, and send its id"
        Log(topic=topic).warning("LARGE_PAYLOAD", bytes=size, more_than=LARGE_PAYLOAD, hint=hint)


def encode(payload: object) -> str:
    """`payload` as JSON text, exactly as it will be stored; refuses what does not survive the way."""
    if isinstance(payload, Encoded):
        return payload.text
    if (flat := _flat_json(payload)) is not None:
        return flat
    try:
        text = ENCODER.encode(payload)
    except RecursionError:
        raise _too_deep() from None
    except InvalidMessage:
        raise
    except (TypeError, ValueError) as error:
        if "Circular" in str(error):
            raise _too_deep() from None
        raise InvalidMessage(f"the payload is not JSON: {error}", hint="send plain values; NaN has no JSON") from None
    check_json(text)
    return text


def check_json(text: str) -> None:
    """InvalidMessage unless this JSON text survives the way through both databases."""
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise _too_deep()
    if "\\u0000" in text and _has_nul(json.loads(text)):
        raise InvalidMessage("the payload has a NUL character in a text", hint="send it as bytes, or leave it out")
    _check_surrogates(text, "payload")


def _too_deep() -> InvalidMessage:
    return InvalidMessage(f"the payload is nested deeper than {MAX_DEPTH}, or contains itself", hint="flatten it")


SCALARS: Final = frozenset({str, int, bool, type(None)})
"""Types whose JSON by msgspec is that of `ENCODER`, byte by byte. Not float: msgspec makes null of NaN."""


_encode_scalars: Final = msgspec.json.Encoder().encode


def _flat_json(payload: object) -> str | None:
    """A flat object of scalars as JSON text, which most payloads are, at an eighth of the cost; None: it is another."""
    if type(payload) is not dict:
        return None
    for name, value in payload.items():
        if type(name) is not str or type(value) not in SCALARS:
            return None
    return scalars_json(payload)


def scalars_json(payload: dict[str, object]) -> str | None:
    """A flat object of values of the types in `SCALARS` as JSON text; None: it has to be encoded as any other."""
    try:
        text = _encode_scalars(payload).decode()
    except (ValueError, OverflowError):  # half a surrogate pair, or a larger number: the error is the encoder's
        return None
    return None if "\\u0000" in text else text  # a NUL character is refused by `check_json`


def _depth(text: str) -> int:
    """How deep JSON text is nested. A scan, not a parse: a parser would recurse."""
    deepest = depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            in_string = escaped or character != '"'
            escaped = character == "\\" and not escaped
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth -= 1
    return deepest


def _has_nul(value: object) -> bool:
    match value:
        case str():
            return "\0" in value
        case list():
            return any(map(_has_nul, value))
        case dict():
            return any(_has_nul(name) or _has_nul(item) for name, item in value.items())
        case _:
            return False


def check_text(text: object, what: str, longest: int, *, empty: bool = False) -> None:
    """InvalidMessage unless this is a text that both databases can store, and not too long."""
    if not isinstance(text, str):
        raise InvalidMessage(f"the {what} must be text, not {type(text).__name__}", hint=f"pass str({what})")
    if len(text) > longest or not (text or empty):
        raise InvalidMessage(f"the {what} has {len(text)} characters", hint=f"1 to {longest} are allowed")
    if "\0" in text:
        raise InvalidMessage(f"the {what} has a NUL character", hint="leave it out")
    _check_surrogates(text, what)


def _check_surrogates(text: str, what: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the {what} has half a surrogate pair at {error.start}",
            hint="decode the text it came from correctly",
        ) from None


def _headers(headers: Mapping[str, str] | None) -> str | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping):
        raise InvalidMessage(f"headers cannot be {type(headers).__name__}", hint='pass a mapping: {"name": "value"}')
    for name, value in headers.items():
        check_text(name, "name of a header", 256)
        if name == BATCH:
            raise InvalidMessage(f"the header {BATCH} is todoku's own", hint="leave it out; box.batch(…) sets it")
        check_text(value, f"header {name!r}", 65536, empty=True)
    return encode(dict(headers)) if headers else None


def _idempotency(draft: Draft, options: MessageOptions) -> Idempotency:
    key, text, topic = options.idempotency_key, draft.payload, draft.topic
    body = digest(json.loads(text)) if text is not None else digest_bytes(draft.payload_bytes or b"")
    if key is None:
        lasts, until_end = options.unique_for, options.unique_until_end
        return Idempotency(unique_scope(topic), body, key_hash(body), body, lasts=lasts, until_end=until_end)
    check_text(key, "idempotency key", MAX_KEY_LENGTH)
    return Idempotency(publish_scope(topic), key, key_hash(key), body, options.reopen)


def _keyed(prepared: PreparedDraft, text: str | None) -> Draft:
    """Returns what a message has in common with others, with the key of its payload, which a projection needs."""
    topic, wanting = prepared.draft.topic, cast("Route", prepared.wanting)
    options = replace(prepared.options, key=_payload_key(topic, text, wanting))
    check_text(options.key, "key", MAX_KEY_LENGTH)
    legs = _legs(topic, options, prepared.routes, prepared.no_route)
    return replace(prepared.draft, key=options.key, legs=legs)


def _payload_key(topic: str, text: str | None, route: Route) -> str:
    """Returns the key that a payload has in the field that a projection names."""
    value = None if text is None else json.loads(text)
    for name in (route.key or "").split("."):
        value = value.get(name) if isinstance(value, dict) else None
    if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
        return str(value)
    raise InvalidMessage(
        f"a message of {topic!r} needs a key: the projection {route.destination!r} writes versions, and only messages "
        f"of one key have an order",
        hint=f"publish(…, key=…), or a payload with the field {route.key!r}",
    )


def _legs(topic: str, options: MessageOptions, taken: Sequence[Route], no_route: str) -> tuple[Leg, ...]:
    if type(options.priority) is not int or options.priority not in PRIORITIES:
        raise InvalidMessage(f"priority cannot be {options.priority!r}", hint="0 to 15, larger is sooner")
    if not taken:
        if no_route == "dead_letter":
            return (Leg(destination="none", dead="NO_ROUTE"),)
        raise NoRoute(f"no route takes {topic!r}", hint=f"declare one: box.route({topic!r}, to=…)")
    return tuple(leg_of(route, options.key, priority=options.priority) for route in taken)


def leg_of(route: Route, key: str | None, *, priority: int = 0, dead: str | None = None) -> Leg:
    """The delivery of a message with this key by one route; `dead`: why it is a dead letter from the start."""
    return Leg(
        destination=route.destination,
        queue=route.queue,
        lane=lane_id(route.destination, key) if route.ordered and key is not None else None,
        gate=gate_id(route.destination, key) if route.per_key and key is not None else None,
        priority=priority,
        max_attempts=route.max_attempts,
        timeout=route.timeout,
        dead=dead,
    )


def _moment(at: datetime | None) -> datetime | None:
    if at is not None and getattr(at, "tzinfo", None) is None:
        raise InvalidMessage(f"at={at!r} has no time zone", hint="use an aware datetime, e.g. datetime.now(UTC)")
    return at


def _delay(options: MessageOptions) -> float:
    if options.delay is None:
        return 0.0
    if options.at is not None:
        raise InvalidMessage("delay and at cannot both be given", hint="keep one of them")
    return _limited(options.delay, "delay")


def _limited(duration: Duration, what: str, *, zero: bool = True) -> float:
    value = seconds(duration, what=what)
    if value > _LONGEST_DELAY or (value == 0 and not zero) or not math.isfinite(value):
        raise InvalidMessage(f"{what} cannot be {duration!r}", hint="ten years at the most")
    return value

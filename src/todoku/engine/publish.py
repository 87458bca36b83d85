"""1. Publish: check everything at the edge, resolve routes, and make a draft that the store can take as it is.

Bad input is refused here, with nothing stored; what passes is in a form that both databases take.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
from cachetools import TTLCache

from todoku.core.ending import BATCH
from todoku.core.errors import InvalidMessage, NoRoute
from todoku.core.identity import digest, digest_bytes, gate_id, key_hash, lane_id, publish_scope, unique_scope
from todoku.core.message import LARGE_PAYLOAD, MAX_KEY_LENGTH, MAX_TOPIC_LENGTH, PRIORITIES, Draft, Idempotency, Leg
from todoku.core.outcome import Duration, seconds
from todoku.core.topic_pattern import Route, check_topic, resolve
from todoku.engine.encryption.secret_ref import Ref
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
        routes = [msgspec.structs.replace(known, pattern="**")]
    if max_attempts is not None:
        return [msgspec.structs.replace(route, max_attempts=max_attempts) for route in routes]
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


class Encoded(msgspec.Struct, frozen=True):
    """A payload that went through `encode` already."""

    text: str


def draft(
    id: UUID,
    topic: str,
    payload: object,
    options: MessageOptions,
    routes: Sequence[Route],
    *,
    max_payload_bytes: int,
    no_route: Literal["error", "dead_letter"] = "error",
) -> Draft:
    """A checked draft with its deliveries, or InvalidMessage."""
    check_text(topic, "topic", MAX_TOPIC_LENGTH)
    check_topic(topic)
    text, raw = (None, payload) if isinstance(payload, bytes) else (encode(payload), None)
    taken = resolve(routes, topic)
    options = _keyed(topic, text, options, taken)
    size = len(raw) if raw is not None else len((text or "").encode())
    if size > max_payload_bytes:
        raise InvalidMessage(
            f"the payload has {size} bytes, {max_payload_bytes} are allowed",
            hint="store it elsewhere and send a reference, or raise TODOKU_MAX_PAYLOAD_BYTES",
        )
    if size > LARGE_PAYLOAD:
        _warn_of_size(topic, size)
    return Draft(
        id=id,
        topic=topic,
        type=topic,
        key=options.key,
        payload=text,
        payload_bytes=raw,
        content_type="application/json" if raw is None else "application/octet-stream",
        headers=_headers(options.headers),
        labels=encode(list(options.labels)) if options.labels else None,
        idempotency=_idempotency(topic, options, text, raw),
        legs=_legs(topic, options, taken, no_route),
        at=_moment(options.at),
        delay=_delay(options),
        expires=None if options.expires is None else _limited(options.expires, "expires", zero=False),
    )


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
    try:
        text = _ENCODER.encode(payload)
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


def _plain(value: Any) -> object:
    """What json cannot take by itself, in its usual JSON form."""
    if (record := _record(value)) is not None:
        return record
    match value:
        case Ref():
            return value.encoded()
        case datetime() if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        case datetime() | date() | time():
            return value.isoformat()
        case UUID() | Decimal():
            return str(value)
        case Enum():
            return value.value
        case timedelta():
            return msgspec.to_builtins(value)  # ISO 8601, which every reader knows for a duration
        case set() | frozenset():
            return sorted(value, key=_ENCODER.encode)  # in one order in every process, or its digest would differ
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON form")


def _record(value: Any) -> Any:
    """A dataclass, msgspec struct or pydantic model as its fields; None: it is none of these."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value, enc_hook=_plain)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    return None


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


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


def _idempotency(topic: str, options: MessageOptions, text: str | None, raw: bytes | None) -> Idempotency | None:
    key = options.idempotency_key
    if key is None and options.unique_for is None:
        return None
    body = digest(json.loads(text)) if text is not None else digest_bytes(raw or b"")
    if key is None:
        return Idempotency(unique_scope(topic), body, key_hash(body), body, lasts=options.unique_for)
    check_text(key, "idempotency key", MAX_KEY_LENGTH)
    return Idempotency(publish_scope(topic), key, key_hash(key), body, options.reopen)


def _keyed(topic: str, text: str | None, options: MessageOptions, taken: Sequence[Route]) -> MessageOptions:
    """Returns the options with a checked key: the publisher's, or the one in the payload, where a projection needs it."""
    if options.key is None and (wanting := next((route for route in taken if route.key is not None), None)):
        options = msgspec.structs.replace(options, key=_payload_key(topic, text, wanting))
    if options.key is not None:
        check_text(options.key, "key", MAX_KEY_LENGTH)
    return options


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
    return tuple(
        Leg(
            destination=route.destination,
            queue=route.queue,
            lane=lane_id(route.destination, options.key) if route.ordered and options.key is not None else None,
            gate=gate_id(route.destination, options.key) if route.per_key and options.key is not None else None,
            priority=options.priority,
            max_attempts=route.max_attempts,
            timeout=route.timeout,
        )
        for route in taken
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

"""Parses the `Upstash-*` headers of a publish, which may also be query parameters or fields of a batch, in any case.

Every error names its header. Unknown options (`Upstash-Telemetry-*`) are ignored, and never forwarded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from todoku.core.address_guard import check_url
from todoku.core.backoff import parse
from todoku.core.duration import interval
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.http_request import (
    RETRIES,
    Callback,
    FlowControl,
    HttpRequest,
    canonical,
    check_header_value,
    check_headers,
    is_forwardable,
    is_run_header,
)
from todoku.core.message import MAX_KEY_LENGTH
from todoku.core.schedule import Cron, cron
from todoku.core.workflow_run import RunOptions, run_options

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
MOST_RETRIES: Final = 1000
MOST_FIELDS: Final = 256
LONGEST_TIMEOUT: Final = 86_400.0
LONGEST_PERIOD: Final = 7 * 86_400.0
LONGEST_DEDUPLICATED: Final = 90 * 86_400
MOST_LABELS: Final = 20
LONGEST_NAME: Final = 200
_FURTHEST: Final = timedelta(days=3660)
_MAX_FLOW: Final = 1_000_000
_DIGITS: Final = 12

_UPSTASH: Final = "upstash-"
_FORWARD: Final = "forward-"
_NEVER_FORWARDED: Final = frozenset(
    {"authorization", "content-length", "x-forwarded-for", "x-forwarded-proto", "forwarded"}
)
"""Headers that `Upstash-Header-Forward` does not forward: they are meant for todoku, or describe the way to it."""


class UpstashOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parsed options. `request` has no URL yet, because the destination is not a header."""

    request: HttpRequest
    delay: float = 0.0
    at: datetime | None = None
    deduplication_id: str | None = None
    deduplicated_for: float | None = None
    """Seconds during which `deduplication_id` is effective; None: the server's setting applies."""
    by_content: bool = False
    when: Cron | None = None
    schedule_id: str | None = None
    run: RunOptions | None = None
    """The workflow run that the publish starts or continues."""


def collect_fields(headers: Iterable[tuple[str, str]], query: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """Returns the headers, and the options in the query, by their lower-case names. A header overrides an option of the
    same name; the values of a repeated header are joined by commas."""
    found: dict[str, str] = {}
    for number, (given, text) in enumerate(headers):
        if number >= MOST_FIELDS:
            raise InvalidMessage(
                f"there are more than {MOST_FIELDS} headers", hint="send only those that the receiver needs"
            )
        name = given.lower()
        value = check_header_value(header_name(name[:64]), text)
        found[name] = f"{found[name]}, {value}" if name in found else value
    for given, text in query:
        name = given.lower()
        if name.startswith(_UPSTASH) and name not in found:
            found[name] = check_header_value(header_name(name[:64]), text)
    return found


def parse_options(
    given: Mapping[str, str], *, now: datetime, caller_ip: str | None = None, scheduled: bool = False
) -> UpstashOptions:
    """Parses the options in `fields`; raises InvalidMessage, which names the header.

    `Upstash-Cron` is parsed only if `scheduled`.
    """
    at = _not_before(given, now)
    run = run_options(given)
    return UpstashOptions(
        request=HttpRequest(
            url="",
            method=_method(given, "upstash-method"),
            headers=_headers(given, of_run=run is not None),
            timeout=_timeout(given, "upstash-timeout"),
            retries=_retries(given, "upstash-retries"),
            retry_delay=_retry_delay(given, "upstash-retry-delay"),
            callback=_callback(given, "upstash-callback", of_run=run is not None),
            failure_callback=_callback(given, "upstash-failure-callback", of_run=run is not None),
            flow=_flow(given),
            labels=_labels(given),
            redact=_redact(given),
            caller_ip=caller_ip,
        ),
        delay=_delay(given, "upstash-delay") if at is None else 0.0,
        at=at,
        deduplication_id=_identifier(given, "upstash-deduplication-id", MAX_KEY_LENGTH),
        deduplicated_for=_deduplicated_for(given),
        by_content=_flag(given, "upstash-content-based-deduplication"),
        when=_cron(given) if scheduled else None,
        schedule_id=_identifier(given, "upstash-schedule-id", LONGEST_NAME),
        run=run,
    )


def header_name(name: str) -> str:
    """Returns a field's name as its header is written: `upstash-retry-delay` is `Upstash-Retry-Delay`."""
    return "-".join(part.capitalize() for part in name.split("-"))


# ------------------------------------------------------------------------------------- request and callbacks


def _headers(given: Mapping[str, str], *, of_run: bool) -> dict[str, str]:
    """Returns the headers to send to the receiver. `Upstash-Forward-X` overrides `Upstash-Header-Forward`."""
    found: dict[str, str] = {}
    if _flag(given, "upstash-header-forward"):
        found |= {name: value for name, value in given.items() if is_forwardable(name) and name not in _NEVER_FORWARDED}
    if "content-type" in given:
        found["content-type"] = given["content-type"]
    return check_headers(found | _forwarded(given, _UPSTASH + _FORWARD, of_run=of_run))


def _forwarded(given: Mapping[str, str], prefix: str, *, of_run: bool) -> dict[str, str]:
    """Returns the fields that begin with the prefix, without it.

    The SDK of a workflow forwards every header of the request it has received, so those of todoku are left out there.
    """
    found: dict[str, str] = {}
    for field, value in given.items():
        name = field.removeprefix(prefix)
        if name == field or not name:
            continue
        if not is_forwardable(name) and not (of_run and is_run_header(name)):
            if of_run:
                continue
            raise InvalidMessage(
                f"{header_name(field)} cannot be forwarded", hint="todoku or the HTTP client sets this header"
            )
        found[name] = value
    return found


def _callback(given: Mapping[str, str], name: str, *, of_run: bool) -> Callback | None:
    url = given.get(name)
    if url is None:
        return None
    return Callback(
        url=check_url(url, what=header_name(name)),
        method=_method(given, f"{name}-method"),
        headers=_run_headers(given, f"{name}-") if of_run else _callback_headers(given, f"{name}-"),
        timeout=_timeout(given, f"{name}-timeout"),
        retries=_retries(given, f"{name}-retries"),
        retry_delay=_retry_delay(given, f"{name}-retry-delay"),
        delay=_delay(given, f"{name}-delay"),
    )


_OPTIONS: Final = frozenset({"method", "timeout", "retries", "retry-delay", "delay"})


def _callback_headers(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Returns the headers of a callback: `Upstash-Callback-Forward-X` is X, and so is `Upstash-Callback-X`, which the
    Python client sends, unless X is an option."""
    plain = {
        field: value
        for field, value in given.items()
        if field.startswith(prefix) and (rest := field.removeprefix(prefix)) not in _OPTIONS
        if not rest.startswith(_FORWARD)
    }
    return check_headers(_forwarded(plain, prefix, of_run=False) | _forwarded(given, prefix + _FORWARD, of_run=False))


def _run_headers(given: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Returns the headers of a callback of a workflow run: `Upstash-Callback-Workflow-X` is `Upstash-Workflow-X`."""
    own = {
        _UPSTASH + field.removeprefix(prefix): value
        for field, value in given.items()
        if field.startswith(f"{prefix}workflow-")
    }
    return check_headers(_forwarded(given, prefix + _FORWARD, of_run=True) | own)


def _flow(given: Mapping[str, str]) -> FlowControl | None:
    key = _identifier(given, "upstash-flow-control-key", LONGEST_NAME)
    name = "upstash-flow-control-value"
    if key is None:
        if given.get(name):
            raise InvalidMessage(f"{header_name(name)} has no key", hint="send Upstash-Flow-Control-Key, too")
        return None
    parts = [part.partition("=") for part in given.get(name, "").split(",") if part.strip()]
    options = {part.strip().lower(): value.strip() for part, _, value in parts}
    if unknown := options.keys() - {"parallelism", "rate", "period"}:
        hint = "parallelism=3, rate=4, period=2s"
        raise InvalidMessage(f"{header_name(name)} cannot have {sorted(unknown)[0][:64]!r}", hint=hint)
    what = header_name(name)
    parallelism, rate = (_number(options, part, f"{part} of {what}", 1, _MAX_FLOW) for part in ("parallelism", "rate"))
    if parallelism is None and rate is None:
        raise InvalidMessage(f"{what} has no limit", hint="parallelism=3, or rate=4, period=2s, or both")
    return FlowControl(key=key, parallelism=parallelism, rate=rate, period=_period(options.get("period"), what))


def _period(given: str | None, what: str) -> float:
    if given is None:
        return 1.0
    period = interval(with_unit(given), what=f"period of {what}", longest=LONGEST_PERIOD)
    if period < 1:
        raise InvalidMessage(f"period of {what} cannot be {given!r}", hint="from one second to a week: 10s, 1h30m")
    return period


def _labels(given: Mapping[str, str]) -> tuple[str, ...]:
    name = "upstash-label"
    labels = tuple(dict.fromkeys(label for part in given.get(name, "").split(",") if (label := part.strip())))
    if len(labels) > MOST_LABELS or any(len(label) > LONGEST_NAME for label in labels):
        hint = f"at most {MOST_LABELS}, of {LONGEST_NAME} characters each"
        raise InvalidMessage(f"{header_name(name)} has too many labels or too long ones", hint=hint)
    return labels


def _redact(given: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(
        _redact_field(part.strip()) for part in given.get("upstash-redact-fields", "").split(",") if part.strip()
    )


def _redact_field(part: str) -> str:
    word, bracket, name = part.partition("[")
    if word.lower() in ("body", "header") and not bracket:
        return word.lower()
    if word.lower() == "header" and name.endswith("]"):
        try:
            return f"header[{canonical(name[:-1].strip())}]"
        except InvalidMessage as error:
            raise InvalidMessage(f"Upstash-Redact-Fields: {error}") from None
    raise InvalidMessage(f"Upstash-Redact-Fields cannot be {part[:64]!r}", hint="body, header, header[Authorization]")


# ------------------------------------------------------------------------------------------------- when


def _not_before(given: Mapping[str, str], now: datetime) -> datetime | None:
    name = "upstash-not-before"
    seconds = _number(given, name, header_name(name), 0, 10**_DIGITS)
    if seconds is None:
        return None
    if seconds > (now + _FURTHEST).timestamp():
        raise InvalidMessage(
            f"{header_name(name)} cannot be {seconds}", hint="seconds since 1970, at most ten years from now"
        )
    return datetime.fromtimestamp(seconds, UTC)


def _cron(given: Mapping[str, str]) -> Cron | None:
    expression = given.get("upstash-cron")
    if expression is None:
        return None
    zone = "UTC"
    for prefix in ("CRON_TZ=", "TZ="):
        if expression.startswith(prefix):
            zone, _, expression = expression.removeprefix(prefix).partition(" ")
            break
    try:
        return cron(expression, zone)
    except InvalidSetting as error:
        raise InvalidMessage(f"Upstash-Cron: {error}") from None


def _deduplicated_for(given: Mapping[str, str]) -> float | None:
    """QStash does not have this header; todoku's client sends it."""
    name = "todoku-deduplicated-for"
    return _number(given, name, header_name(name), 1, LONGEST_DEDUPLICATED)


def _delay(given: Mapping[str, str], name: str) -> float:
    return interval(with_unit(given[name]), what=header_name(name)) if given.get(name) else 0.0


def _timeout(given: Mapping[str, str], name: str) -> float | None:
    if not given.get(name):
        return None
    found = interval(with_unit(given[name]), what=header_name(name), longest=LONGEST_TIMEOUT)
    if found <= 0:
        raise InvalidMessage(
            f"{header_name(name)} cannot be {given[name]!r}", hint="leave it out, or use a duration such as 30s"
        )
    return found


# -------------------------------------------------------------------------------------------- single values


def _method(given: Mapping[str, str], name: str) -> str:
    method = given.get(name, "POST").upper()
    if method not in METHODS:
        raise InvalidMessage(f"{header_name(name)} cannot be {method[:64]!r}", hint=", ".join(METHODS))
    return method


def _retries(given: Mapping[str, str], name: str) -> int:
    retries = _number(given, name, header_name(name), 0, MOST_RETRIES)
    return RETRIES if retries is None else retries


def _retry_delay(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name)
    if not text:
        return None
    try:
        parse(text)
    except InvalidMessage as error:
        raise error if name == "upstash-retry-delay" else InvalidMessage(f"{header_name(name)}: {error}") from None
    return text


def _identifier(given: Mapping[str, str], name: str, longest: int) -> str | None:
    text = given.get(name)
    if text is None:
        return None
    if not 0 < len(text) <= longest or not text.isprintable() or (longest == LONGEST_NAME and "/" in text):
        hint = f"1 to {longest} printable characters" + (" without a slash" if longest == LONGEST_NAME else "")
        raise InvalidMessage(f"{header_name(name)} cannot be {text[:64]!r}", hint=hint)
    return text


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise InvalidMessage(f"{header_name(name)} cannot be {text[:64]!r}", hint="true or false")
    return text in ("true", "1")


def _number(given: Mapping[str, str], name: str, what: str, least: int, most: int) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= _DIGITS + 1 and least <= int(text) <= most):
        raise InvalidMessage(f"{what} cannot be {text[:64]!r}", hint=f"a whole number, {least} to {most}")
    return int(text)


def with_unit(text: str) -> str:
    """Adds the unit to a bare number, which means seconds."""
    return f"{text}s" if text.isascii() and text.isdecimal() else text

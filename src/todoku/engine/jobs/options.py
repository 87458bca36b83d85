"""The options of a job, a call and a publish, and their checks: a refusal names the option and gives a valid value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, TypedDict, cast, get_args

from todoku.core.backoff import Backoff
from todoku.core.destination import Attempts, check_max_attempts
from todoku.core.errors import InvalidMessage, InvalidSetting, TodokuError
from todoku.core.failure import Retrying
from todoku.core.limit import Limit
from todoku.core.message import MAX_TOPIC_LENGTH
from todoku.core.outcome import Duration, seconds
from todoku.core.topic_pattern import OnDead

Exceptions = type[Exception] | tuple[type[Exception], ...]


class JobOptions(TypedDict, total=False):
    """How a job is run: the keywords of `@box.job` and `@box.on`.

    `max_attempts` (or `max_retries`, one less), `backoff`, `timeout`: of its attempts. `run`: "loop" (async), "thread"
    (sync), "process" (killed at its timeout). `transactional`: it gets an open transaction that commits with its
    success. `ordered`: calls with the same key run in turn; `on_dead="skip"`: also after one of them became a dead
    letter, for which they wait otherwise. `per_key`: the limit of calls with the same key, over all workers
    (`todoku.Limit`). `unique_for`: an equal call within that time is a duplicate. `keep_result`: its return
    value is stored for `handle.result()`. `encrypted`: its arguments and its result are stored encrypted, and of an
    error only the type. `retry_on`: only these exceptions are retried; `abort_on`: these never. `aliases`: its former
    names. `schema`: a JSON Schema of its arguments, or of the event. `search`: fields of the payload by which messages
    published from now on are found, `["order_id", "customer.id"]`.
    """

    queue: str
    max_attempts: int | None
    max_retries: int | None
    backoff: Backoff | None
    timeout: Duration | None
    run: Literal["auto", "loop", "thread", "process"]
    transactional: bool
    ordered: bool
    on_dead: OnDead
    per_key: Limit | None
    unique_for: Duration | None
    keep_result: bool
    encrypted: bool
    retry_on: Exceptions | None
    abort_on: Exceptions | None
    aliases: Sequence[str]
    schema: Mapping[str, Any] | str | None
    search: Sequence[str]


class EventOptions(TypedDict, total=False):
    """How the messages of an event class are stored: the keywords of `@box.event`.

    `key`: the field that is the key of its messages. `encrypted`: they are stored encrypted; their key is not.
    `search`: its fields by which messages published from now on are found, `["order_id", "customer.id"]`.
    """

    key: str | None
    encrypted: bool
    search: Sequence[str]


class CallOptions(TypedDict, total=False):
    """How one call is stored: the keywords of `Job.using`."""

    tx: Any
    delay: Duration | None
    at: datetime | None
    expires: Duration | None
    queue: str | None
    priority: int | None
    key: str | None
    idempotency_key: str | None
    max_attempts: int | None
    max_retries: int | None
    timeout: Duration | None
    headers: Mapping[str, str] | None
    labels: Sequence[str]
    best_effort: bool


class RouteOptions(TypedDict, total=False):
    """How the messages of a route are sent: the keywords of `box.route`.

    `name`: of the destination. `ordered`: messages with the same key arrive one after the other, as they were
    committed. `on_dead`: what a dead letter does to later messages of its key: "park", they wait until it is replayed
    or purged; "skip", they go on. `max_attempts`, `backoff`, `timeout`: of its attempts. `headers`: of its requests, if
    the destination is a URL. `search`: fields of the payload by which messages published from now on are found.
    """

    name: str | None
    ordered: bool
    on_dead: OnDead
    max_attempts: int | None
    backoff: Backoff | None
    timeout: Duration | None
    headers: Mapping[str, str] | None
    search: Sequence[str]


class PublishOptions(TypedDict, total=False):
    """How a message is published: the keywords of `publish`, beside `tx`."""

    key: str | None
    idempotency_key: str | None
    delay: Duration | None
    at: datetime | None
    expires: Duration | None
    priority: int
    headers: Mapping[str, str] | None


Refusal = type[InvalidMessage] | type[InvalidSetting]


def checked_queue(queue: object, refusal: Refusal) -> str:
    """Returns the name of a queue, or raises the refusal."""
    if not isinstance(queue, str) or not 0 < len(queue) <= MAX_TOPIC_LENGTH or not queue.isprintable():
        raise refusal(f"queue cannot be {queue!r}", hint=f"a name of 1 to {MAX_TOPIC_LENGTH} characters")
    return queue


def checked_attempts(attempts: object, retries: object, refusal: Refusal) -> int | None:
    """Returns the number of attempts: `max_attempts`, or `max_retries` + 1; None if neither is given."""
    if retries is not None:
        if attempts is not None:
            raise refusal("max_attempts and max_retries cannot both be given", hint="max_retries=3 is max_attempts=4")
        if type(retries) is not int or not 0 <= retries < 10_000:
            raise refusal(f"max_retries cannot be {retries!r}", hint="0 to 9999; the first attempt is no retry")
        return retries + 1
    check_max_attempts(attempts, refusal)
    return cast("int | None", attempts)


def check_route_options(options: RouteOptions) -> None:
    """Raises InvalidSetting for an option that no route has, or a value that no destination takes."""
    if unknown := options.keys() - RouteOptions.__optional_keys__:
        known = ", ".join(sorted(RouteOptions.__optional_keys__))
        raise InvalidSetting(f"a route has no option {', '.join(sorted(unknown))}", hint=f"known: {known}")
    Attempts(max_attempts=options.get("max_attempts"), backoff=options.get("backoff"))
    if not isinstance(options.get("headers") or {}, Mapping):
        raise InvalidSetting("headers is no mapping", hint='headers={"Authorization": "Bearer …"}')


def refuse_for_name(name: str, options: RouteOptions) -> None:
    """Raises InvalidSetting for options of a route to a name that only the process that serves it can apply."""
    for option in ("backoff", "on_dead"):
        if options.get(option) is not None:
            raise InvalidSetting(
                f"{option} is decided where {name!r} is served, not by its name",
                hint="give it in the route that has the destination itself: to=…",
            )


def checked_on_dead(name: str, given: object, *, ordered: bool) -> OnDead:
    """Returns what dead letters do to later messages of their key, or raises InvalidSetting."""
    if given not in get_args(OnDead):
        raise InvalidSetting(f"{name}: on_dead cannot be {given!r}", hint='"park" or "skip"')
    if given == "skip" and not ordered:
        raise InvalidSetting(
            f'{name}: on_dead="skip" is for messages in order', hint="add ordered=True, or leave on_dead out"
        )
    return cast("OnDead", given)


def checked_per_key(name: str, options: JobOptions) -> Limit | None:
    """Returns the limit of each key, or raises InvalidSetting."""
    limit = options.get("per_key")
    if limit is not None and not isinstance(limit, Limit):
        raise InvalidSetting(f"{name}: per_key cannot be {limit!r}", hint="per_key=todoku.Limit(concurrency=2)")
    if limit is not None and options.get("ordered"):
        raise InvalidSetting(
            f"{name}: per_key and ordered cannot both be given", hint="ordered runs each key one at a time already"
        )
    return limit


def checked_duration(duration: Duration, what: str, refusal: Refusal) -> float:
    """Returns seconds greater than 0, or raises the refusal."""
    try:
        value = seconds(duration, what=what)
    except TodokuError:
        value = 0.0
    if value <= 0:
        raise refusal(f"{what} cannot be {duration!r}", hint="give seconds > 0 or a timedelta, at most 10 years")
    return value


def checked_retrying(name: str, options: JobOptions) -> Retrying | None:
    """Returns which exceptions are retried; None if the job declares neither option."""
    only = _exceptions(name, "retry_on", options.get("retry_on"))
    never = _exceptions(name, "abort_on", options.get("abort_on"))
    return None if only is None and never is None else Retrying(only, never or ())


def _exceptions(name: str, option: str, given: object) -> tuple[type[Exception], ...] | None:
    if given is None:
        return None
    kinds = given if isinstance(given, tuple) else (given,)
    if not kinds or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in kinds):
        raise InvalidSetting(
            f"{name}: {option} cannot be {given!r}", hint=f"an exception class or several: {option}=(OSError, KeyError)"
        )
    return kinds

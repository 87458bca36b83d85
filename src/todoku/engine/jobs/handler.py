"""The handler of a function: its options are checked at its declaration, not at its first message."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from todoku.core.destination import check_backoff
from todoku.core.errors import InvalidSetting
from todoku.core.message import MAX_TOPIC_LENGTH
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route, check_topic
from todoku.engine.context import Context
from todoku.engine.encryption.secret_ref import SecretSources
from todoku.engine.jobs.decoders import result_decoder
from todoku.engine.jobs.handle import ResultReader
from todoku.engine.jobs.hints import Hints
from todoku.engine.jobs.job import Handler
from todoku.engine.jobs.options import (
    JobOptions,
    checked_attempts,
    checked_duration,
    checked_on_dead,
    checked_per_key,
    checked_queue,
    checked_retrying,
)
from todoku.engine.jobs.signature import Arguments, OneEvent
from todoku.engine.registry import Run, Target


def build_handler(
    function: Callable[..., Any],
    name: str | None,
    options: JobOptions,
    settings: Settings,
    *,
    consumes: str | None = None,
    kind: Any = Any,
    secrets: SecretSources | None = None,
) -> Handler:
    """Builds the handler of a job, or of a consumer of the topic (or pattern) `consumes`. InvalidSetting: an option."""
    called = _named(function, name)
    _check_options(called, options)
    hints = Hints(function, called, secrets)
    signature = Arguments(hints) if consumes is None else OneEvent(hints, kind)
    keep = options.get("keep_result", False)
    route = _route(called, options, settings)
    unique_for = options.get("unique_for")
    if consumes is not None:
        _check_consumer(called, options)
    return Handler(
        function=function,
        signature=signature,
        takes_context=hints.takes_context,
        topic=called if consumes is None or "*" in consumes else consumes,
        route=route,
        target=_target(function, signature.caller(function), options, settings, route),
        kept=ResultReader(result_decoder(hints.returns, called, secrets) if keep else None),
        unique_for=None if unique_for is None else checked_duration(unique_for, "unique_for", InvalidSetting),
        aliases=_aliases(called, options),
    )


def _target(
    function: Callable[..., Any],
    call: Callable[[Context], Any],
    options: JobOptions,
    settings: Settings,
    route: Route,
) -> Target:
    """How a worker runs the handler."""
    called, run = route.destination, _run(function, route.destination, options)
    attempts = checked_attempts(options.get("max_attempts"), options.get("max_retries"), InvalidSetting)
    return Target(
        name=called,
        queue=route.queue,
        backoff=options.get("backoff") or settings.backoff,
        run=run,
        call=call,
        timeout=route.timeout,
        usual_attempts=settings.max_attempts if attempts is None else None,
        transactional=options.get("transactional", False),
        keep_result=options.get("keep_result", False),
        retrying=checked_retrying(called, options),
        per_key=route.per_key,
        reference=_reference(function),
    )


def _reference(function: Callable[..., Any]) -> str | None:
    """`module:qualname` of a function; None: an object that is called, which has no such name."""
    name = getattr(function, "__qualname__", None)
    return None if name is None else f"{function.__module__}:{name}"


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def parameters_of(handler: Handler) -> tuple[str, ...]:
    """The names of a job's arguments; empty if it takes any name."""
    parameters = list(inspect.signature(handler.function).parameters.values())[int(handler.takes_context) :]
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return ()
    return tuple(each.name for each in parameters)


def _named(function: Callable[..., Any], name: str | None) -> str:
    if inspect.isclass(function) or not inspect.isroutine(getattr(function, "__call__", None)):  # noqa: B004
        raise InvalidSetting(f"{function!r} is no function", hint="put @box.job on a def or an async def")
    called = name if name is not None else getattr(function, "__name__", "")
    if not isinstance(called, str) or not 0 < len(called) <= MAX_TOPIC_LENGTH:
        raise InvalidSetting(f"a job cannot be named {called!r}", hint='give it a name: @box.job("its.name")')
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidSetting(f"{called} is a generator: calling it runs nothing", hint="return instead of yield")
    return check_topic(called)


def _check_options(name: str, options: JobOptions) -> None:
    if unknown := options.keys() - JobOptions.__optional_keys__:
        known = ", ".join(sorted(JobOptions.__optional_keys__))
        known += '; its name comes first: @box.job("its.name")' if "name" in unknown else ""
        raise InvalidSetting(f"{name}: there is no option {', '.join(sorted(unknown))}", hint=f"known: {known}")
    check_backoff(options.get("backoff"), f"{name}: backoff")


def _check_consumer(name: str, options: JobOptions) -> None:
    """Refuses the options that belong to the event, not to its consumer."""
    if options.get("unique_for") is not None:
        raise InvalidSetting(f"{name}: unique_for is for jobs", hint="publish events with an idempotency_key")
    if "encrypted" in options:
        raise InvalidSetting(f"{name}: encrypted is the event's to say", hint="@box.event(topic, encrypted=True)")


def _route(name: str, options: JobOptions, settings: Settings) -> Route:
    """The route of enqueued calls: to this handler, whatever the topic."""
    attempts = checked_attempts(options.get("max_attempts"), options.get("max_retries"), InvalidSetting)
    timeout, ordered = options.get("timeout"), options.get("ordered", False)
    return Route(
        pattern="**",
        destination=name,
        queue=checked_queue(options.get("queue", "default"), InvalidSetting),
        ordered=ordered,
        on_dead=checked_on_dead(name, options.get("on_dead", "park"), ordered=ordered),
        per_key=checked_per_key(name, options),
        max_attempts=settings.max_attempts if attempts is None else attempts,
        timeout=None if timeout is None else checked_duration(timeout, "timeout", InvalidSetting),
    )


def _aliases(name: str, options: JobOptions) -> tuple[str, ...]:
    given = options.get("aliases", ())
    if isinstance(given, str) or not all(0 < len(alias) <= MAX_TOPIC_LENGTH for alias in given):
        raise InvalidSetting(f"{name}: aliases cannot be {given!r}", hint='a list of names: aliases=["old.name"]')
    return tuple(check_topic(alias) for alias in given)


def _run(function: Callable[..., Any], name: str, options: JobOptions) -> Run:
    asked, awaits = options.get("run", "auto"), is_async(function)
    if options.get("transactional") and (awaits or asked in ("loop", "process")):
        raise InvalidSetting(
            f"{name}: a transactional handler is a plain function in a thread of the worker",
            hint="write def instead of async def, and leave run= out: its transaction belongs to one thread",
        )
    match asked:
        case "auto":
            return "loop" if awaits else "thread"
        case "loop" if awaits:
            return "loop"
        case "loop":
            raise InvalidSetting(f"{name} would block the event loop", hint='write async def, or use run="thread"')
        case "thread" | "process" if awaits:
            raise InvalidSetting(f"{name} is async, and run={asked!r} is not", hint='write def, or use run="loop"')
        case "thread":
            return "thread"
        case "process":
            return _importable(function, name)
        case _:
            raise InvalidSetting(f"{name}: run cannot be {asked!r}", hint="auto, loop, thread or process")


def _importable(function: Callable[..., Any], name: str) -> Run:
    """Refuses a function that another process cannot import by its module and name."""
    if not inspect.isfunction(function) or "<" in function.__qualname__:
        raise InvalidSetting(
            f"{name} cannot be found by another process", hint='run="process" needs a function at the top of a module'
        )
    return "process"

"""Sentry: a handler runs in a transaction that continues the publisher's trace, and its exceptions are captured.

Sentry is optional, and only used if the application has imported and initialised it: otherwise it costs one dictionary
look-up per publish, and nothing per attempt. Ids and names are sent; no payload, and no local variables of frames.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import msgspec

from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Retry, Snooze
from todoku.engine.context import Context
from todoku.engine.observability.message_headers import decode_headers
from todoku.engine.registry import Registry, Target

if TYPE_CHECKING:
    from sentry_sdk.types import Event, Hint

SENTRY_TRACE: Final = "sentry-trace"
_BAGGAGE: Final = "baggage"
_LONGEST_TAG: Final = 200
_TAGS: Final = {"x-correlation-id": "correlation_id", "correlation_id": "correlation_id", "x-event-id": "event_id"}
"""Headers of a message with ids, and the tags they become."""


def is_initialised() -> bool:
    """Whether the application uses Sentry."""
    sdk = sys.modules.get("sentry_sdk")
    return sdk is not None and bool(sdk.is_initialized())


def flush() -> None:
    """Sends captured events that were not sent yet. Blocks for at most Sentry's `shutdown_timeout`."""
    if is_initialised():
        import sentry_sdk  # noqa: PLC0415 - only where the application uses it

        sentry_sdk.flush()


def with_sentry(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Returns `headers` with Sentry's current trace added, if there is one and they have none."""
    if not is_initialised() or any(name.lower() == SENTRY_TRACE for name in headers or ()):
        return headers
    import sentry_sdk  # noqa: PLC0415 - only where the application uses it

    carried = dict(sentry_sdk.get_current_scope().iter_trace_propagation_headers())
    if SENTRY_TRACE not in carried:
        return headers
    given = dict(headers or {})
    existing = next((name for name in given if name.lower() == _BAGGAGE), None)
    # OpenTelemetry writes the same header: both lists are joined, and each tool reads its own entries.
    baggage = ",".join(filter(None, (given.pop(existing) if existing else None, carried.get(_BAGGAGE))))
    return {**given, SENTRY_TRACE: carried[SENTRY_TRACE], **({_BAGGAGE: baggage} if baggage else {})}


def wrap_handlers(registry: Registry) -> None:
    """If the application uses Sentry, wraps every handler, present and future, in a Sentry transaction."""
    if is_initialised():
        registry.wrap(with_transaction)


def with_transaction(target: Target) -> Target:
    """Returns the target with each attempt of its handler in a Sentry transaction. A sender stays as it is."""
    call = target.call
    if call is None:
        return target
    return msgspec.structs.replace(target, call=_wrap_async(call) if target.run == "loop" else _wrap_sync(call))


def _wrap_async(call: Callable[[Context], Any]) -> Callable[[Context], Any]:
    async def wrapped(context: Context) -> Any:
        with _attempt(context.claim):
            return await call(context)

    return wrapped


def _wrap_sync(call: Callable[[Context], Any]) -> Callable[[Context], Any]:
    def wrapped(context: Context) -> Any:
        with _attempt(context.claim):
            return call(context)

    return wrapped


@contextmanager
def _attempt(claim: Claimed) -> Iterator[None]:
    """Opens a transaction for one attempt. An exception is captured, unless it is an outcome, and raised again."""
    import sentry_sdk  # noqa: PLC0415 - only where the application uses it

    headers = decode_headers(claim.headers)
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        scope.add_event_processor(_remove_variables)
        for name, value in _tags(claim, headers).items():
            scope.set_tag(name, value[:_LONGEST_TAG])
        transaction = sentry_sdk.continue_trace(headers, op="queue.process", name=claim.topic, source="task")
        with sentry_sdk.start_transaction(transaction) as span:
            _describe(span, claim)
            raised: Exception | None = None  # raised again below: a transaction reports what leaves it as an error
            try:
                yield
            except (Retry, Abort, Snooze) as outcome:
                span.set_status("aborted" if isinstance(outcome, Abort) else "unavailable")
                raised = outcome
            except Exception as error:  # noqa: BLE001 - captured and raised again
                span.set_status("internal_error")
                sentry_sdk.capture_exception(error)
                raised = error
    if raised is not None:
        raise raised


def _describe(span: Any, claim: Claimed) -> None:
    span.set_data("messaging.message.id", claim.message_id)
    span.set_data("messaging.destination.name", claim.destination)
    span.set_data("messaging.message.retry.count", claim.attempt - 1)
    span.set_data("messaging.system", "todoku")


def _tags(claim: Claimed, headers: Mapping[str, str]) -> dict[str, str]:
    named = {tag: headers[name] for name, tag in _TAGS.items() if headers.get(name)}
    own = {"topic": claim.topic, "destination": claim.destination, "message_id": claim.message_id}
    return {**named, **own, "attempt": str(claim.attempt)}


def _remove_variables(event: Event, _hint: Hint) -> Event:
    """Removes local variables from frames: those of a handler contain its message."""
    for error in (event.get("exception") or {}).get("values") or ():
        for frame in (error.get("stacktrace") or {}).get("frames") or ():
            frame.pop("vars", None)
    return event

"""The span `broker.send` of a send that a handler does itself: a child of its attempt's span.

OpenTelemetry is optional, as in `tracing`: an attempt that is traced and sampled has its tracer in the current context,
under `TRACER`. In all other cases a send costs one dictionary look-up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from todoku.core.message import Claimed
from todoku.engine.observability.metrics import quietly

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

TRACER: Final = "todoku-tracer"
"""The key in OpenTelemetry's context for the tracer of a handler's attempt."""


def send_attributes(claim: Claimed, adapter: str) -> dict[str, str | int]:
    """Returns the initial attributes of a `broker.send` span."""
    return {"destination": claim.destination, "adapter": adapter, "attempt": claim.attempt}


@contextmanager
def send_span(claim: Claimed, adapter: str) -> Iterator[None]:
    """Opens a `broker.send` span around the block, as the current span; does nothing if the attempt is not traced."""
    span = _start(claim, adapter)
    if span is None:
        yield
        return
    began = time.monotonic()
    raised: BaseException | None = None
    try:
        with current_span(span):
            yield
    except BaseException as error:
        raised = error
        raise
    finally:
        _end(span, raised, time.monotonic() - began)


@contextmanager
def current_span(span: Span) -> Iterator[None]:
    """Makes a span the current one in this task or thread, for the block."""
    from opentelemetry import context, trace  # noqa: PLC0415 - only where the application uses it

    token = context.attach(trace.set_span_in_context(span))
    try:
        yield
    finally:
        context.detach(token)


def current_tracer() -> Tracer | None:
    """Returns the tracer of the attempt that this task or thread belongs to; None: it is not traced, or not sampled."""
    otel = sys.modules.get("opentelemetry.context")
    return None if otel is None else otel.get_value(TRACER)


@quietly
def _start(claim: Claimed, adapter: str) -> Span | None:
    if (tracer := current_tracer()) is None:
        return None
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - only where the application uses it

    return tracer.start_span("broker.send", kind=SpanKind.PRODUCER, attributes=send_attributes(claim, adapter))


@quietly
def _end(span: Span, raised: BaseException | None, seconds: float) -> None:
    """Ends the span, with the type of the exception and not its text, which may quote the message."""
    span.set_attributes(_final_attributes(raised, seconds))
    if raised is not None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - only where the application uses it

        span.set_status(StatusCode.ERROR)
    span.end()


def _final_attributes(raised: BaseException | None, seconds: float) -> dict[str, Any]:
    took = {"round_trip_ms": round(seconds * 1000, 3)}
    if raised is None:
        return {"outcome": "done", **took}
    return {"outcome": "error", "error.type": type(raised).__name__, **took}

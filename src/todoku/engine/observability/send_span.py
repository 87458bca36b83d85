"""`broker.send` for a send that a handler makes itself, through an adapter of its own: a child of its attempt's span.

OpenTelemetry is optional here as in `tracing`: an attempt that is traced and sampled has its tracer in the current
context, under `TRACER`. Everywhere else a send costs a dictionary look-up.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from todoku.core.message import Claimed
from todoku.engine.observability.contained_errors import quietly

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

TRACER: Final = "todoku-tracer"
"""The key in OpenTelemetry's context under which a handler's attempt keeps the tracer of its spans."""


def send_attributes(claim: Claimed, adapter: str) -> dict[str, str | int]:
    """What a `broker.send` span says from its beginning."""
    return {"destination": claim.destination, "adapter": adapter, "attempt": claim.attempt}


@contextmanager
def send_span(claim: Claimed, adapter: str) -> Iterator[None]:
    """A `broker.send` span around the block, current in it; nothing, if this attempt is not traced."""
    span = _start(claim, adapter)
    if span is None:
        yield
        return
    from opentelemetry import context, trace  # noqa: PLC0415 - only where the application uses it

    token = context.attach(trace.set_span_in_context(span))
    began = time.monotonic()
    raised: BaseException | None = None
    try:
        yield
    except BaseException as error:
        raised = error
        raise
    finally:
        context.detach(token)
        _end(span, raised, time.monotonic() - began)


@quietly
def _start(claim: Claimed, adapter: str) -> Span | None:
    otel = sys.modules.get("opentelemetry.context")
    tracer: Tracer | None = None if otel is None else otel.get_value(TRACER)
    if tracer is None:
        return None
    from opentelemetry.trace import SpanKind  # noqa: PLC0415 - only where the application uses it

    return tracer.start_span("broker.send", kind=SpanKind.PRODUCER, attributes=send_attributes(claim, adapter))


@quietly
def _end(span: Span, raised: BaseException | None, seconds: float) -> None:
    """The span names the type of what was raised and not its text, which may quote the message."""
    span.set_attributes(_ending(raised, seconds))
    if raised is not None:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 - only where the application uses it

        span.set_status(StatusCode.ERROR)
    span.end()


def _ending(raised: BaseException | None, seconds: float) -> dict[str, Any]:
    took = {"round_trip_ms": round(seconds * 1000, 3)}
    if raised is None:
        return {"outcome": "done", **took}
    return {"outcome": "error", "error.type": type(raised).__name__, **took}

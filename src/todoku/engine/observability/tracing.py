"""Spans: `outbox.process` for an attempt, `broker.send` within it. Message headers carry the trace context.

OpenTelemetry is optional, and only used if the application has imported it; otherwise tracing costs one dictionary
look-up.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from todoku.core.message import Claimed
from todoku.engine.observability.message_headers import decode_headers, with_correlation
from todoku.engine.observability.run_trace import run_of, trace_ids
from todoku.engine.observability.send_span import TRACER, current_span, send_attributes
from todoku.engine.observability.sentry import SENTRY_TRACE, with_sentry
from todoku.engine.observability.step_span import RUN_PARENT

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

Headers = dict[str, str]

_CONTEXT_HEADERS: Final = frozenset({"traceparent", "b3", "x-b3-traceid", "uber-trace-id"})
"""A message with one of these headers already belongs to a trace."""

TRACE_HEADERS: Final = ("traceparent", "tracestate", "baggage", SENTRY_TRACE)
"""Trace context headers: copied from a request into a message, and from a message into a request."""

_LONGEST: Final = 8192


def trace_headers(headers: Mapping[str, str]) -> Headers:
    """Returns the trace context headers of a request, in lower case, without invalid values."""
    found = {name.lower(): value for name, value in headers.items() if name.lower() in TRACE_HEADERS}
    return {name: value for name, value in found.items() if 0 < len(value) <= _LONGEST and value.isprintable()}


def inject(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Returns `headers` with the current trace context (traceparent, tracestate, baggage, sentry-trace) added.

    In a handler, the correlation id of its message is added, too. The caller's headers stay; nothing is added without a
    current trace or attempt, or if the headers have one already.
    """
    return with_sentry(_add_otel(with_correlation(headers)))


def _add_otel(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    context = sys.modules.get("opentelemetry.context")
    if context is None or not context.get_current():
        return headers
    if headers and any(name.lower() in _CONTEXT_HEADERS for name in headers):
        return headers
    from opentelemetry import propagate  # noqa: PLC0415 - only where the application uses it

    carrier: Headers = {}
    propagate.inject(carrier)
    return {**carrier, **(headers or {})} if carrier else headers


@contextmanager
def without_span() -> Iterator[None]:
    """For the block, no span is current: what is published in it begins a trace of its own. Baggage stays."""
    context = sys.modules.get("opentelemetry.context")
    if context is None or not context.get_current():
        yield
        return
    from opentelemetry import trace  # noqa: PLC0415 - only where the application uses it

    with current_span(trace.INVALID_SPAN):
        yield


def find_tracing(before: Tracing | None = None, ratio: float = 1.0) -> Tracing | None:
    """Returns the Tracing for the application's tracer provider: `before` if it is the same; None if none is set."""
    if "opentelemetry.trace" not in sys.modules and not os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415 - only where the application uses it
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return before if before is not None and before.provider is provider else Tracing(provider, ratio)


class Spans:
    """The open spans of one attempt, their context, and the context to restore afterwards."""

    __slots__ = ("base", "context", "process", "sampled", "send")

    def __init__(self, process: Span, send: Span | None, context: Context, base: Context) -> None:
        self.sampled = process.is_recording()
        self.process = process
        self.send = send
        self.context = context
        self.base = base


class Tracing:
    """Creates the spans of attempts. The publisher's flag and the SDK's sampler decide which are sampled."""

    def __init__(self, provider: TracerProvider, ratio: float = 1.0) -> None:
        from opentelemetry import context, propagate, trace  # noqa: PLC0415 - only where the application uses it

        self.provider = provider
        self._tracer = provider.get_tracer("todoku")
        self._context = context
        self._propagate = propagate
        self._trace = trace
        self._ratio = ratio
        unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))
        self._unsampled = trace.set_span_in_context(unsampled, context.Context())

    def begin(self, claim: Claimed, *, send: bool) -> Spans | None:
        """Begins an attempt's spans and makes them current, so that spans the handler opens are their children.

        The parent is the publisher's span, from the headers, never the current span of the worker. Of attempts without
        headers only the share `ratio` gets spans: calling the SDK costs as much as the rest of an attempt.
        """
        headers = None if claim.headers is None else decode_headers(claim.headers)
        run = run_of(claim, headers)
        if headers is None and run is None and self._ratio < 1.0 and random.random() >= self._ratio:  # noqa: S311 - a sample
            self._context.attach(self._unsampled)  # so that spans of the handler are not sampled either
            return None
        nothing = self._context.Context()
        parent = nothing if headers is None else self._propagate.extract(headers, nothing)
        if run is not None and not self._trace.get_current_span(parent).get_span_context().is_valid:
            parent = self._trace.set_span_in_context(self._parent_of_run(run), parent)
        kinds = self._trace.SpanKind
        process = self._tracer.start_span("outbox.process", parent, kinds.CONSUMER)
        here = self._trace.set_span_in_context(process, parent)
        sending = None
        if process.is_recording():
            process.set_attributes(_attributes(claim))
            if send:
                attributes = send_attributes(claim, claim.destination)
                sending = self._tracer.start_span("broker.send", here, kinds.PRODUCER, attributes)
                here = self._trace.set_span_in_context(sending, here)
            else:
                here = self._context.set_value(TRACER, self._tracer, here)
                if run is not None:
                    here = self._context.set_value(RUN_PARENT, parent, here)
        now = self._context.get_current()
        # An earlier attempt in the same task may not have been left: then restore the context from before that one.
        before: Any = self._context.get_value(_BASE, now)
        base: Context = now if before is None else before
        here = self._context.set_value(_BASE, base, here)
        self._context.attach(here)
        return Spans(process, sending, here, base)

    def _parent_of_run(self, run: str) -> Span:
        """Returns the parent of all attempts of a run that was started outside of a trace: a span that nobody writes.

        Its ids are a digest of the run's, so that every process finds the same trace. The sampler is asked about that
        trace, as about a new one, and `ratio` holds for runs, not for their attempts.
        """
        trace_id, span_id = trace_ids(run)
        # An SDK's tracer has its sampler. Without one, whatever the tracer does with a sampled parent is right.
        sampler = getattr(self._tracer, "sampler", None)
        is_sampled = (trace_id & _LOW_64) < self._ratio * (_LOW_64 + 1)
        if is_sampled and sampler is not None:
            nothing = self._context.Context()
            is_sampled = sampler.should_sample(nothing, trace_id, "outbox.process").decision.is_sampled()
        trace = self._trace
        flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if is_sampled else trace.TraceFlags.DEFAULT)
        parent: Span = trace.NonRecordingSpan(trace.SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags))
        return parent

    def leave(self, spans: Spans) -> None:
        """Restores the context from before the attempt. Does nothing in another task than the one that began it."""
        if self._context.get_current() is spans.context:
            # Not `detach`: its token is valid in one task only, and attempts of a batch do not end in reverse order.
            self._context.attach(spans.base)

    def end(
        self, spans: Spans, *, outcome: str, reason: str | None, error_type: str | None, seconds: float, ago: float
    ) -> None:
        """Ends the spans of an attempt that took `seconds` and ended `ago` seconds before it was settled."""
        found = {"outcome": outcome, "reason": reason, "error.type": error_type}
        attributes = {name: value for name, value in found.items() if value is not None}
        failed = outcome in ("retry", "abort", "lost")
        for span in (spans.send, spans.process):
            if span is None:
                continue
            span.set_attributes({**attributes, "round_trip_ms": round(seconds * 1000, 3)})
            if failed:
                span.set_status(self._trace.StatusCode.ERROR, reason)
            span.end(time.time_ns() - round(ago * 1e9) if span is spans.send else None)

    def with_trace(self, spans: Spans, headers: Mapping[str, str]) -> Headers:
        """Returns `headers` with the trace context of this send, so that it is the parent of the receiver's spans."""
        carrier: Headers = {}
        self._propagate.inject(carrier, spans.context)
        given = {name: value for name, value in headers.items() if name.lower() not in carrier}
        return {**given, **carrier}


_BASE: Final = "todoku-base"
_LOW_64: Final = (1 << 64) - 1
"""The bits of a trace id by which a share of all traces is sampled, here and by OpenTelemetry's sampler."""


def _attributes(claim: Claimed) -> dict[str, str | int]:
    return {
        "destination": claim.destination,
        "attempt": claim.attempt,
        "topic": claim.topic,
        "message_id": claim.message_id,
        "outbox_id": claim.id,
        "messaging.system": "todoku",
    }

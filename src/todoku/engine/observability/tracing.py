"""Spans: `outbox.process` for an attempt, `broker.send` in it. The trace travels in the message's headers.

OpenTelemetry is optional, and never imported here by itself: where nobody has imported it, nobody has configured it,
and then all of this costs a dictionary look-up.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from todoku.core.message import Claimed
from todoku.engine.observability.message_headers import decoded
from todoku.engine.observability.send_span import TRACER, send_attributes
from todoku.engine.observability.sentry import SENTRY_TRACE, with_sentry

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, TracerProvider

Headers = dict[str, str]

_CARRIED: Final = frozenset({"traceparent", "b3", "x-b3-traceid", "uber-trace-id"})
"""A caller who gives one of these headers has decided which trace the message belongs to."""

TRAVELLING: Final = ("traceparent", "tracestate", "baggage", SENTRY_TRACE)
"""Headers by which a trace goes on: from a request into a message, and from a message into a request."""

_LONGEST: Final = 8192


def travelling(headers: Mapping[str, str]) -> Headers:
    """Those of a request's headers by which its trace goes on, in lower case. What cannot be one is left behind."""
    found = {name.lower(): value for name, value in headers.items() if name.lower() in TRAVELLING}
    return {name: value for name, value in found.items() if 0 < len(value) <= _LONGEST and value.isprintable()}


def inject(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """`headers` with the current trace in them (traceparent, tracestate, baggage, sentry-trace), for publishing.

    What the caller gave stays as it is; without a trace, or with one in the headers already, nothing is added.
    """
    return with_sentry(_with_otel(headers))


def _with_otel(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    context = sys.modules.get("opentelemetry.context")
    if context is None or not context.get_current():
        return headers
    if headers and any(name.lower() in _CARRIED for name in headers):
        return headers
    from opentelemetry import propagate  # noqa: PLC0415 - only where somebody uses it

    carrier: Headers = {}
    propagate.inject(carrier)
    return {**carrier, **(headers or {})} if carrier else headers


def configured(before: Tracing | None = None, ratio: float = 1.0) -> Tracing | None:
    """How spans are made here: as `before` if nothing changed; None while no tracer provider is set."""
    if "opentelemetry.trace" not in sys.modules and not os.environ.get("OTEL_PYTHON_TRACER_PROVIDER"):
        return None
    try:
        from opentelemetry import trace  # noqa: PLC0415 - only where somebody uses it
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return before if before is not None and before.provider is provider else Tracing(provider, ratio)


class Spans:
    """The open spans of one attempt, and the contexts to go into and back to."""

    __slots__ = ("base", "context", "process", "sampled", "send")

    def __init__(self, process: Span, send: Span | None, context: Context, base: Context) -> None:
        self.sampled = process.is_recording()
        self.process = process
        self.send = send
        self.context = context
        self.base = base


class Tracing:
    """Makes the spans of attempts. Whether one is sampled, the publisher's flag and the SDK's sampler decide."""

    def __init__(self, provider: TracerProvider, ratio: float = 1.0) -> None:
        from opentelemetry import context, propagate, trace  # noqa: PLC0415 - only where somebody uses it

        self.provider = provider
        self._tracer = provider.get_tracer("todoku")
        self._context = context
        self._propagate = propagate
        self._trace = trace
        self._ratio = ratio
        unsampled = trace.NonRecordingSpan(trace.SpanContext(1, 1, is_remote=False))
        self._unsampled = trace.set_span_in_context(unsampled, context.Context())

    def begin(self, claim: Claimed, *, send: bool) -> Spans | None:
        """Begin an attempt's spans and make them current, so that whatever the handler opens is their child.

        The parent is the publisher's span, from the headers; whatever is current in this worker is not. Of attempts
        without one only the share `ratio` is begun at all: asking the SDK costs as much as the rest of an attempt.
        """
        if claim.headers is None and self._ratio < 1.0 and random.random() >= self._ratio:  # noqa: S311 - a sample
            self._context.attach(self._unsampled)  # what the handler opens is not sampled either
            return None
        nothing = self._context.Context()
        parent = self._propagate.extract(decoded(claim.headers), nothing) if claim.headers is not None else nothing
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
        now = self._context.get_current()
        # An attempt before this one in the same task may not have been left: then go back to where that one began.
        before: Any = self._context.get_value(_BASE, now)
        base: Context = now if before is None else before
        here = self._context.set_value(_BASE, base, here)
        self._context.attach(here)
        return Spans(process, sending, here, base)

    def leave(self, spans: Spans) -> None:
        """The attempt has ended: what follows in this task is not its. Elsewhere than where it began: nothing."""
        if self._context.get_current() is spans.context:
            # Not `detach`: its token is good in one task only, and attempts of a batch do not end in reverse order.
            self._context.attach(spans.base)

    def end(
        self, spans: Spans, *, outcome: str, reason: str | None, error_type: str | None, seconds: float, ago: float
    ) -> None:
        """End the spans of an attempt that took `seconds` and was over `ago` seconds before it was settled."""
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

    def carried(self, spans: Spans, headers: Mapping[str, str]) -> Headers:
        """`headers` as they leave for the destination: the receiver's parent is this very send."""
        carrier: Headers = {}
        self._propagate.inject(carrier, spans.context)
        given = {name: value for name, value in headers.items() if name.lower() not in carrier}
        return {**given, **carrier}


_BASE: Final = "todoku-base"


def _attributes(claim: Claimed) -> dict[str, str | int]:
    return {
        "destination": claim.destination,
        "attempt": claim.attempt,
        "topic": claim.topic,
        "message_id": claim.message_id,
        "outbox_id": claim.id,
        "messaging.system": "todoku",
    }

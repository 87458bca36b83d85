"""Spans of the steps of a run: under the span of the attempt that runs them, in the trace of the run.

A wait may begin and end in different processes, and a span cannot be open across them: it is written when it is over,
with the time at which it began, beside the attempts.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Final

from todoku.engine.observability.metrics import quietly
from todoku.engine.observability.send_span import current_span, current_tracer

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

Attributes = Mapping[str, str | int | float]

RUN_PARENT: Final = "todoku-run-parent"
"""The key in OpenTelemetry's context for the parent of all attempts of a run."""


class RunSpans:
    """The spans of one attempt of a run. Made where the span of the attempt is the current one."""

    def __init__(self, tracer: Tracer, attempt: Span, parent: Context | None) -> None:
        self._tracer = tracer
        self._attempt = attempt
        self._parent = parent

    @quietly
    def begin(self, name: str, attributes: Attributes) -> OpenSpan:
        """Begins the span of a step, and makes it the current one: what its function opens and sends is under it."""
        opened = OpenSpan(self._tracer.start_span(name, attributes=attributes))
        opened.enter()
        return opened

    @quietly
    def waited(self, name: str, attributes: Attributes, began: float) -> None:
        """Writes the span of a wait that is over now and began at this Unix time."""
        span = self._tracer.start_span(name, self._parent, attributes=attributes, start_time=round(began * 1e9))
        span.end()

    @quietly
    def event(self, name: str, attributes: Attributes) -> None:
        """Adds an event to the span of the attempt."""
        self._attempt.add_event(name, attributes)


class OpenSpan:
    """The span of a step that is under way."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._current: AbstractContextManager[None] = current_span(span)

    def enter(self) -> None:
        """Makes it the current span."""
        self._current.__enter__()

    @quietly
    def end(self, attributes: Attributes, *, failed: bool) -> None:
        """Ends it, in the task that began it, and makes the span before it current again."""
        self._current.__exit__(None, None, None)
        self._span.set_attributes(attributes)
        if failed:
            from opentelemetry.trace import StatusCode  # noqa: PLC0415 - only where the application uses it

            self._span.set_status(StatusCode.ERROR)
        self._span.end()


@quietly
def find_run_spans() -> RunSpans | None:
    """Returns the spans of the attempt that this task runs; None: it is not traced. Then this is one look-up."""
    if (tracer := current_tracer()) is None:
        return None
    from opentelemetry import context, trace  # noqa: PLC0415 - only where the application uses it

    parent: Context | None = context.get_value(RUN_PARENT)  # type: ignore[assignment]
    return RunSpans(tracer, trace.get_current_span(), parent)

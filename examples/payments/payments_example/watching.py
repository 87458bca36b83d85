"""What others see of the example: its log, Sentry where SENTRY_DSN says so, its counters in the daemon's metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import todoku
from todoku.client import push_metrics
from todoku.engine.observability.log import configure_logging


def log() -> None:
    """One JSON object a line, to stderr, as the daemon does: for the process of the API."""
    configure_logging("json")


def watch(environ: Mapping[str, str]) -> None:
    """Initialise Sentry before the App is made: handlers then run in the trace of the webhook of their event."""
    if dsn := environ.get("SENTRY_DSN"):
        import sentry_sdk  # noqa: PLC0415 - only where somebody uses it

        sentry_sdk.init(dsn, traces_sample_rate=float(environ.get("SENTRY_TRACES_SAMPLE_RATE", "1")))


@contextmanager
def counted(box: todoku.App, daemon: str | None) -> Iterator[None]:
    """Push what this process publishes to the daemon, whose alert then sees when more than 1 % of it fails."""
    if daemon is None:
        yield
        return
    with push_metrics(box, daemon):
        yield

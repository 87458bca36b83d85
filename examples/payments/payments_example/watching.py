"""Sentry, where SENTRY_DSN says so: todoku's handlers then run in the trace of the webhook that brought their event."""

from __future__ import annotations

from collections.abc import Mapping


def watch(environ: Mapping[str, str]) -> None:
    """Initialise Sentry before the App is made."""
    if dsn := environ.get("SENTRY_DSN"):
        import sentry_sdk  # noqa: PLC0415 - only where somebody uses it

        sentry_sdk.init(dsn, traces_sample_rate=float(environ.get("SENTRY_TRACES_SAMPLE_RATE", "1")))

"""todoku makes messages arrive: jobs, outbox events and webhooks, in the database you already have."""

from todoku.app import App
from todoku.core.backoff import exponential, linear, table
from todoku.core.errors import (
    DatabaseUnavailable,
    DurabilityWarning,
    IdempotencyConflict,
    InvalidMessage,
    NoRoute,
    TodokuError,
)
from todoku.core.message import Message
from todoku.core.outcome import Abort, Retry, Snooze

__all__ = [
    "Abort",
    "App",
    "DatabaseUnavailable",
    "DurabilityWarning",
    "IdempotencyConflict",
    "InvalidMessage",
    "Message",
    "NoRoute",
    "Retry",
    "Snooze",
    "TodokuError",
    "exponential",
    "linear",
    "table",
]

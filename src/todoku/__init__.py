"""todoku makes messages arrive: jobs, outbox events and webhooks, in the database you already have."""

from todoku.app import App
from todoku.core.backoff import exponential, linear, table
from todoku.core.destination import Destination, Outgoing
from todoku.core.errors import (
    DatabaseUnavailable,
    DurabilityWarning,
    IdempotencyConflict,
    InvalidMessage,
    InvalidSetting,
    JobAborted,
    NoRoute,
    NoSuchMessage,
    ResultNotKept,
    TodokuError,
    UnknownJob,
)
from todoku.core.failure import DeliveryError
from todoku.core.message import Message
from todoku.core.outcome import Abort, Done, Retry, Snooze
from todoku.core.status import Status
from todoku.destinations.load import destination
from todoku.destinations.log import log
from todoku.engine.context import Context
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.job import Call, Job
from todoku.engine.operate import Replayed

__all__ = [
    "Abort",
    "App",
    "Call",
    "Context",
    "DatabaseUnavailable",
    "DeliveryError",
    "Destination",
    "Done",
    "DurabilityWarning",
    "Handle",
    "IdempotencyConflict",
    "InvalidMessage",
    "InvalidSetting",
    "Job",
    "JobAborted",
    "Message",
    "NoRoute",
    "NoSuchMessage",
    "Outgoing",
    "Replayed",
    "ResultNotKept",
    "Retry",
    "Snooze",
    "Status",
    "TodokuError",
    "UnknownJob",
    "destination",
    "exponential",
    "linear",
    "log",
    "table",
]

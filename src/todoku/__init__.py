"""todoku makes messages arrive: jobs, outbox events and webhooks, in the database you already have."""

from typing import Any as _Any

from todoku.app import App
from todoku.core.backoff import exponential, linear, table
from todoku.core.destination import Destination, Outgoing
from todoku.core.ending import Ending
from todoku.core.errors import (
    AmbiguousMessage,
    CannotOpen,
    DatabaseUnavailable,
    DurabilityWarning,
    IdempotencyConflict,
    InProgress,
    InvalidMessage,
    InvalidSetting,
    JobAborted,
    NoRoute,
    NoSuchMessage,
    ResultNotKept,
    StepFailed,
    TodokuError,
    UnknownJob,
)
from todoku.core.failure import DeliveryError
from todoku.core.limit import Limit
from todoku.core.message import Message
from todoku.core.outcome import Abort, Done, Retry, Snooze
from todoku.core.projection import Change, Difference, DocumentSource
from todoku.core.status import Status
from todoku.destinations.http import http
from todoku.destinations.kafka import kafka
from todoku.destinations.loader import destination
from todoku.destinations.log import log
from todoku.destinations.nats import nats
from todoku.destinations.pubsub import pubsub
from todoku.destinations.rabbitmq import rabbitmq
from todoku.destinations.redis import redis
from todoku.destinations.search import elasticsearch, opensearch
from todoku.destinations.sqs import sqs
from todoku.engine.context import Context
from todoku.engine.encryption.secret_ref import Ref
from todoku.engine.flows.blocking_flow import BlockingFlow
from todoku.engine.flows.flow import Flow
from todoku.engine.flows.workflow import Workflow
from todoku.engine.jobs.batches import Batch
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.job import Call, Job
from todoku.engine.operations import Replayed
from todoku.engine.projections.chronicle import chronicle
from todoku.engine.projections.comparison import Verified
from todoku.engine.projections.projection import Projection
from todoku.engine.projections.rebuild import Rebuilt
from todoku.engine.schedules import Schedule
from todoku.shells import Shells as _Shells
from todoku.shells import register_shells as _register_shells
from todoku.sources.github import github
from todoku.sources.hmac import hmac
from todoku.sources.shopify import shopify
from todoku.sources.slack import slack
from todoku.sources.standard_webhooks import standard_webhooks
from todoku.sources.stripe import stripe
from todoku.store.batches import BatchStatus

__all__ = [
    "Abort",
    "AmbiguousMessage",
    "App",
    "Batch",
    "BatchStatus",
    "BlockingFlow",
    "Call",
    "CannotOpen",
    "Change",
    "Context",
    "DatabaseUnavailable",
    "DeliveryError",
    "Destination",
    "Difference",
    "DocumentSource",
    "Done",
    "DurabilityWarning",
    "Ending",
    "Flow",
    "Handle",
    "IdempotencyConflict",
    "InProgress",
    "InvalidMessage",
    "InvalidSetting",
    "Job",
    "JobAborted",
    "Limit",
    "Message",
    "NoRoute",
    "NoSuchMessage",
    "Outgoing",
    "Projection",
    "Rebuilt",
    "Ref",
    "Replayed",
    "ResultNotKept",
    "Retry",
    "Schedule",
    "Snooze",
    "Status",
    "StepFailed",
    "TodokuError",
    "UnknownJob",
    "Verified",
    "Workflow",
    "chronicle",
    "destination",
    "elasticsearch",
    "exponential",
    "github",
    "hmac",
    "http",
    "kafka",
    "linear",
    "log",
    "nats",
    "opensearch",
    "pubsub",
    "rabbitmq",
    "redis",
    "shopify",
    "slack",
    "sqs",
    "standard_webhooks",
    "stripe",
    "table",
]


def _ingest_app(box: App) -> _Any:
    from todoku.api.ingest import ingest_app  # noqa: PLC0415 - needs the extra `server`

    return ingest_app(box)


def _metrics_app(box: App) -> _Any:
    from todoku.api.server import metrics_app  # noqa: PLC0415 - needs the extra `server`

    return metrics_app(box)


def _web_app(box: App, auth: _Any) -> _Any:
    from todoku.web.mount import web_app  # noqa: PLC0415 - needs the extra `server`

    return web_app(box, auth)


def _command_line() -> None:
    from todoku.cli.main import main  # noqa: PLC0415 - most programs never run it

    main()


_register_shells(
    _Shells(ingest_app=_ingest_app, metrics_app=_metrics_app, web_app=_web_app, command_line=_command_line)
)

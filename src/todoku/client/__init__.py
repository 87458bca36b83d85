"""One interface to a queue: an App in this process, a todoku server or QStash, with a fallback if it is unavailable."""

from todoku.client.answers import DeadLetter, DeadLetters, Published, Queued
from todoku.client.connection import connect
from todoku.client.failed_events import FailedEvents, failed_events
from todoku.client.metrics_push import MetricsPush, push_metrics
from todoku.client.queue import Queue
from todoku.core.errors import QueueRefused, QueueUnavailable
from todoku.core.http_request import FlowControl

__all__ = [
    "DeadLetter",
    "DeadLetters",
    "FailedEvents",
    "FlowControl",
    "MetricsPush",
    "Published",
    "Queue",
    "QueueRefused",
    "QueueUnavailable",
    "Queued",
    "connect",
    "failed_events",
    "push_metrics",
]

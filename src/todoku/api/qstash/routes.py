"""Every endpoint of `/v2`, and what it needs."""

from __future__ import annotations

from todoku.api.auth import Access, Endpoint, GuardedRoute
from todoku.api.qstash.dlq import DeadLetterEndpoints
from todoku.api.qstash.events import EventEndpoints
from todoku.api.qstash.flows import Flows
from todoku.api.qstash.groups import GroupEndpoints
from todoku.api.qstash.keys import KeyEndpoints
from todoku.api.qstash.messages import Messages
from todoku.api.qstash.publish import PublishEndpoints
from todoku.api.qstash.queues import QueueEndpoints
from todoku.api.qstash.schedules import ScheduleEndpoints
from todoku.api.request_context import RequestContext
from todoku.engine.http.publish_requests import RequestPublisher

Row = tuple[str, str, Endpoint, Access]
"""Methods, path, what answers, what it needs."""


def qstash_routes(context: RequestContext) -> list[GuardedRoute]:
    """The routes. There is none with an empty id: what ends with a slash is nothing, and nothing is redirected."""
    posts = RequestPublisher(context.outbox)
    rows = [
        *_publishing(PublishEndpoints(context, posts)),
        *_messages(Messages(context), EventEndpoints(context)),
        *_dead(DeadLetterEndpoints(context)),
        *_queues(QueueEndpoints(context, posts)),
        *_schedules(ScheduleEndpoints(context)),
        *_groups(GroupEndpoints(context)),
        *_flows(Flows(context, posts)),
        *_keys(KeyEndpoints(context)),
    ]
    return [
        GuardedRoute(path, endpoint, methods=methods.split(), access=access, gate=context.gate)
        for methods, path, endpoint, access in rows
    ]


def _publishing(of: PublishEndpoints) -> list[Row]:
    return [
        ("POST", "/v2/publish/{destination:path}", of.publish, "publish"),
        ("POST", "/v2/enqueue/{queue}/{destination:path}", of.enqueue, "publish"),
        ("POST", "/v2/batch", of.batch, "publish"),
    ]


def _messages(of: Messages, events: EventEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/messages/{id}", of.get, "read"),
        ("DELETE", "/v2/messages/{id}", of.cancel, "operate"),
        ("DELETE", "/v2/messages", of.cancel_many, "operate"),
        ("GET", "/v2/events", events.listed, "read"),
        ("GET", "/v2/logs", events.listed, "read"),
    ]


def _dead(of: DeadLetterEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/dlq", of.listed, "read"),
        ("DELETE", "/v2/dlq", of.remove_many, "operate"),
        ("POST", "/v2/dlq/retry", of.retry_many, "operate"),
        ("POST", "/v2/dlq/retry/{id}", of.retry, "operate"),
        ("GET", "/v2/dlq/{id}", of.get, "read"),
        ("DELETE", "/v2/dlq/{id}", of.remove, "operate"),
    ]


def _queues(of: QueueEndpoints) -> list[Row]:
    return [
        ("POST", "/v2/queues", of.upsert, "operate"),
        ("GET", "/v2/queues", of.listed, "read"),
        ("GET", "/v2/queues/{queue}", of.get, "read"),
        ("DELETE", "/v2/queues/{queue}", of.remove, "operate"),
        ("POST", "/v2/queues/{queue}/pause", of.pause, "operate"),
        ("POST", "/v2/queues/{queue}/resume", of.resume, "operate"),
    ]


def _schedules(of: ScheduleEndpoints) -> list[Row]:
    """Clients send PATCH to pause, the vendor's description says POST: so those two come before what makes one."""
    return [
        ("PATCH POST", "/v2/schedules/{id}/pause", of.pause, "operate"),
        ("PATCH POST", "/v2/schedules/{id}/resume", of.resume, "operate"),
        ("GET", "/v2/schedules", of.listed, "read"),
        ("GET", "/v2/schedules/{id}", of.get, "read"),
        ("DELETE", "/v2/schedules/{id}", of.remove, "operate"),
        ("POST", "/v2/schedules/{destination:path}", of.create, "operate"),
    ]


def _groups(of: GroupEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/topics", of.listed, "read"),
        ("GET", "/v2/topics/{group}", of.get, "read"),
        ("DELETE", "/v2/topics/{group}", of.remove, "operate"),
        ("PATCH", "/v2/topics/{group}", of.defaults, "operate"),
        ("POST", "/v2/topics/{group}/endpoints", of.add, "operate"),
        ("DELETE", "/v2/topics/{group}/endpoints", of.take, "operate"),
    ]


def _flows(of: Flows) -> list[Row]:
    return [
        ("GET", "/v2/flowControl", of.listed, "read"),
        ("GET", "/v2/flowControl/{key}", of.get, "read"),
        ("POST", "/v2/flowControl/{key}/pause", of.pause, "operate"),
        ("POST", "/v2/flowControl/{key}/resume", of.resume, "operate"),
        ("POST", "/v2/flowControl/{key}/pin", of.pin, "operate"),
        ("POST", "/v2/flowControl/{key}/unpin", of.unpin, "operate"),
        ("POST", "/v2/flowControl/{key}/resetRate", of.reset_rate, "operate"),
        ("GET", "/v2/globalParallelism", of.parallelism, "read"),
    ]


def _keys(of: KeyEndpoints) -> list[Row]:
    """Who has them can sign as we do: only an admin sees them."""
    return [
        ("GET", "/v2/keys", of.get, "admin"),
        ("POST", "/v2/keys/rotate", of.rotate, "admin"),
    ]

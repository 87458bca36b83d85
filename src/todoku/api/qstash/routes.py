"""All endpoints of `/v2` and the scopes they need."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Access, Endpoint, GuardedRoute
from todoku.api.qstash.answers import json
from todoku.api.qstash.groups import GroupEndpoints
from todoku.api.qstash.messages import DeadLetterEndpoints, EventEndpoints, MessageEndpoints
from todoku.api.qstash.parsing import Query, signed
from todoku.api.qstash.publish import PublishEndpoints
from todoku.api.qstash.queues import FlowEndpoints, QueueEndpoints
from todoku.api.qstash.schedules import ScheduleEndpoints
from todoku.api.qstash.workflow_dead_letters import WorkflowDeadLetterEndpoints
from todoku.api.qstash.workflow_webhooks import WebhookEndpoint
from todoku.api.qstash.workflows import WorkflowEndpoints
from todoku.api.request_context import RequestContext
from todoku.core.signature import SigningKeys
from todoku.core.workflow_webhook import METHODS
from todoku.engine.http.publish_requests import RequestPublisher
from todoku.engine.http.signing_keys import rotate, signing_keys

# ------------------------------------------------------------
# `/v2/keys`: the signing keys of deliveries.


class KeyEndpoints:
    """The endpoints of signing keys."""

    def __init__(self, context: RequestContext) -> None:
        self._store, self._settings = context.store, context.settings

    def get(self, _: Request) -> Response:
        """Returns both keys: receivers try the current one, then the next."""
        return _body(signing_keys(self._store, self._settings))

    def rotate(self, request: Request) -> Response:
        """Makes the next key current and creates a new next one."""
        return _body(rotate(self._store, self._settings, signed(request, "rotate")))


def _body(keys: SigningKeys) -> Response:
    return json({"current": keys.current, "next": keys.next})


Row = tuple[str, str, Endpoint, Access]
"""Methods, path, endpoint, scope."""


def qstash_routes(context: RequestContext) -> list[GuardedRoute]:
    """Returns the routes. None matches an empty id: a path that ends with a slash is unknown and not redirected."""
    posts = RequestPublisher(context.outbox)
    rows = [
        *_publishing(PublishEndpoints(context, posts)),
        *_messages(MessageEndpoints(context), EventEndpoints(context)),
        *_dead(DeadLetterEndpoints(context), of_runs := WorkflowDeadLetterEndpoints(context)),
        *_queues(QueueEndpoints(context, posts)),
        *_schedules(ScheduleEndpoints(context)),
        *_groups(GroupEndpoints(context)),
        *_flows(FlowEndpoints(context, posts)),
        *_keys(KeyEndpoints(context)),
        *_workflows(WorkflowEndpoints(context)),
        *_dead_of_workflows(of_runs),
        *_webhooks(WebhookEndpoint(context)),
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
        ("POST", "/v2/batch/trigger", of.trigger_many, "publish"),
        ("POST", "/v2/trigger/{destination:path}", of.trigger, "publish"),
    ]


def _messages(of: MessageEndpoints, events: EventEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/messages/{id}", of.get, "read"),
        ("DELETE", "/v2/messages/{id}", of.cancel, "operate"),
        ("DELETE", "/v2/messages", of.cancel_many, "operate"),
        ("GET", "/v2/events", events.list_all, "read"),
        ("GET", "/v2/logs", events.list_all, "read"),
    ]


def _dead(of: DeadLetterEndpoints, of_runs: WorkflowDeadLetterEndpoints) -> list[Row]:
    def list_dead_letters(request: Request) -> Response:
        """Lists all, or those that workflow runs stop for, as the clients of workflows ask."""
        return (of_runs if Query(request).one("source") == "workflow" else of).list_all(request)

    return [
        ("GET", "/v2/dlq", list_dead_letters, "read"),
        ("DELETE", "/v2/dlq", of.remove_many, "operate"),
        ("POST", "/v2/dlq/retry", of.retry_many, "operate"),
        ("POST", "/v2/dlq/retry/{id}", of.retry, "operate"),
        ("GET", "/v2/dlq/{id}", of.get, "read"),
        ("DELETE", "/v2/dlq/{id}", of.remove, "operate"),
    ]


def _queues(of: QueueEndpoints) -> list[Row]:
    return [
        ("POST", "/v2/queues", of.upsert, "operate"),
        ("GET", "/v2/queues", of.list_all, "read"),
        ("GET", "/v2/queues/{queue}", of.get, "read"),
        ("DELETE", "/v2/queues/{queue}", of.remove, "operate"),
        ("POST", "/v2/queues/{queue}/pause", of.pause, "operate"),
        ("POST", "/v2/queues/{queue}/resume", of.resume, "operate"),
    ]


def _schedules(of: ScheduleEndpoints) -> list[Row]:
    """Clients pause by PATCH, QStash's documentation by POST, so these routes precede the one that creates."""
    return [
        ("PATCH POST", "/v2/schedules/{id}/pause", of.pause, "operate"),
        ("PATCH POST", "/v2/schedules/{id}/resume", of.resume, "operate"),
        ("GET", "/v2/schedules", of.list_all, "read"),
        ("GET", "/v2/schedules/{id}", of.get, "read"),
        ("DELETE", "/v2/schedules/{id}", of.remove, "operate"),
        ("POST", "/v2/schedules/{destination:path}", of.create, "operate"),
    ]


def _groups(of: GroupEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/topics", of.list_all, "read"),
        ("GET", "/v2/topics/{group}", of.get, "read"),
        ("DELETE", "/v2/topics/{group}", of.remove, "operate"),
        ("PATCH", "/v2/topics/{group}", of.set_defaults, "operate"),
        ("POST", "/v2/topics/{group}/endpoints", of.add, "operate"),
        ("DELETE", "/v2/topics/{group}/endpoints", of.remove_endpoints, "operate"),
    ]


def _flows(of: FlowEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/flowControl", of.list_all, "read"),
        ("GET", "/v2/flowControl/{key}", of.get, "read"),
        ("POST", "/v2/flowControl/{key}/pause", of.pause, "operate"),
        ("POST", "/v2/flowControl/{key}/resume", of.resume, "operate"),
        ("POST", "/v2/flowControl/{key}/pin", of.pin, "operate"),
        ("POST", "/v2/flowControl/{key}/unpin", of.unpin, "operate"),
        ("POST", "/v2/flowControl/{key}/resetRate", of.reset_rate, "operate"),
        ("GET", "/v2/globalParallelism", of.parallelism, "read"),
    ]


def _keys(of: KeyEndpoints) -> list[Row]:
    """Only for admins: a holder of the keys can forge signatures."""
    return [
        ("GET", "/v2/keys", of.get, "admin"),
        ("POST", "/v2/keys/rotate", of.rotate, "admin"),
    ]


def _workflows(of: WorkflowEndpoints) -> list[Row]:
    """A workflow ends and waits with the token that it publishes with."""
    return [
        ("GET", "/v2/workflows/runs/{id}", of.steps, "read"),
        ("DELETE", "/v2/workflows/runs/{id}", of.end, "publish"),
        ("DELETE", "/v2/workflows/runs", of.cancel_many, "operate"),
        ("GET", "/v2/workflows/events", of.logs, "read"),
        ("GET", "/v2/workflows/logs", of.logs, "read"),
        ("POST", "/v2/wait/{event}", of.wait, "publish"),
        ("POST", "/v2/notify/{event}", of.notify, "publish"),
        ("POST", "/v2/notify/{run}/{event}", of.notify, "publish"),
        ("GET", "/v2/waiters/{event}", of.waiters, "read"),
    ]


def _dead_of_workflows(of: WorkflowDeadLetterEndpoints) -> list[Row]:
    return [
        ("GET", "/v2/workflows/dlq", of.list_all, "read"),
        ("DELETE", "/v2/workflows/dlq", of.remove, "operate"),
        ("POST", "/v2/workflows/dlq/resume", of.resume, "operate"),
        ("POST", "/v2/workflows/dlq/resume/{id}", of.resume_one, "operate"),
        ("POST", "/v2/workflows/dlq/restart", of.restart, "operate"),
        ("POST", "/v2/workflows/dlq/restart/{id}", of.restart_one, "operate"),
        ("POST", "/v2/workflows/dlq/callback/{id}", of.retry_callback, "operate"),
        ("GET", "/v2/workflows/dlq/{id}", of.get, "read"),
        ("DELETE", "/v2/workflows/dlq/{id}", of.remove_one, "operate"),
    ]


def _webhooks(of: WebhookEndpoint) -> list[Row]:
    """Open: the URL itself is the secret, since its caller has no token."""
    return [(" ".join(METHODS), "/v2/workflows/hooks/{user}/{run}/{token}", of.receive, "open")]

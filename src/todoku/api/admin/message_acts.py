"""What an operator does with one message: open what is masked, edit and run it, write a new one."""

from __future__ import annotations

from typing import Annotated, Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, Meta, UnsetType

from todoku.api.admin.messages import read_story
from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByMessage, ByNumber, Parameters, Reasoned, Text, Why, signed
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.core.errors import InvalidMessage
from todoku.engine.diagnostics.opened_message import OpenedMessage, open_message
from todoku.engine.edit import Edit, EditResult, edit
from todoku.engine.jobs.catalogue import Catalogue, read_catalogue
from todoku.engine.new_message import NewMessage, find_problems, publish_new
from todoku.store.audit import Signed

Key = Annotated[str, Meta(min_length=1, max_length=512, pattern=r"^[^\x00]*$")]
Delay = Annotated[float, Meta(ge=0, le=10 * 365 * 86_400)]


@operation("POST", "/messages/{id}/open", access="admin")
def open_masked_message(context: RequestContext, where: ByMessage, body: Reasoned, by: str) -> OpenedMessage:
    """Returns a message without masks, decrypted where a key is here. The audit records who looked, and why, first."""
    return open_message(context.outbox, read_story(context, where.id), signed(by, body))


class EditBody(Parameters, frozen=True, kw_only=True):
    """What to change of a delivery's message; what is left out stays. `***` left in a masked field keeps its value.

    `headers`: all headers of an HTTP request. `purge`: the dead letter is removed afterwards. `why` is needed, except
    with `dry_run`, which only returns the difference and what is wrong with it.
    """

    payload: Any = UNSET
    key: Key | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    purge: bool = False
    dry_run: bool = False
    why: Why | None = None


@operation("POST", "/deliveries/{id}/edit", access="operate")
def edit_delivery(context: RequestContext, where: ByNumber, body: EditBody, by: str) -> EditResult:
    """Runs a delivery as a new message with an edited payload, key or headers, to its destination alone, audited."""
    change = Edit(payload=body.payload, key=body.key, headers=body.headers)
    author = _author(by, body.why, dry_run=body.dry_run)
    return edit(
        context.outbox, context.box.declarations, where.id, change, author, purge=body.purge, dry_run=body.dry_run
    )  # fmt: skip


def _author(by: str, why: str | None, *, dry_run: bool) -> Signed:
    if why is None and not dry_run:
        raise Refused(422, "the body is not acceptable: Object missing required field `why`")
    return Signed(by, why or "")


class NewMessageBody(Parameters, frozen=True, kw_only=True):
    """How to publish a new message. `why` is needed, except with `dry_run`, which only checks it."""

    key: Key | None = None
    idempotency_key: Key | None = None
    delay: Delay | None = None
    priority: Annotated[int, Meta(ge=0, le=15)] = 0
    dry_run: bool = False
    why: Why | None = None


class EnqueueBody(NewMessageBody, frozen=True, kw_only=True):
    """A call of a declared job, or of a consumer with the event that it takes."""

    job: Text
    arguments: Any = None


class PublishBody(NewMessageBody, frozen=True, kw_only=True):
    """A message of a topic, to its routes, or to the destination `to` only."""

    topic: Text
    payload: Any = None
    to: Text | None = None


class NewMessageResult(msgspec.Struct, frozen=True, kw_only=True):
    """The new message; null with `dry_run`. `problems`: what is wrong with its payload, by field ("": the whole)."""

    id: UUID | None
    duplicate: bool
    problems: dict[str, str]


@operation("GET", "/jobs", access="read")
def list_jobs(context: RequestContext) -> Catalogue:
    """Lists the jobs and events that the App of this daemon declares, with the JSON Schema of each."""
    return read_catalogue(context.box.declarations)


@operation("POST", "/enqueue", access="operate", status=201)
def enqueue_job(context: RequestContext, body: EnqueueBody, by: str) -> NewMessageResult:
    """Enqueues a declared job by its name, audited."""
    new = NewMessage(
        job=body.job, payload=body.arguments, key=body.key, idempotency_key=body.idempotency_key, delay=body.delay,
        priority=body.priority,
    )  # fmt: skip
    return _publish(context, new, by, body)


@operation("POST", "/publish", access="operate", status=201)
def publish_message(context: RequestContext, body: PublishBody, by: str) -> NewMessageResult:
    """Publishes a message of a topic, audited."""
    new = NewMessage(
        topic=body.topic, payload=body.payload, to=body.to, key=body.key, idempotency_key=body.idempotency_key,
        delay=body.delay, priority=body.priority,
    )  # fmt: skip
    return _publish(context, new, by, body)


def _publish(context: RequestContext, new: NewMessage, by: str, body: NewMessageBody) -> NewMessageResult:
    author = _author(by, body.why, dry_run=body.dry_run)
    problems = find_problems(context.box.declarations, new)
    if body.dry_run:
        return NewMessageResult(id=None, duplicate=False, problems=problems)
    for where, what in problems.items():
        raise InvalidMessage(f"the payload is not acceptable: {f'{where}: {what}' if where else what}")
    message = publish_new(context.box.declarations, new, author)
    return NewMessageResult(id=message.id, duplicate=message.duplicate, problems={})


OPERATIONS: Final = (open_masked_message, edit_delivery, list_jobs, enqueue_job, publish_message)

"""How deliveries end, and what todoku publishes then: messages to hooks, and the drafts that follow a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.http_request import (
    CALLBACK_TOPIC,
    HTTP,
    QUEUE,
    SECRETS,
    Callback,
    HttpRequest,
    dead_id,
    encode_request,
    is_secret,
    origin,
)
from todoku.core.message import Draft, Leg, with_headers
from todoku.core.msgspec_warmup import warm_up
from todoku.core.outcome import Response
from todoku.core.redaction import redact_body, redact_headers, redact_response_headers
from todoku.core.status import Status
from todoku.core.topic_pattern import matches

# ------------------------------------------------------------
# Callbacks: HTTP requests that report how another request ended.


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that succeeded or failed for good, with all that a callback reports about it."""

    message_id: str
    delivery_id: int
    replay_count: int
    request: HttpRequest
    succeeded: bool
    attempts: int
    created_at: float
    body: bytes | None
    """None: the message is encrypted, so a callback does not contain its body. For a call of a workflow run, the body
    that the run was started with."""
    response: Response | None
    """The receiver's last response; None: it never answered."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The JSON body of a callback. Values of `header` and `sourceHeader` are lists; bytes are base64, times unix ms."""

    status: int
    header: dict[str, list[str]]
    body: bytes
    retried: int
    max_retries: int
    source_message_id: str
    url: str
    method: str
    source_header: dict[str, list[str]]
    created_at: int
    not_before: int
    source_body: bytes | None = None
    dlq_id: str | None = None
    topic_name: str | None = None
    endpoint_name: str | None = None
    schedule_id: str | None = None
    caller_ip: str | None = msgspec.field(default=None, name="callerIP")
    workflow_run_id: str | None = None
    workflow_created_at: int | None = None


def callback_of(request: HttpRequest, *, succeeded: bool) -> Callback | None:
    """Returns the callback of a request that ended like this, if it has one. A callback has no callback of its own.

    A workflow run gets the answer of a third party by the same callback, whatever it is.
    """
    if request.source is not None:
        return None
    if _is_call(request):
        return request.callback
    return request.callback if succeeded else request.failure_callback


def _is_call(request: HttpRequest) -> bool:
    return request.run is not None and request.run.part == "call"


def callback_draft(id: UUID, ended: EndedRequest, to: Callback, trace: dict[str, str]) -> Draft:
    """Returns the message that sends a callback. It has its own retries, and belongs to the trace of the request.

    Its secret headers stay sealed as they were when the request was published: bound to that message, to this URL and
    method, and to the kind of callback.
    """
    request = HttpRequest(
        url=to.url,
        method=to.method,
        headers={"Content-Type": "application/json", **to.headers},
        timeout=to.timeout,
        retries=to.retries,
        retry_delay=to.retry_delay,
        labels=ended.request.labels,
        redact=ended.request.redact,
        source=ended.message_id,
        kind="callback" if ended.succeeded or _is_call(ended.request) else "failure_callback",
        run=to.run,
    )
    secrets = {} if to.sealed is None else {SECRETS: to.sealed}
    leg = Leg(
        destination=origin(to.url), queue=QUEUE, max_attempts=to.retries + 1, timeout=to.timeout
    )  # fmt: skip
    return Draft(
        id=id,
        topic=CALLBACK_TOPIC,
        type=CALLBACK_TOPIC,
        payload_bytes=callback_body(ended),
        content_type=request.headers["Content-Type"],
        headers=msgspec.json.encode({**trace, **secrets, HTTP: encode_request(request)}).decode(),
        labels=msgspec.json.encode(request.labels).decode() if request.labels else None,
        legs=(leg,),
        delay=to.delay,
    )


def callback_body(ended: EndedRequest) -> bytes:
    """Returns the JSON body of a callback. The status is 0 if the receiver never answered."""
    request, response = ended.request, ended.response or Response(0)
    created = round(ended.created_at * 1000)
    retried = max(0, ended.attempts - 1)
    source = None if ended.body is None else redact_body(request, ended.body)
    return msgspec.json.encode(
        _Body(
            status=response.status,
            header=_as_lists(_without_secrets(redact_response_headers(response.headers, request.redact))),
            body=response.body,
            retried=retried,
            # The SDK of a workflow takes a failure for the last one only if both numbers are equal.
            max_retries=retried if _is_call(request) else request.retries,
            source_message_id=ended.message_id,
            url=request.url,
            method=request.method,
            source_header=_as_lists(_without_secrets(redact_headers(request.headers, request.redact))),
            created_at=created,
            not_before=created,
            source_body=source if request.run is None else source or b"",  # which these SDKs require
            dlq_id=None if ended.succeeded else dead_id(ended.delivery_id, ended.replay_count),
            topic_name=request.group,
            endpoint_name=request.endpoint,
            schedule_id=request.schedule,
            caller_ip=request.caller_ip,
            workflow_run_id=None if request.run is None else request.run.id,
            workflow_created_at=None if request.run is None else request.run.created_at,
        )
    )


def _without_secrets(headers: dict[str, str]) -> dict[str, str]:
    """Drops credentials: the receiver of the callback must not learn those for the receiver of the request."""
    return {name: value for name, value in headers.items() if not is_secret(name)}


def _as_lists(headers: dict[str, str]) -> dict[str, list[str]]:
    return {name: [value] for name, value in headers.items()}


Event = Literal["succeeded", "aborted"]
EVENTS: Final[tuple[Event, ...]] = ("succeeded", "aborted")
"""The two ways a delivery ends."""

On = Literal["finished", "succeeded"]
"""When a batch is complete: all its members have ended, or all of them have succeeded."""

OWN: Final = "todoku."
"""Prefix of the topics of todoku's own messages. Their deliveries fire no hook, which would be an endless loop."""

BATCH: Final = "todoku-batch"
"""The header with the id of the batch that a message belongs to."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The message to a hook: how a delivery ended. It does not contain the payload."""

    message_id: UUID
    delivery_id: int
    topic: str
    destination: str
    queue: str
    key: str | None
    status: Status
    reason: str | None
    error: str | None
    attempts: int
    replay_count: int
    """How often the delivery was replayed. It fires the hook again when it ends again after a replay."""
    ended_at: datetime


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """Sends an Ending to the destination `name` for each delivery that ends as `event` and matches the other fields."""

    name: str
    event: Event
    queue: str
    max_attempts: int
    timeout: float | None = None
    topic: str = "**"
    destination: str | None = None
    from_queue: str | None = None

    def fires_for(self, event: str, topic: str, destination: str, queue: str) -> bool:
        """Whether a delivery that ended as `event` fires this hook."""
        return (
            event == self.event
            and self.destination in (None, destination)
            and self.from_queue in (None, queue)
            and not topic.startswith(OWN)
            and matches(self.topic, topic)
        )


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is not stored yet. `next` is published when it is complete."""

    id: UUID
    total: int
    on: On
    next: Following | None = None


class Following(msgspec.Struct, frozen=True):
    """The drafts that are published when a batch is complete, and the batch that these drafts belong to."""

    drafts: tuple[Draft, ...]
    batch: NewBatch | None = None


warm_up(Following)


def add_to_batch(draft: Draft, batch: UUID) -> Draft:
    """Returns the draft as a member of a batch."""
    return with_headers(draft, {BATCH: str(batch)})


def batch_of(headers: str | None) -> UUID | None:
    """Returns the batch of a message with these stored headers; None: it has none, or the header is not an id."""
    if headers is None or BATCH not in headers:
        return None
    try:
        return UUID(msgspec.json.decode(headers, type=dict[str, str]).get(BATCH, ""))
    except ValueError:  # also what msgspec raises
        return None


def chain_drafts(drafts: Sequence[Draft], ids: Sequence[UUID]) -> Following:
    """Chains drafts: each is published when the one before has succeeded.

    Every draft but the last is a batch of one, with an id of `ids`.
    """
    following = Following((drafts[-1],))
    for draft, id in zip(reversed(drafts[:-1]), reversed(ids), strict=True):
        batch = NewBatch(id=id, total=1, on="succeeded", next=following)
        following = Following((add_to_batch(draft, id),), batch)
    return following


def following_drafts(batch: NewBatch) -> Iterator[Draft]:
    """Yields all drafts that will follow the batch, directly and through later batches, in order."""
    following = batch.next
    while following is not None:
        yield from following.drafts
        following = None if following.batch is None else following.batch.next


def without_keys(batch: NewBatch) -> NewBatch:
    """Returns the batch with the data keys removed from its drafts."""
    if batch.next is None:
        return batch
    drafts = tuple(msgspec.structs.replace(draft, sealed_with=None) for draft in batch.next.drafts)
    rest = None if batch.next.batch is None else without_keys(batch.next.batch)
    return msgspec.structs.replace(batch, next=Following(drafts, rest))

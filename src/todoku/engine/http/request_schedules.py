"""Schedules of HTTP requests, stored like other schedules under `http:` and their id.

The plan contains the whole request. A URL group is expanded to the endpoints it has when the schedule fires.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.errors import CannotOpen, InvalidSetting, NotThere
from todoku.core.http_request import HTTP, TOPIC, HttpRequest, request_of
from todoku.core.identity import key_hash
from todoku.core.message import Draft, Idempotency
from todoku.core.redaction import redact_body, redact_request
from todoku.core.schedule import Cron, Plan
from todoku.core.sealed import MasterKeys
from todoku.engine.encryption.sealer import Sealer
from todoku.engine.encryption.secret_headers import NO_MASTERS, open_plan, seal_plan
from todoku.engine.http import flow_control, request_queues
from todoku.engine.http.publish_requests import CheckedRequest, expand_group
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.http.url_groups import open_group
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.schedule import decoded, stored
from todoku.store.audit import Signed
from todoku.store.schedules import Put, ReadGroups, ScheduleRow
from todoku.store.store import Store
from todoku.store.url_groups import GroupRow

_PREFIX: Final = "http:"
_NO_ID: Final = UUID(int=0)


class HttpSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule of HTTP requests. `destination`: a URL, or the name of a URL group."""

    id: str
    destination: str
    when: Cron
    request: HttpRequest
    body: bytes | None
    """None: it is encrypted and cannot be opened here."""
    delay: float
    created_at: datetime
    paused: bool
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_message_id: UUID | None
    last_status: str | None
    """The status of the last message, pending … aborted; None if there is none or it was pruned."""
    error: str | None


def put(outbox: Outbox, id: str, post: CheckedRequest, when: Cron, signed: Signed) -> None:
    """Stores a schedule that sends this request, or replaces the one of this id. InvalidMessage: an empty URL group.

    Creates the queue and the flow key now. The request's deduplication is ignored.
    """
    store, sealer, request = outbox.store, outbox.sealer, post.request
    fifo = request.queue is not None and request_queues.ensure(store, request.queue) == 1
    if request.queue is None and request.flow is not None:
        flow_control.ensure(store, request.flow)
    if request.group is not None:
        expand_group(post, {group.name: group for group in store.url_groups.all(names=[request.group])})
    posting = Posting(delay=post.posting.delay, fifo=fifo)
    most = outbox.settings.max_payload_bytes
    message = request_draft(_NO_ID, request, post.body, posting, max_payload_bytes=most)
    if request.group is not None:  # a placeholder: `expand_groups` builds the drafts to send
        leg = msgspec.structs.replace(message.legs[0], destination=f"group:{request.group}")
        message = msgspec.structs.replace(message, legs=(leg,))

    def build(row: ScheduleRow | None, now: datetime) -> Put | None:
        created_at = now if row is None else _created_at(row)
        plan = Plan(when=when, missed="once", message=message, created_at=created_at, sealed=sealer.is_encrypted(TOPIC))
        return stored(seal_plan(_PREFIX + id, plan, sealer.masters))(row, now)

    store.schedules.put(_PREFIX + id, build, signed, action="schedule")


def list_schedules(store: Store, masters: MasterKeys = NO_MASTERS) -> tuple[HttpSchedule, ...]:
    """Returns all schedules by id. Encrypted parts are included if these master keys open them."""
    rows = [row for row in store.schedules.rows() if row.name.startswith(_PREFIX)]
    last = [row.last_message_id for row in rows if row.last_message_id is not None]
    found = store.deliveries.of_requests(last)
    statuses = {row.message_id: row.status for row in found if row.message_id is not None}
    schedules = (_schedule(row, statuses, masters) for row in rows)
    return tuple(each for each in schedules if each is not None)


def get(store: Store, id: str, masters: MasterKeys = NO_MASTERS) -> HttpSchedule:
    """Returns the schedule of this id. NotThere."""
    for each in list_schedules(store, masters):
        if each.id == id:
            return each
    raise NotThere(f"there is no schedule {id!r}", hint="GET /v2/schedules lists them")


def name_of(store: Store, id: str) -> str:
    """Returns the name of the schedule in `box.schedules`. NotThere."""
    return _PREFIX + get(store, id).id


def expand_groups(drafts: tuple[Draft, ...], groups: ReadGroups, *, sealer: Sealer, body: bool) -> tuple[Draft, ...]:
    """Returns the drafts that a schedule publishes: one per current endpoint of a URL group, with requests sealed.

    `groups` reads groups by name in the transaction that fires the schedule. `body`: seal bodies, too. InvalidMessage:
    a group has no endpoints any more.
    """
    requests = [request_of(draft.headers) for draft in drafts]
    names = sorted({request.group for request in requests if request is not None and request.group is not None})
    found = {group.name: open_group(group, sealer.masters) for group in groups(names)} if names else {}
    pairs = zip(drafts, requests, strict=True)
    return tuple(
        one if request is None else _seal(one, sealer, body=body)
        for draft, request in pairs
        for one in _expand(draft, request, found)
    )


def _seal(draft: Draft, sealer: Sealer, *, body: bool) -> Draft:
    """Seals a request but keeps its slot's idempotency entry, which contains nothing of the request."""
    return msgspec.structs.replace(sealer.seal_request(draft, body=body), idempotency=draft.idempotency)


def _expand(draft: Draft, request: HttpRequest | None, groups: dict[str, GroupRow]) -> Iterator[Draft]:
    if request is None or request.group is None:
        yield draft
        return
    body = draft.payload_bytes or b""
    own = msgspec.json.decode(draft.headers or "{}", type=dict[str, str])
    own.pop(HTTP)
    posting = Posting(delay=draft.delay, fifo=draft.legs[0].lane is not None, trace=own)
    for one in expand_group(CheckedRequest(request=request, body=body, posting=posting), groups):
        expanded = request_draft(new_id(), one.request, body, one.posting, max_payload_bytes=len(body))
        yield msgspec.structs.replace(expanded, idempotency=_endpoint_slot(draft.idempotency, one.request.url))


def _endpoint_slot(slot: Idempotency | None, url: str) -> Idempotency | None:
    """Returns the idempotency of a slot for one endpoint, so that each endpoint gets each slot once."""
    if slot is None:
        return None
    key = f"{slot.key} to {url}"
    return Idempotency(slot.scope, key, key_hash(key), key_hash(key), lasts=slot.lasts)


def _created_at(row: ScheduleRow) -> datetime:
    try:
        return decoded(row.spec).created_at or row.updated_at
    except InvalidSetting:
        return row.updated_at


def _schedule(row: ScheduleRow, statuses: dict[UUID, str], masters: MasterKeys) -> HttpSchedule | None:
    """Returns the schedule; None if it cannot be read because a newer todoku wrote it."""
    try:
        plan = decoded(row.spec)
    except InvalidSetting:
        return None
    with suppress(CannotOpen):  # then without the encrypted parts
        plan = open_plan(row.name, plan, masters)
    request = request_of(plan.message.headers)
    if request is None or not isinstance(plan.when, Cron):
        return None
    return HttpSchedule(
        id=row.name.removeprefix(_PREFIX),
        destination=request.url or request.group or "",
        when=plan.when,
        request=redact_request(request),
        body=None if plan.kept is not None else redact_body(request, plan.message.payload_bytes or b""),
        delay=plan.message.delay,
        created_at=plan.created_at or row.updated_at,
        paused=row.paused,
        next_run_at=row.next_run_at,
        last_run_at=row.last_run_at,
        last_message_id=row.last_message_id,
        last_status=None if row.last_message_id is None else statuses.get(row.last_message_id),
        error=row.error,
    )

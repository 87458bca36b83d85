"""A schedule: its plan, how that is stored, and the messages of its slots.

A plan holds everything a message needs, with its deliveries: any worker on the database can fire it, also one whose App
does not have the job. A message that no worker serves becomes a dead letter like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, TypedDict
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.http_request import request_of
from todoku.core.identity import digest, key_hash, schedule_scope
from todoku.core.message import MAX_TOPIC_LENGTH, Draft, Idempotency
from todoku.core.outcome import Duration
from todoku.core.schedule import Cron, Every, Missed, Plan, When, cron, due_slots, every, next_after, policy, timing
from todoku.core.sealed import MasterKeys, kind_of
from todoku.engine.context import SCHEDULED_AT
from todoku.engine.encryption.secret_headers import NO_MASTERS, open_plan
from todoku.engine.outbox import new_id
from todoku.engine.publish import encode
from todoku.store.schedules import Firing, Put, ScheduleRow, Source
from todoku.store.store import Store

NAMED_BY: Final = "todoku-schedule"
"""The header that names the schedule a message comes from."""

_NOBODY: Final = UUID(int=0)
_FORBIDDEN: Final = ("tx", "at", "idempotency_key", "best_effort")


class Timing(TypedDict, total=False):
    """When a schedule fires: `cron` on the clocks of `tz`, or `every` from `anchor`; and its `missed` policy."""

    cron: str | None
    every: Duration | None
    tz: str
    anchor: datetime | None
    missed: Missed


def timed(
    *, cron: object = None, every: object = None, tz: object = "UTC", anchor: object = None, missed: object = "once"
) -> tuple[When, Missed]:
    """Returns the checked timing and missed policy. InvalidSetting names the wrong argument."""
    return timing(cron, every, tz, anchor), policy(missed)


def checked_name(name: object) -> str:
    """Returns the name of a schedule, or raises InvalidSetting."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_TOPIC_LENGTH or not name.isprintable():
        raise InvalidSetting(f"name cannot be {name!r}", hint=f"a name of 1 to {MAX_TOPIC_LENGTH} characters")
    return name


def plan(draft: Draft, inside: object, given: Mapping[str, object], when: When, missed: Missed) -> Plan:
    """Returns the plan of a schedule whose messages are like this draft; `inside` is its payload, `given` its options.

    The trace of the process that declares it is left out.
    """
    for option in _FORBIDDEN:
        if given.get(option):
            raise InvalidSetting(f"a scheduled call has no {option}", hint="its schedule decides when it runs")
    headers = given.get("headers")
    kept = encode(headers) if headers else None
    message = msgspec.structs.replace(draft, id=_NOBODY, idempotency=None, headers=kept)
    if sealed := kind_of(draft.content_type) is not None:
        message = _emptied(message, inside)
    return Plan(when=when, missed=policy(missed), message=message, sealed=sealed)


def _emptied(message: Draft, inside: object) -> Draft:
    """Refuses arguments of an encrypted topic: plans are stored in the clear, and a sealed one would lose its key."""
    text = "" if isinstance(inside, bytes) else encode(inside)
    if text not in ("{}", "null"):
        raise InvalidSetting(
            f"{message.topic} is encrypted, and a schedule keeps its arguments as they are",
            hint="schedule a job without arguments, which reads the data it needs",
        )
    return msgspec.structs.replace(
        message, payload=text, payload_bytes=None, content_type="application/json", sealed_with=None
    )


def encoded(plan: Plan) -> str:
    """Returns the stored form of a plan."""
    return msgspec.json.encode(plan).decode()


def decoded(text: str) -> Plan:
    """Returns a stored plan. InvalidSetting: a newer todoku or a person wrote something else."""
    try:
        plan = msgspec.json.decode(text, type=Plan)
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidSetting(f"spec cannot be read: {error}", hint="did a newer todoku write it? upgrade") from None
    match plan.when:
        case Cron():
            cron(plan.when.expression, plan.when.tz)
        case Every():
            every(plan.when.seconds, plan.when.anchor)
    return plan


Seal = Callable[[Draft], Draft]
"""Encrypts the payload of a draft."""


def message(name: str, plan: Plan, slot: datetime, seal: Seal, masters: MasterKeys = NO_MASTERS) -> Draft:
    """The message of a slot; a request is sealed later, when it is known where it goes.

    CannotOpen: what it is to send is kept by a master key that is not among these.
    """
    plan = open_plan(name, plan, masters)
    own = {NAMED_BY: name, SCHEDULED_AT: slot.isoformat()}
    given = plan.message.headers
    headers = msgspec.json.decode(given, type=dict[str, str]) | own if given else own
    made = msgspec.structs.replace(plan.message, id=new_id(), headers=encode(headers))
    return seal(made) if plan.sealed and request_of(given) is None else made


def firing(row: ScheduleRow, seal: Seal, *, once_for: float, masters: MasterKeys = NO_MASTERS) -> Firing:
    """Returns the messages of a schedule that is due, by the database's clock (I12).

    The ledger stores each slot for `once_for` seconds: it is not fired again if a person moves the schedule back.
    """
    plan = decoded(row.spec)
    due = due_slots(plan.when, row.next_run_at or row.now, row.now, plan.missed)
    drafts = tuple(_once(row.name, slot, message(row.name, plan, slot, seal, masters), once_for) for slot in due.fire)
    return Firing(drafts, due.fire, due.passed, due.next)


def _once(name: str, slot: datetime, made: Draft, lasts: float) -> Draft:
    key = f"{name} at {slot.isoformat()}"
    # The digest is of the slot, not of the payload: one that changed meanwhile makes no second firing, and no conflict.
    entry = Idempotency(schedule_scope(name), key, key_hash(key), digest(key), lasts=lasts)
    return msgspec.structs.replace(made, idempotency=entry)


def declared(plan: Plan) -> Callable[[ScheduleRow | None, datetime], Put | None]:
    """Returns what the store does with a plan that an App declares."""
    return lambda row, now: _put(plan, "code", row, now)


def stored(plan: Plan) -> Callable[[ScheduleRow | None, datetime], Put | None]:
    """Returns what the store does with a plan that is stored at run time."""
    return lambda row, now: _put(plan, "stored", row, now)


def declare(store: Store, plans: Mapping[str, Plan]) -> None:
    """Stores and announces the schedules that an App declares."""
    store.schedules.declare({name: declared(plan) for name, plan in plans.items()})


def _put(plan: Plan, source: Source, row: ScheduleRow | None, now: datetime) -> Put | None:
    """None if the same plan is stored. A slot that was due before a change is still fired, by the new plan."""
    if row is None or row.next_run_at is None:
        return Put(encoded(plan), next_after(plan.when, now), source)
    before = _readable(row.spec)
    if before == plan and row.source == source:
        return None
    unfired = row.next_run_at <= now and not row.paused
    same = before is not None and before.when == plan.when
    return Put(encoded(plan), row.next_run_at if unfired or same else next_after(plan.when, now), source)


def _readable(spec: str) -> Plan | None:
    try:
        return decoded(spec)
    except InvalidSetting:
        return None

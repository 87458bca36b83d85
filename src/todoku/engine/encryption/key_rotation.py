"""Rotation of master keys: wraps data keys again, and encrypts again what a master key encrypts directly. Shredding
deletes the data keys of past days.

Neither touches a message. Both use small transactions, so a rotation that was killed continues when it is run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from typing import Final

import msgspec

from todoku.core.errors import CannotOpen, InvalidAct, InvalidSetting
from todoku.core.schedule import next_after
from todoku.core.sealed import MasterKeys, WrappedKey, parse_master_sealed
from todoku.engine.encryption.cipher import WrongTag, require_cryptography, unwrap, wrap
from todoku.engine.encryption.secret_headers import reseal_plan, seal_default_headers
from todoku.engine.encryption.stored_secrets import Resealed
from todoku.engine.schedule import decoded, encoded
from todoku.store.audit import Signed
from todoku.store.data_keys import DataKeyStore, Rewrap, Stranded
from todoku.store.schedules import Put, ScheduleRow
from todoku.store.store import Store
from todoku.store.url_groups import GroupRow


def reseal_schedules_and_groups(
    store: Store, masters: MasterKeys, signed: Signed, *, dry_run: bool = False
) -> Resealed:
    """Encrypts the secrets of schedules and URL groups by the current master key, plain ones too.

    Each row is a separate transaction: a killed run continues when it is run again.
    """
    strangers: set[str] = set()
    action = f"rotate to {masters.current.id}"
    number = 0

    def change(row: ScheduleRow | None, _now: datetime) -> Put | None:
        return None if row is None else _reencrypt_schedule(row, masters, strangers)

    for row in store.schedules.rows():
        if _reencrypt_schedule(row, masters, strangers) is None:
            continue
        number += 1
        if not dry_run:
            store.schedules.put(row.name, change, signed, action=action)
    for group in store.url_groups.all():
        if _reencrypt_headers(group, masters, strangers) is None:
            continue
        number += 1
        if not dry_run:
            store.url_groups.change_headers(
                group.name, lambda now: _reencrypt_headers(now, masters, strangers), signed, action=action
            )
    return Resealed(number, tuple(sorted(strangers)))


def _reencrypt_schedule(row: ScheduleRow, masters: MasterKeys, strangers: set[str]) -> Put | None:
    """Returns the schedule under the current master key; None: no change, or it cannot be read here."""
    try:
        before = decoded(row.spec)
    except InvalidSetting:  # a newer todoku wrote it
        return None
    try:
        plan = reseal_plan(row.name, before, masters)
    except CannotOpen:
        strangers.add("" if before.kept is None else before.kept.master_key_id)
        return None
    if plan is None:
        return None
    return Put(encoded(plan), row.next_run_at or next_after(plan.when, row.now), row.source)


def _reencrypt_headers(group: GroupRow, masters: MasterKeys, strangers: set[str]) -> dict[str, str] | None:
    """Returns the default headers under the current master key; None: no change, or they cannot be read here."""
    try:
        headers = seal_default_headers(group.name, group.headers, masters)
    except CannotOpen:
        kept = filter(None, map(parse_master_sealed, group.headers.values()))
        strangers.update(one.master_key_id for one in kept if masters.get(one.master_key_id) is None)
        return None
    return None if headers == group.headers else headers


BATCH: Final = 100
"""Data keys wrapped again in one transaction."""

_FIRST: Final = "0001-01-01"


class Rotated(msgspec.Struct, frozen=True):
    """How many data keys were (with `dry_run`: would be) wrapped again, and which missing master keys wrap others."""

    number: int
    strangers: tuple[str, ...]


class Days(msgspec.Struct, frozen=True):
    """Days whose keys are to be deleted, as ISO dates: from `since` up to, not including, `before`."""

    since: str
    before: str


def rotate(
    keys: DataKeyStore,
    masters: MasterKeys,
    signed: Signed,
    *,
    dry_run: bool = False,
    progress: Callable[[int], None] = lambda _number: None,
) -> Rotated:
    """Wraps every data key by the current master key that is not yet."""
    current = masters.current
    require_cryptography()
    if dry_run:
        stale = [row for row in keys.days() if row.master_key_id != current.id]
        usable = sum(row.number for row in stale if masters.get(row.master_key_id) is not None)
        return Rotated(usable, _sort_ids(row.master_key_id for row in stale if masters.get(row.master_key_id) is None))
    number, after = 0, 0
    strangers: set[str] = set()
    while (done := keys.rewrap(current.id, _rewrap(masters), signed, after=after, limit=BATCH)).last is not None:
        number, after = number + done.number, done.last
        strangers |= done.strangers
        progress(number)
    return Rotated(number, _sort_ids(strangers))


def _sort_ids(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(ids)))


def _rewrap(masters: MasterKeys) -> Rewrap:
    def change(row: WrappedKey) -> WrappedKey | None:
        if (master := masters.get(row.master_key_id)) is None:
            return None
        try:
            key = unwrap(row, master)
        except WrongTag:  # the configured key has this id but other bytes: treated as missing
            return None
        return wrap(row.id, row.day, masters.current, key, os.urandom)

    return change


def days(*, day: date | None, before: date | None, today: date) -> Days:
    """Returns the days the operator chose: one, or all before one. InvalidAct for today, whose keys are in use."""
    match day, before:
        case date(), None:
            chosen = Days(day.isoformat(), (day + timedelta(days=1)).isoformat())
        case None, date():
            chosen = Days(_FIRST, before.isoformat())
        case _:
            raise InvalidAct("it is not clear which days to shred", hint="pass --day YYYY-MM-DD or --before YYYY-MM-DD")
    if chosen.before > today.isoformat():
        raise InvalidAct(
            f"the keys of {today.isoformat()} and later are in use", hint="shred a day after it has ended (UTC)"
        )
    return chosen


def shred(keys: DataKeyStore, chosen: Days, signed: Signed, *, force: bool = False, dry_run: bool = False) -> Stranded:
    """Deletes the data keys of these days: messages sealed with them can never be read again.

    InvalidAct while deliveries of such messages are unfinished, unless `force`.
    """
    found = keys.count_stranded(since=chosen.since, before=chosen.before)
    if dry_run or not found.keys:
        return found
    if found.unfinished and not force:
        raise InvalidAct(
            f"{found.unfinished} unfinished deliveries need these keys, and would become dead letters (SHREDDED)",
            hint="let them finish, or cancel them; --force shreds them too",
        )
    keys.shred(signed, since=chosen.since, before=chosen.before)
    return found

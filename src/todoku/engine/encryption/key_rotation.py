"""Rotation of master keys: data keys are wrapped anew, and what a master key seals itself is sealed anew. Shredding
deletes the data keys of past days.

Neither touches a message. Both go by small transactions, so a rotation that was killed goes on where it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import date, datetime, timedelta
from typing import Final

import msgspec

from todoku.core.errors import CannotOpen, InvalidAct, InvalidSetting
from todoku.core.master_keys import MasterKeys
from todoku.core.schedule import next_after
from todoku.core.sealed import WrappedKey, kept_in
from todoku.engine.encryption.cipher import WrongTag, require_cryptography, unwrapped, wrapped
from todoku.engine.encryption.schedule_secrets import closed_defaults, kept_anew
from todoku.engine.encryption.stored_secrets import Resealed
from todoku.engine.schedule import decoded, encoded
from todoku.store.audit import Signed
from todoku.store.data_keys import DataKeyStore, Rewrap, Stranded
from todoku.store.schedules import Put, ScheduleRow
from todoku.store.store import Store
from todoku.store.url_groups import GroupRow


def rekeep(store: Store, masters: MasterKeys, signed: Signed, *, dry_run: bool = False) -> Resealed:
    """Encrypt by the current master key what is not, plain secrets too. A row a transaction: killed, it goes on."""
    strangers: set[str] = set()
    action = f"rotate to {masters.current.id}"
    number = 0

    def again(row: ScheduleRow | None, _now: datetime) -> Put | None:
        return None if row is None else _rekept(row, masters, strangers)

    for row in store.schedules.rows():
        if _rekept(row, masters, strangers) is None:
            continue
        number += 1
        if not dry_run:
            store.schedules.put(row.name, again, signed, action=action)
    for group in store.url_groups.all():
        if _changed(group, masters, strangers) is None:
            continue
        number += 1
        if not dry_run:
            store.url_groups.change_headers(
                group.name, lambda now: _changed(now, masters, strangers), signed, action=action
            )
    return Resealed(number, tuple(sorted(strangers)))


def _rekept(row: ScheduleRow, masters: MasterKeys, strangers: set[str]) -> Put | None:
    """What is to be stored of a schedule; None: nothing else than there is."""
    try:
        before = decoded(row.spec)
    except InvalidSetting:  # a newer todoku wrote it
        return None
    try:
        plan = kept_anew(row.name, before, masters)
    except CannotOpen:
        strangers.add("" if before.kept is None else before.kept.master_key_id)
        return None
    if plan is None:
        return None
    return Put(encoded(plan), row.next_run_at or next_after(plan.when, row.now), row.source)


def _changed(group: GroupRow, masters: MasterKeys, strangers: set[str]) -> dict[str, str] | None:
    """Default headers as they are to be stored; None: as they are."""
    try:
        headers = closed_defaults(group.name, group.headers, masters)
    except CannotOpen:
        kept = filter(None, map(kept_in, group.headers.values()))
        strangers.update(one.master_key_id for one in kept if masters.get(one.master_key_id) is None)
        return None
    return None if headers == group.headers else headers


BATCH: Final = 100
"""Data keys wrapped anew by one transaction."""

_FIRST: Final = "0001-01-01"


class Rotated(msgspec.Struct, frozen=True):
    """Data keys that are (or with `dry_run` would be) wrapped anew, and master keys that would open others."""

    number: int
    strangers: tuple[str, ...]


class Days(msgspec.Struct, frozen=True):
    """Days whose keys are to be deleted: from `since` to the one before `before`, ISO dates."""

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
    """Wrap every data key that is not under the current master key by it."""
    current = masters.current
    require_cryptography()
    if dry_run:
        stale = [row for row in keys.days() if row.master_key_id != current.id]
        able = sum(row.number for row in stale if masters.get(row.master_key_id) is not None)
        return Rotated(able, _sorted(row.master_key_id for row in stale if masters.get(row.master_key_id) is None))
    number, after = 0, 0
    strangers: set[str] = set()
    while (done := keys.rewrap(current.id, _rewrap(masters), signed, after=after, limit=BATCH)).last is not None:
        number, after = number + done.number, done.last
        strangers |= done.strangers
        progress(number)
    return Rotated(number, _sorted(strangers))


def _sorted(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(ids)))


def _rewrap(masters: MasterKeys) -> Rewrap:
    def change(row: WrappedKey) -> WrappedKey | None:
        if (master := masters.get(row.master_key_id)) is None:
            return None
        try:
            key = unwrapped(row, master)
        except WrongTag:  # other bytes under the same id: as good as not there
            return None
        return wrapped(row.id, row.day, masters.current, key, os.urandom)

    return change


def days(*, day: date | None, before: date | None, today: date) -> Days:
    """The days a person named: one, or all before one. Today's keys are in use."""
    match day, before:
        case date(), None:
            chosen = Days(day.isoformat(), (day + timedelta(days=1)).isoformat())
        case None, date():
            chosen = Days(_FIRST, before.isoformat())
        case _:
            raise InvalidAct("shred which days?", hint="--day YYYY-MM-DD, or --before YYYY-MM-DD")
    if chosen.before > today.isoformat():
        raise InvalidAct(
            f"the keys of {today.isoformat()} and later are in use", hint="shred a day (UTC) when it is over"
        )
    return chosen


def shred(keys: DataKeyStore, chosen: Days, signed: Signed, *, force: bool = False, dry_run: bool = False) -> Stranded:
    """Delete the data keys of these days: what they sealed cannot be read again, by anybody.

    Refused while some of it is unfinished, unless `force`.
    """
    found = keys.stranded(since=chosen.since, before=chosen.before)
    if dry_run or not found.keys:
        return found
    if found.unfinished and not force:
        raise InvalidAct(
            f"{found.unfinished} unfinished deliveries need these keys, and would become dead letters (SHREDDED)",
            hint="let them finish, or cancel them; --force shreds them too",
        )
    keys.shred(signed, since=chosen.since, before=chosen.before)
    return found

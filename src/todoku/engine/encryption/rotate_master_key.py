"""Rotation of what is kept by a master key itself: what schedules and URL groups are to send."""

from __future__ import annotations

from datetime import datetime

from todoku.core.errors import CannotOpen, InvalidSetting
from todoku.core.master_keys import MasterKeys
from todoku.core.schedule import next_after
from todoku.core.sealed import kept_in
from todoku.engine.encryption.schedule_secrets import closed_defaults, kept_anew
from todoku.engine.encryption.stored_secrets import Resealed
from todoku.engine.schedule import decoded, encoded
from todoku.store.http import GroupRow
from todoku.store.port import Store
from todoku.store.schedules import Put, ScheduleRow
from todoku.store.values import Signed


def rekeep(store: Store, masters: MasterKeys, signed: Signed, *, dry_run: bool = False) -> Resealed:
    """Encrypt by the current master key what is not, plain secrets too. A row a transaction: killed, it goes on."""
    strangers: set[str] = set()
    action = f"rotate to {masters.current.id}"
    number = 0

    def again(row: ScheduleRow | None, _now: datetime) -> Put | None:
        return None if row is None else _rekept(row, masters, strangers)

    for row in store.timetable.rows():
        if _rekept(row, masters, strangers) is None:
            continue
        number += 1
        if not dry_run:
            store.timetable.put(row.name, again, signed, action=action)
    for group in store.http.groups():
        if _changed(group, masters, strangers) is None:
            continue
        number += 1
        if not dry_run:
            store.http.change_headers(group.name, lambda now: _changed(now, masters, strangers), signed, action=action)
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

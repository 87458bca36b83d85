"""Publishing, as a sequence of statements that runs on any connection: a pure builder, no I/O.

The statements run one after the other, because each may depend on the rows of the one before it: a statement that
waited for a lock or for a conflicting insert has an old snapshot, so the next one reads again (H14).
Order: lock the lanes, reserve the ledger keys, insert the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from todoku.core.errors import IdempotencyConflict, StoreError, TodokuError
from todoku.core.identity import destination_lock, differing_fields
from todoku.core.message import Draft, Idempotency, Leg, Message
from todoku.store.columns import EPOCH, moment
from todoku.store.database import DialectName
from todoku.store.publish_parameters import array_literal, batch_parameters, json_text, single_document, stored_key
from todoku.store.sql import Statement, Steps, Value

LANE_LOCKS: Final = 256
"""Above this number of lanes, their destinations are locked instead: the lock table of PostgreSQL is small."""

_Key = tuple[str, str]


class Publishing(msgspec.Struct, frozen=True):
    """The target of a publish. `now`: the time in microseconds, where the database has no clock (SQLite)."""

    dialect: DialectName
    queries: Mapping[str, str]
    now: int | None
    notify: bool = True
    """Whether idle workers are notified (PostgreSQL)."""

    def one(self, query: str, **values: Value) -> Statement:
        """Returns a named query as a statement."""
        if self.now is not None:
            values["now"] = self.now
        return Statement(self.queries[query], values)

    def many(self, query: str, rows: Sequence[Mapping[str, Value]]) -> Statement:
        """Returns a named query that runs once for each row. Rows that need `now` contain it."""
        return Statement(self.queries[query], rows)


def publish(
    to: Publishing, drafts: Sequence[Draft], *, locked: bool = False, whole: bool = False
) -> Steps[list[Message]]:
    """Stores drafts with their deliveries. A draft whose key is taken yields the message that has the key.

    Returns the messages in the order of the drafts. `locked`: `lock_destinations` ran in this transaction. `whole`: the
    transaction does nothing else.
    """
    if to.dialect == "postgresql" and drafts and all(map(is_plain, drafts)):
        insert = _insert(to, drafts)
        rows = yield msgspec.structs.replace(insert, alone=True) if whole else insert
        created = moment(cast("float", rows[0][0]))
        return [_message(draft, {}, created) for draft in drafts]
    if to.dialect == "postgresql" and not locked:
        yield from _lock_lanes(to, drafts)
    earlier = yield from _reserve(to, drafts)
    fresh = [draft for draft in drafts if _is_fresh(draft, earlier)]
    created = EPOCH
    if fresh:
        yield from store_data_keys(to, fresh)
        yield from record_gate_calls(to, fresh)
        created = yield from (_insert_postgres if to.dialect == "postgresql" else _insert_sqlite)(to, fresh)
        yield from insert_labels(to, [draft.id for draft in fresh if draft.labels is not None])
    reopened = [draft for draft in drafts if not _is_fresh(draft, earlier) and _key(draft).reopen]
    if reopened:
        yield from _reopen(to, [earlier[_ledger_key(draft)].message_id for draft in reopened])
    return [_message(draft, earlier, created) for draft in drafts]


class _Earlier(msgspec.Struct, frozen=True):
    """A ledger entry of an idempotency key, as read after the reservation."""

    digest: str
    message_id: UUID
    created_at: datetime
    payload: str | None


def _key(draft: Draft) -> Idempotency:
    return cast("Idempotency", draft.idempotency)


def _ledger_key(draft: Draft) -> _Key:
    return _key(draft).scope, _key(draft).key_hash


def _is_fresh(draft: Draft, earlier: Mapping[_Key, _Earlier]) -> bool:
    return draft.idempotency is None or earlier[_ledger_key(draft)].message_id == draft.id


def _message(draft: Draft, earlier: Mapping[_Key, _Earlier], created: datetime) -> Message:
    if _is_fresh(draft, earlier):
        return Message(id=draft.id, topic=draft.topic, key=draft.key, duplicate=False, created_at=created)
    found = earlier[_ledger_key(draft)]
    return Message(id=found.message_id, topic=draft.topic, key=draft.key, duplicate=True, created_at=found.created_at)


# ------------------------------------------------------------------------------------------------ ledger


def _reserve(to: Publishing, drafts: Sequence[Draft]) -> Steps[dict[_Key, _Earlier]]:
    """Reserves each key for its draft, or reads the entry that has it; raises if that entry has another digest."""
    wanted = {_ledger_key(draft): draft for draft in reversed(drafts) if draft.idempotency is not None}
    found: dict[_Key, _Earlier] = {}
    for _ in range(3):  # an entry may be pruned between the two statements, so read again
        missing = [
            _entry(draft)
            for (scope, key_hash), draft in sorted(wanted.items(), key=lambda item: item[0])
            if (scope, key_hash) not in found
        ]
        if not missing:
            break
        for row in (yield from _reserve_entries(to, missing)):
            scope, key_hash, digest, message_id, created_at, payload = cast("tuple[Any, ...]", row)
            found[scope, key_hash] = _Earlier(digest, UUID(message_id), moment(created_at), payload)
    keyed = [draft for draft in drafts if draft.idempotency is not None]
    try:
        for draft in keyed:
            _refuse_conflict(draft, found.get(_ledger_key(draft)))
    except TodokuError:
        # The caller may still commit: no key may stay reserved for a message that was not stored (I1).
        yield from _unreserve(to, keyed)
        raise
    return found


def _unreserve(to: Publishing, keyed: Sequence[Draft]) -> Steps[None]:
    entries = [{"scope": _key(draft).scope, "key_hash": _key(draft).key_hash, "id": str(draft.id)} for draft in keyed]
    if to.dialect == "postgresql":
        yield to.one("publish_unreserve", entries=json_text(entries))
    else:
        yield to.many("publish_unreserve", entries)


def _entry(draft: Draft) -> dict[str, Value]:
    key = _key(draft)
    entry: dict[str, Value] = {
        "scope": key.scope, "key_hash": key.key_hash, "digest": key.digest, "id": str(draft.id),
    }  # fmt: skip
    return entry if key.lasts is None else entry | {"lasts": key.lasts, "until_end": key.until_end}


def _reserve_entries(to: Publishing, entries: list[dict[str, Value]]) -> Steps[Sequence[Sequence[object]]]:
    for query, some in groupby(sorted(entries, key=_reserve_query), _reserve_query):
        if to.dialect == "postgresql":
            yield to.one(query, entries=json_text(list(some)))
        else:
            yield to.many(query, [entry | {"now": to.now} for entry in some])
    rows = yield to.one("publish_reserved", entries=json_text(entries))
    if to.dialect == "postgresql":
        return rows
    found: list[list[Any]] = msgspec.json.decode(cast("str", rows[0][0]))
    return [(*entry, digest, id, at / 1e6, payload) for *entry, digest, id, at, payload in found]


def _reserve_query(entry: dict[str, Value]) -> str:
    if "lasts" not in entry:
        return "publish_reserve"
    return "publish_reserve_run" if entry["until_end"] else "publish_reserve_for"


def _refuse_conflict(draft: Draft, entry: _Earlier | None) -> None:
    key = _key(draft)
    if entry is None:
        raise StoreError(
            f"the ledger entry of key {key.key!r} was removed three times while it was read", hint="publish again"
        )
    if entry.digest == key.digest or entry.digest in key.alike:
        return
    fields = ""
    if entry.payload is not None and draft.payload is not None:
        names = differing_fields(msgspec.json.decode(entry.payload), msgspec.json.decode(draft.payload))
        fields = f"; differs in: {', '.join(names)}" if names else ""
    used = f"key {key.key!r} was used at {entry.created_at:%Y-%m-%d %H:%M:%S} UTC"
    if _kind(entry.digest) not in map(_kind, (key.digest, *key.alike)):
        raise IdempotencyConflict(
            f"{used}; the two bodies cannot be compared: only one is encrypted, or its master key is not configured",
            hint="keep old master keys as long as ledger_ttl, or use a new key",
        )
    raise IdempotencyConflict(f"{used} with another body{fields}", hint="use a new key for a new message")


def _kind(digest: str) -> str:
    """The version and the master key with which a digest was computed."""
    return digest.rpartition(":")[0]


def _reopen(to: Publishing, message_ids: Sequence[UUID]) -> Steps[None]:
    if to.dialect == "postgresql":
        yield to.one("publish_reopen", message_ids="{" + ",".join(map(str, message_ids)) + "}")
        return
    for message_id in message_ids:
        for query in ("audit_reopen", "reopen_ledger", "reopen_lanes", "reopen_gates", "reopen"):
            yield to.one(f"publish_{query}", message_id=str(message_id))


# ------------------------------------------------------------------------------------------------- lanes


def lock_destinations(to: Publishing, locks: Sequence[int]) -> Steps[None]:
    """Locks whole destinations, by sorted numbers, for a transaction that publishes to many lanes in several steps."""
    if to.dialect == "postgresql" and locks:
        yield to.one("publish_lock_destinations_whole", locks=array_literal(locks))


def _lock_lanes(to: Publishing, drafts: Sequence[Draft]) -> Steps[None]:
    """Locks lanes in sorted order, before ids are assigned, so that the ids of a lane follow commit order (I10)."""
    ordered = [leg for draft in drafts for leg in draft.legs if leg.lane is not None]
    if not ordered:
        return
    lanes = sorted({leg.lane for leg in ordered if leg.lane is not None})
    destinations = sorted({destination_lock(leg.destination) for leg in ordered})
    if len(lanes) > LANE_LOCKS:
        yield from lock_destinations(to, destinations)
    else:
        yield to.one("publish_lock_destinations", locks=array_literal(destinations))
        yield to.one("publish_lock_lanes", locks=array_literal(lanes))


def _lane_rows(drafts: Sequence[Draft]) -> list[dict[str, Value]]:
    legs = {leg.lane: leg for draft in drafts for leg in draft.legs if leg.lane is not None}
    return [{"lane": lane, "queue": leg.queue, "destination": leg.destination} for lane, leg in sorted(legs.items())]


def record_gate_calls(to: Publishing, drafts: Sequence[Draft]) -> Steps[None]:
    """Records at which gates deliveries wait. Rows are only appended: publishers of one key never block each other."""
    rows: dict[int, dict[str, Value]] = {
        leg.gate: {"gate": leg.gate, "queue": leg.queue, "destination": leg.destination, "key": draft.key}
        for draft in drafts
        for leg in draft.legs
        if leg.gate is not None and leg.dead is None
    }
    if rows and to.dialect == "postgresql":
        yield to.one("publish_gate_calls", gates=json_text(list(rows.values())))
    elif rows:
        yield to.many("publish_gate_calls", list(rows.values()))


# ------------------------------------------------------------------------------------------------- rows


def _insert_postgres(to: Publishing, drafts: Sequence[Draft]) -> Steps[datetime]:
    """Inserts all messages and deliveries by one statement, with parameters that are texts for every driver.

    What messages have in common, of a batch usually all but the payload, is sent and parsed once (decision 43).
    """
    if lanes := _lane_rows(drafts):
        yield to.one("publish_lanes", lanes=json_text(lanes))
    rows = yield _insert(to, drafts)
    return moment(cast("float", rows[0][0]))


def _insert(to: Publishing, drafts: Sequence[Draft]) -> Statement:
    if len(drafts) == 1 and len(drafts[0].legs) == 1:
        return to.one("publish_one", draft=single_document(drafts[0]), notify=to.notify)
    return to.one("publish", **batch_parameters(drafts), notify=to.notify)


def is_plain(draft: Draft) -> bool:
    """Whether the message is stored by the insert alone: there is nothing to lock, reserve, call or label."""
    if draft.idempotency is not None or draft.labels is not None or draft.sealed_with is not None:
        return False
    for leg in draft.legs:  # noqa: SIM110 - every single publish is asked: a generator costs as much as the rest
        if leg.lane is not None or leg.gate is not None:
            return False
    return True


def insert_labels(to: Publishing, message_ids: Sequence[UUID]) -> Steps[None]:
    """Makes labels findable. Messages without labels cost no statement."""
    if message_ids and to.dialect == "postgresql":
        yield to.one("publish_labels", ids="{" + ",".join(map(str, message_ids)) + "}")
    elif message_ids:
        yield to.many("publish_labels", [{"id": str(id)} for id in message_ids])


def store_data_keys(to: Publishing, drafts: Sequence[Draft]) -> Steps[None]:
    """Stores the data keys that drafts were encrypted with, in the same transaction as the messages."""
    keys = {str(key.id): key for draft in drafts if (key := draft.sealed_with) is not None}
    rows: list[dict[str, Value]] = [
        {"id": id, "day": key.day, "master_key_id": key.master_key_id, "wrapped": key.wrapped}
        for id, key in sorted(keys.items())
    ]
    if rows and to.dialect == "postgresql":
        yield to.one("publish_data_keys", keys=json_text(rows))
    elif rows:
        yield to.many("publish_data_keys", [row | {"now": to.now} for row in rows])


def _insert_sqlite(to: Publishing, drafts: Sequence[Draft]) -> Steps[datetime]:
    now = cast("int", to.now)
    yield to.many("publish_message", [_message_row(draft, now) for draft in drafts])
    if lanes := _lane_rows(drafts):
        yield to.many("publish_lane", [row | {"now": now} for row in lanes])
    yield to.many("publish_delivery", [_delivery_row(draft, leg, now) for draft in drafts for leg in draft.legs])
    return moment(now / 1e6)


def _message_row(draft: Draft, now: int) -> dict[str, Value]:
    key = stored_key(draft)
    return {
        "id": str(draft.id),
        "topic": draft.topic,
        "type": draft.type,
        "key": draft.key,
        "payload": draft.payload,
        "payload_bytes": draft.payload_bytes,
        "content_type": draft.content_type,
        "headers": draft.headers,
        "labels": draft.labels,
        "scope": None if key is None else key.scope,
        "key_hash": None if key is None else key.key_hash,
        "digest": None if key is None else key.digest,
        "now": now,
    }


def _delivery_row(draft: Draft, leg: Leg, now: int) -> dict[str, Value]:
    start = now if draft.at is None else round(draft.at.timestamp() * 1e6)
    return {
        "id": str(draft.id),
        "destination": leg.destination,
        "queue": leg.queue,
        "lane": leg.lane,
        "gate": leg.gate,
        "priority": leg.priority,
        "max_attempts": leg.max_attempts,
        "timeout": leg.timeout,
        "next_run_at": start + round(draft.delay * 1e6),
        "expires_at": None if draft.expires is None else now + round(draft.expires * 1e6),
        "dead": leg.dead,
        "now": now,
    }

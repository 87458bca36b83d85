"""The ledger: one entry for each idempotency key and scope; and the inbox of consumers.

`box.once` reserves entries with the scope `once:<scope>`, and with the caller's token in place of a message id: only
the caller that reserved a key can record its result or give it back. These functions are steps, so that they run in the
caller's own transaction.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from todoku.store.columns import moment, uuid_or_none
from todoku.store.database import Database
from todoku.store.publish import Publishing
from todoku.store.sql import Statement, Steps, Value


class Entry(msgspec.Struct, frozen=True):
    """A ledger entry."""

    digest: str
    state: str
    message_id: UUID | None
    http_status: int | None
    response: str | None
    created_at: datetime
    updated_at: datetime


class LedgerStore:
    """Reads the ledger of one database. Publishing, settling and the functions below write it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def entry(self, scope: str, key_hash: str) -> Entry | None:
        """The entry of a key; None: there is none."""
        for digest, state, message_id, status, response, created, updated in self._database.read(
            lambda tx: tx.rows("entry", scope=scope, key_hash=key_hash)
        ):
            return Entry(digest, state, uuid_or_none(message_id), status, response, moment(created), moment(updated))
        return None


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a key: if it is free, it is reserved under the token for `lasts` seconds."""

    scope: str
    key_hash: str
    digest: str
    token: UUID
    lasts: float


class Found(msgspec.Struct, frozen=True):
    """The entry of a key. `first`: this reservation created it."""

    first: bool
    digest: str
    state: str
    status: int | None
    response: str | None
    created_at: datetime


def reserve(to: Publishing, wanted: Reservation) -> Steps[Found]:
    """The key's entry, created if there is none or if it has expired. Waits for a transaction that is creating it."""
    place = {"scope": wanted.scope, "key_hash": wanted.key_hash}
    entry: dict[str, Value] = {**place, "digest": wanted.digest, "id": str(wanted.token), "lasts": wanted.lasts}
    while True:  # an entry may be pruned between the two statements, so read again
        yield _entry_statement(to, "publish_reserve_for", entry)
        if rows := cast("list[tuple[Any, ...]]", (yield to.one("once_found", **place))):
            # Under repeatable read the caller may see two: its own, and one removed since it began. Prefer its own.
            digest, state, token, status, response, created_at = min(rows, key=lambda row: row[2] != str(wanted.token))
            mine = token == str(wanted.token)
            return Found(mine, digest, state, status, response, moment(created_at))


def _entry_statement(to: Publishing, query: str, entry: dict[str, Value]) -> Statement:
    if to.dialect == "sqlite":
        return to.one(query, **entry)
    return to.one(query, entries=msgspec.json.encode([entry]).decode())


def record(to: Publishing, wanted: Reservation, *, state: str, status: int | None, response: str | None) -> Steps[bool]:
    """Records the result of a reservation for `lasts` seconds. False: another caller has the key by now."""
    rows = yield to.one(
        "once_record",
        scope=wanted.scope,
        key_hash=wanted.key_hash,
        token=str(wanted.token),
        state=state,
        status=_number(to, status),
        response=response,
        lasts=_number(to, wanted.lasts),
    )
    return bool(rows)


def conclude(
    to: Publishing, scope: str, key_hash: str, *, state: str, status: int, response: str, lasts: float
) -> Steps[bool]:
    """Records the result of an accepted entry, whichever caller accepted it. False: no such entry is open."""
    rows = yield to.one(
        "once_conclude",
        scope=scope,
        key_hash=key_hash,
        state=state,
        status=_number(to, status),
        response=response,
        lasts=_number(to, lasts),
    )
    return bool(rows)


def _number(to: Publishing, value: float | None) -> Value:
    """A number that every driver accepts: for PostgreSQL it is text, and the query casts it."""
    return value if value is None or to.dialect == "sqlite" else str(value)


def forget(to: Publishing, wanted: Reservation) -> Steps[None]:
    """Gives a reservation back: its key is free again."""
    entry: dict[str, Value] = {"scope": wanted.scope, "key_hash": wanted.key_hash, "id": str(wanted.token)}
    yield _entry_statement(to, "publish_unreserve", entry)


# ------------------------------------------------------------------------------------------------- inbox


def record_seen(to: Publishing, consumer: str, message_id: UUID) -> Steps[bool]:
    """Records that a consumer has seen a message. False: it had already. Waits for a transaction that records it."""
    return bool((yield to.one("inbox_once", consumer=consumer, message_id=str(message_id))))


def record_newer(to: Publishing, consumer: str, key: str, sequence: int) -> Steps[bool]:
    """Records a sequence number of a key. False: the consumer has already seen this or a newer one."""
    return bool((yield to.one("inbox_newer", consumer=consumer, key=key, sequence=_number(to, sequence))))

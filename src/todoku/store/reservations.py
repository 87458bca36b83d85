"""Once, as lists of statements for whatever connection the caller has: ledger entries of people's own, and the inbox.

An entry of somebody's own has the scope `once:<scope>`, and as its message id the token of whoever reserved it: only
that one can record what came of it, or take it back.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast
from uuid import UUID

import msgspec

from todoku.store.port import Statement, Steps, Value
from todoku.store.publish import Publishing
from todoku.store.values import moment


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A key somebody wants: for himself if it is free, under a token of his own, for `lasts` seconds."""

    scope: str
    key_hash: str
    digest: str
    token: UUID
    lasts: float


class Found(msgspec.Struct, frozen=True):
    """The entry of a key. `first`: it is the reservation's own."""

    first: bool
    digest: str
    state: str
    status: int | None
    response: str | None
    created_at: datetime


def reserve(to: Publishing, wanted: Reservation) -> Steps[Found]:
    """The key's entry: made now if there was none, or one whose time is over. Waits for who is about to make it."""
    place = {"scope": wanted.scope, "key_hash": wanted.key_hash}
    entry: dict[str, Value] = {**place, "digest": wanted.digest, "id": str(wanted.token), "lasts": wanted.lasts}
    while True:  # an entry may be pruned between the two statements, so look again
        yield _documented(to, "publish_reserve_for", entry)
        if rows := cast("list[tuple[Any, ...]]", (yield to.one("once_found", **place))):
            # A caller's repeatable read may see two: its own, and one that was removed since it began. Its own counts.
            digest, state, token, status, response, created_at = min(rows, key=lambda row: row[2] != str(wanted.token))
            mine = token == str(wanted.token)
            return Found(mine, digest, state, status, response, moment(created_at))


def _documented(to: Publishing, query: str, entry: dict[str, Value]) -> Statement:
    if to.dialect == "sqlite":
        return to.one(query, **entry)
    return to.one(query, entries=msgspec.json.encode([entry]).decode())


def record(to: Publishing, wanted: Reservation, *, state: str, status: int | None, response: str | None) -> Steps[bool]:
    """Say what came of a reservation, and how long that is remembered. False: the key is somebody else's by now."""
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
    """Say what came of an entry that was accepted before, whoever accepted it. False: there is none that waits."""
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
    """A number for whatever driver: PostgreSQL's want to know each parameter's type, so there it is text, and cast."""
    return value if value is None or to.dialect == "sqlite" else str(value)


def forget(to: Publishing, wanted: Reservation) -> Steps[None]:
    """Take back a reservation: its key is free again."""
    entry: dict[str, Value] = {"scope": wanted.scope, "key_hash": wanted.key_hash, "id": str(wanted.token)}
    yield _documented(to, "publish_unreserve", entry)


# ------------------------------------------------------------------------------------------------- inbox


def seen(to: Publishing, consumer: str, message_id: UUID) -> Steps[bool]:
    """Whether this consumer sees this message for the first time; waits for who sees it at this moment."""
    return bool((yield to.one("inbox_once", consumer=consumer, message_id=str(message_id))))


def newer(to: Publishing, consumer: str, key: str, sequence: int) -> Steps[bool]:
    """Whether this is newer than all that this consumer has seen of the key; then it is the newest from now on."""
    return bool((yield to.one("inbox_newer", consumer=consumer, key=key, sequence=_number(to, sequence))))

"""Messages, and everything that happened to them since they were published."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.identity import uuid7
from todoku.store.attempts import Attempt, attempt
from todoku.store.audit import AuditRow
from todoku.store.columns import build, moment, uuid
from todoku.store.database import Database, Tx
from todoku.store.deliveries import Delivery, Filter, delivery, finished_parameters, parameters


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as it is stored."""

    seq: int
    id: UUID
    topic: str
    type: str
    key: str | None
    payload: str | None
    payload_bytes: bytes | None
    content_type: str
    headers: str | None
    labels: str | None
    created_at: datetime
    key_hash: str | None = None
    """Of its idempotency key, if it has one."""


class Story(msgspec.Struct, frozen=True):
    """A message with its deliveries, their failed attempts, and the acts of operators on them."""

    message: StoredMessage
    deliveries: tuple[Delivery, ...]
    attempts: tuple[Attempt, ...]
    audit: tuple[AuditRow, ...]


class Repeatable(msgspec.Struct, frozen=True):
    """A delivery that succeeded, and its message."""

    delivery: Delivery
    message: StoredMessage


class Preview(msgspec.Struct, frozen=True):
    """The payload of a message if it is JSON and small enough to show; its size in bytes."""

    payload: str | None
    size: int
    content_type: str


class StoredRequest(msgspec.Struct, frozen=True):
    """A message that is an HTTP request, with its headers and its body as they are stored, encrypted or not."""

    message_id: UUID
    topic: str
    content_type: str
    raw: bytes
    headers: str | None
    created_at: datetime


class Follower(msgspec.Struct, frozen=True):
    """A message that another one may have brought about: published while that ran, or just after it ended."""

    id: UUID
    topic: str
    key: str | None
    created_at: datetime
    headers: str | None
    labels: str | None


class Followers(msgspec.Struct, frozen=True):
    """What followed a message. `complete` is False if more was published meanwhile than was looked at."""

    items: tuple[Follower, ...]
    complete: bool


class MessageStore:
    """The messages of one database. Only reads: publishing is in `publish`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def story(self, message_id: UUID) -> Story | None:
        """Everything known about a message; None: there is no such message."""
        return self._database.read(lambda tx: _story(tx, message_id))

    def last_seq(self) -> int:
        """The seq of the message that was stored last; 0: there is none."""
        return int(self._database.read(lambda tx: tx.rows("last_message"))[0][0])

    def find_repeatable(
        self, which: Filter, *, last: int, after: tuple[int, int] = (0, 0), limit: int = 500
    ) -> tuple[Repeatable, ...]:
        """Deliveries that succeeded, with their messages, in publish order: those behind (message's seq, delivery).

        Only of messages up to the seq `last`, so that what runs again is not found in its turn. Deliveries of messages
        that were pruned are left out.
        """
        (after_seq, after_id), filters = after, finished_parameters(which)
        if which.message_id is not None:  # read the history of this message only
            found = self._database.read(lambda tx: tx.rows("message", message_id=which.message_id))
            seq = found[0][0] if found else 0
            after_seq, after_id, last = (*max(after, (seq - 1, _HIGHEST)), min(last, seq))
        values = {"after_seq": after_seq, "after_id": after_id, "last_seq": last, "most": limit}
        rows = self._database.read(lambda tx: tx.rows("find_repeatable", **filters, **values))
        return tuple(Repeatable(delivery(row[:_COLUMNS]), _message(row[_COLUMNS:])) for row in rows)

    def find_followers(
        self,
        message_id: UUID,
        windows: Sequence[tuple[datetime, datetime]],
        *,
        needles: Sequence[str] = (),
        look: int = 1000,
        most: int = 50,
    ) -> Followers:
        """Messages published in these spans of time whose headers or labels contain one of the texts, and hooks' calls.

        A public id begins with its time, so each span is read by the index of ids: at most `look` messages of each.
        """
        values: dict[str, Any] = {"message_id": message_id, "needles": list(needles), "look": look, "most": most}

        def work(tx: Tx) -> Followers:
            found: dict[UUID, Follower] = {}
            complete = True
            for first, last in windows:
                ends = {"since": _id_at(first, b"\0"), "until": _id_at(last, b"\xff")}
                rows = tx.rows("find_followers", **values, **ends)
                for id, topic, key, at, *rest in rows:
                    found[uuid(id)] = Follower(uuid(id), topic, key, moment(at), *rest)
                complete = complete and len(rows) < most and not tx.rows("followers_beyond", **ends, look=look)
            return Followers(tuple(found.values()), complete)

        return self._database.read(work)

    def find_labelled(self, labels: Sequence[str], *, limit: int = 50) -> tuple[Follower, ...]:
        """The oldest messages that have one of these labels."""
        rows = self._database.read(lambda tx: tx.rows("labelled_messages", labels=list(labels), most=limit))
        return tuple(Follower(uuid(id), topic, key, moment(at), *rest) for id, topic, key, at, *rest in rows)

    def requests(self, message_ids: Sequence[UUID]) -> dict[UUID, StoredRequest]:
        """Those of these messages that are HTTP requests."""
        ids = [str(id) for id in message_ids]
        rows = self._database.read(lambda tx: tx.rows("requests", ids=ids)) if ids else []
        return {
            uuid(id): StoredRequest(uuid(id), topic, kind, bytes(raw or b""), headers, moment(at))
            for id, topic, kind, raw, headers, at in rows
        }

    def headers(self, message_ids: Sequence[UUID]) -> dict[UUID, str]:
        """The stored headers of those of these messages that have some."""
        ids = [str(id) for id in message_ids]
        rows = self._database.read(lambda tx: tx.rows("message_headers", ids=ids)) if ids else []
        return {uuid(id): headers for id, headers in rows}

    def previews(self, message_ids: Sequence[UUID], *, largest: int = 65_536) -> dict[UUID, Preview]:
        """Previews of these messages; of one larger than `largest` bytes only its size."""
        if not message_ids:
            return {}
        ids = [str(id) for id in message_ids]
        rows = self._database.read(lambda tx: tx.rows("previews", ids=ids, largest=largest))
        return {uuid(id): Preview(payload, size, kind) for id, payload, size, kind in rows}


def _id_at(when: datetime, filling: bytes) -> UUID:
    return uuid7(max(0, round(when.timestamp() * 1000)), filling * 10)


_COLUMNS: Final = len(Delivery.__struct_fields__)
_HIGHEST: Final = (1 << 63) - 1


def _message(row: tuple[Any, ...]) -> StoredMessage:
    return build(StoredMessage, row[0], uuid(row[1]), *row[2:-2], moment(row[-2]), row[-1])


def _story(tx: Tx, message_id: UUID) -> Story | None:
    found = tx.rows("message", message_id=message_id)
    if not found:
        return None
    message = _message(found[0])
    values = parameters(Filter(message_id=message_id))
    deliveries = [delivery(row) for row in tx.rows("find_of_message", **values, before=None, most=20_000)]
    ids = [each.id for each in deliveries]
    attempts = tx.rows("attempts", ids=ids) if ids else []
    audits = tx.rows("audits", targets=[f"message:{message_id}", *(f"delivery:{id}" for id in ids)])
    return Story(
        message,
        tuple(sorted(deliveries, key=lambda each: each.id)),
        tuple(attempt(row) for row in attempts),
        tuple(AuditRow(moment(row[0]), *row[1:]) for row in audits),
    )

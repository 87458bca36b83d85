"""Data keys, stored wrapped by a master key. Decryption reads them; rotation and shredding change them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from todoku.core.http_request import SECRETS
from todoku.core.sealed import SEALED, WrappedKey
from todoku.store.audit import Signed
from todoku.store.columns import moment, uuid
from todoku.store.database import Database, Tx

Rewrap = Callable[[WrappedKey], WrappedKey | None]
"""Wraps a data key by another master key; None: its present master key is not configured."""


class DayKeys(msgspec.Struct, frozen=True):
    """The data keys of one day under one master key: how many, and when the first was stored."""

    day: str
    master_key_id: str
    number: int
    since: datetime


class Rewrapped(msgspec.Struct, frozen=True):
    """The number of rewrapped keys, the ids of missing master keys, and the last row read (None: no more)."""

    number: int
    strangers: frozenset[str]
    last: int | None


class Stranded(msgspec.Struct, frozen=True):
    """The number of data keys, and of what cannot be decrypted without them (R13).

    `steps` and `signals` are those of runs, also of runs that have succeeded and are kept for a while.
    """

    keys: int
    unfinished: int
    dead: int
    steps: int = 0
    signals: int = 0


class Sample(msgspec.Struct, frozen=True):
    """A message for `todoku doctor`: its payload only if that is JSON, not encrypted and not large."""

    seq: int
    topic: str
    payload: str | None
    bytes: int
    is_opaque: bool
    """Whether the payload is encrypted or not JSON."""


class DataKeyStore:
    """The data keys of one database. Days are ISO dates, from `since` to the one before `before`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, ids: Sequence[UUID]) -> tuple[WrappedKey, ...]:
        """Every stored copy of these keys; a shredded key has none."""
        rows = self._database.read(lambda tx: tx.rows("data_keys", ids=[str(id) for id in ids]))
        return tuple(_wrapped(*row) for row in rows)

    def days(self) -> tuple[DayKeys, ...]:
        """The data keys by day and master key, the oldest day first."""
        rows = self._database.read(lambda tx: tx.rows("data_key_days"), pinned=False)
        return tuple(DayKeys(day, master, number, moment(since)) for day, master, number, since in rows)

    def rewrap(self, current: str, change: Rewrap, signed: Signed, *, after: int = 0, limit: int = 100) -> Rewrapped:
        """Rewraps the next `limit` keys that are not under `current`, in one audited transaction."""
        return self._database.write("rewrap", lambda tx: _rewrap(tx, current, change, signed, after, limit))

    def count_stranded(self, *, since: str, before: str) -> Stranded:
        """Counts what cannot be decrypted without the keys of these days. Reads every delivery and message."""

        def work(tx: Tx) -> Stranded:
            ((keys,),) = tx.rows("count_data_keys", since=since, before=before)
            like = {"kind": f"{SEALED};%", "secrets": f'%"{SECRETS}"%'}
            ((unfinished, dead),) = tx.rows("stranded", since=since, before=before, **like)
            ((steps, signals),) = tx.rows("stranded_runs", since=since, before=before, kind=like["kind"])
            return Stranded(keys, unfinished, dead, steps, signals)

        return self._database.snapshot(work)

    def shred(self, signed: Signed, *, since: str, before: str) -> int:
        """Deletes the keys of these days irrevocably, audited. Returns their number."""
        return self._database.write("shred", lambda tx: _shred(tx, since, before, signed))

    def samples(self, *, most: int = 1000, largest: int = 16_384) -> tuple[Sample, ...]:
        """The newest messages, at most `most`."""
        rows = self._database.read(lambda tx: tx.rows("newest_messages", most=most, largest=largest))
        return tuple(Sample(seq, topic, text, size, bool(opaque)) for seq, topic, text, size, opaque in rows)

    def payloads(self, seqs: Sequence[int]) -> tuple[tuple[str, str], ...]:
        """Topic and payload of these messages, the newest first, if it is JSON and not encrypted."""
        rows = self._database.read(lambda tx: tx.rows("payloads", seqs=list(seqs)))
        return tuple((topic, text) for topic, text in rows)


def _rewrap(tx: Tx, current: str, change: Rewrap, signed: Signed, after: int, limit: int) -> Rewrapped:
    rows = tx.rows("stale_data_keys", current=current, after=after, most=limit)
    changed: list[str] = []
    strangers: set[str] = set()
    for seq, *row in rows:
        old = _wrapped(*row)
        if (new := change(old)) is None:
            strangers.add(old.master_key_id)
            continue
        tx.rows("rewrap_data_key", seq=seq, master_key_id=new.master_key_id, wrapped=new.wrapped)
        changed.append(f"data_key:{old.id}")
    if changed:
        tx.rows("audit", by=signed.by, why=signed.why, action=f"rotate to {current}", targets=changed)
    return Rewrapped(len(changed), frozenset(strangers), rows[-1][0] if rows else None)


def _shred(tx: Tx, since: str, before: str, signed: Signed) -> int:
    tx.rows("blank_data_keys", since=since, before=before)  # the bytes of a deleted row stay on disk for a while
    gone = tx.rows("delete_data_keys", since=since, before=before)
    if gone:
        targets = sorted({f"data_key_day:{day}" for _, day in gone})
        tx.rows("audit", by=signed.by, why=signed.why, action="shred", targets=targets)
    return len({str(id) for id, _ in gone})


def _wrapped(id: UUID | str, day: str, master_key_id: str, raw: bytes) -> WrappedKey:
    return WrappedKey(uuid(id), day, master_key_id, bytes(raw))

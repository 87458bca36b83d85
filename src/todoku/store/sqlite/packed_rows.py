"""Decodes claimed rows, which SQLite returns as one text: see the query `claim`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec


class PackedRow(msgspec.Struct, array_like=True, gc=False):
    """One row of the query `claim`, in its order. Iterating over it gives the values of `Claimed` but the worker.

    The writer's thread only decodes: it is what a drain on SQLite waits for, so the rest is left to the caller's.
    """

    id: int
    epoch: int
    message_seq: int
    message_id: str | None
    """None, as the message's other columns: the message is gone, and its delivery must still settle."""
    topic: str | None
    key: str | None
    content_type: str | None
    destination: str
    queue: str
    priority: int
    attempt: int
    max_attempts: int
    snoozes: int
    replay_count: int
    due: int
    created: int | None
    expires: int | None
    timeout: float | None
    key_hash: str | None
    digest: str | None
    effect_state: str | None
    effect_digest: str | None
    payload: str | msgspec.UnsetType | None = msgspec.UNSET
    """Unset: the message is too large to be packed."""
    digits: str | None = None
    headers: str | None = None
    payload_bytes: bytes | None = None

    def __iter__(self) -> Iterator[object]:
        raw = self.payload_bytes if self.digits is None else bytes.fromhex(self.digits)
        created = None if self.created is None else self.created / 1e6
        expires = None if self.expires is None else self.expires / 1e6
        return iter((
            self.id, self.epoch, self.message_seq, self.message_id, self.topic, self.key, self.payload, raw,
            self.content_type, self.headers, self.destination, self.queue, self.priority, None, None, self.attempt,
            self.max_attempts, 0, self.snoozes, self.replay_count, self.due / 1e6, created, expires,
            self.timeout, self.key_hash, self.digest, self.effect_state, self.effect_digest,
        ))  # fmt: skip


_rows: Final = msgspec.json.Decoder(list[PackedRow])
_due_order: Final = attrgetter("due", "id")


def unpack(packed: str, large: Callable[[list[int]], Sequence[Any]]) -> list[PackedRow]:
    """Returns the rows in order. `large` reads the messages left out, by seq."""
    rows = _rows.decode(packed)
    if missing := [row for row in rows if row.payload is msgspec.UNSET]:
        found = {seq: rest for seq, *rest in large([row.message_seq for row in missing])}
        for row in missing:
            row.payload, row.payload_bytes, row.headers = found[row.message_seq]
    rows.sort(key=_due_order)
    return rows

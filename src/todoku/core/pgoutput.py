"""Reads what a PostgreSQL server streams from its log: frames of the replication protocol, and pgoutput's messages.

Protocol version 1 of pgoutput with `messages 'true'`, columns as text. Every message is checked to its last byte: one
that cannot be read raises CaptureError, because what is skipped here would be lost.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from struct import Struct, error
from typing import Final

import msgspec

from todoku.core.errors import CaptureError


class Unchanged(Enum):
    """The type of UNCHANGED."""

    UNCHANGED = "unchanged"


UNCHANGED: Final = Unchanged.UNCHANGED
"""Stands for a value that is stored out of line (TOAST) and that an UPDATE did not change: it is not in the log."""

Row = tuple[bytes | Unchanged | None, ...]
"""The text of each column, in the order of the relation's columns; None is NULL."""


class Data(msgspec.Struct, frozen=True, gc=False):
    """A frame with one message of pgoutput (XLogData). `start`, `end`: positions in the log."""

    start: int
    end: int
    payload: bytes


class KeepAlive(msgspec.Struct, frozen=True, gc=False):
    """A frame that says how far the server has sent its log; `reply`: it wants a status update at once."""

    end: int
    reply: bool


class Begin(msgspec.Struct, frozen=True, gc=False):
    """A committed transaction follows. `lsn`: where its commit begins in the log; `xid`: its number, 32 bits."""

    lsn: int
    committed_at: float
    xid: int


class Commit(msgspec.Struct, frozen=True, gc=False):
    """The transaction is complete. `end`: the position behind its commit, which is stored and confirmed."""

    lsn: int
    end: int
    committed_at: float


class RelationColumn(msgspec.Struct, frozen=True):
    """A column of a relation. `type`: the oid of its type; `key`: it belongs to the replica identity."""

    name: str
    type: int
    key: bool


class Relation(msgspec.Struct, frozen=True):
    """A table as the following rows have it; sent again after each change of it. `identity`: d, n, f or i."""

    oid: int
    schema: str
    table: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Insert(msgspec.Struct, frozen=True, gc=False):
    """A row was inserted."""

    relation: int
    new: Row


class Update(msgspec.Struct, frozen=True, gc=False):
    """A row was changed. `old`: the whole old row if `full`, else its identity columns; None: they did not change."""

    relation: int
    old: Row | None
    full: bool
    new: Row


class Delete(msgspec.Struct, frozen=True, gc=False):
    """A row was deleted. `old`: the whole row if `full`, else its identity columns (the others are None)."""

    relation: int
    old: Row
    full: bool


class Truncate(msgspec.Struct, frozen=True, gc=False):
    """Tables were emptied."""

    relations: tuple[int, ...]


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A message that a session wrote into the log by `pg_logical_emit_message`."""

    lsn: int
    transactional: bool
    prefix: str
    content: bytes


class Other(msgspec.Struct, frozen=True, gc=False):
    """A message that changes no row: the origin of a replicated transaction (O), or a type (Y)."""

    kind: str


StreamMessage = Begin | Commit | Relation | Insert | Update | Delete | Truncate | Mark | Other

# ------------------------------------------------------------
# Frames.

_EPOCH: Final = 946_684_800
"""2000-01-01 in unix seconds: PostgreSQL counts microseconds from there."""

_DATA: Final = Struct("!xQQq").unpack_from
_KEEP_ALIVE: Final = Struct("!xQqB").unpack
_STATUS: Final = Struct("!cQQQqB").pack
_DATA_HEAD: Final = 25


def read_frame(frame: bytes) -> Data | KeepAlive:
    """Reads one frame of the stream; CaptureError: it is not one."""
    try:
        kind = frame[0]
        if kind == 0x77:  # w
            start, end, _ = _DATA(frame)
            return Data(start, end, frame[_DATA_HEAD:])
        if kind == 0x6B:  # k
            end, _, reply = _KEEP_ALIVE(frame)
            return KeepAlive(end, reply == 1)
    except (IndexError, error):
        raise _unreadable("a frame", frame) from None
    raise _unreadable("a frame of an unknown kind", frame)


def status_update(flushed: int, at: float, *, received: int = 0) -> bytes:
    """Returns the frame that confirms everything up to `flushed`; `at`: now, in unix seconds.

    `received`: how far the stream was read. A server that has sent more than that asks again and again.
    """
    return _STATUS(b"r", max(received, flushed), flushed, flushed, round((at - _EPOCH) * 1_000_000), 0)


# ------------------------------------------------------------
# Messages.


def decode(payload: bytes) -> StreamMessage:
    """Reads one message of pgoutput; CaptureError: it is not one of protocol version 1, or is cut off."""
    try:
        read = _READERS.get(payload[0])
        if read is not None:
            return read(payload)
    except (IndexError, ValueError, error):  # ValueError: text that is not UTF-8, or has no end
        raise _unreadable("a message of pgoutput", payload) from None
    raise _unreadable("a message of pgoutput of an unknown kind", payload)


def _unreadable(what: str, given: bytes) -> CaptureError:
    shown = given[:40].hex(" ")
    return CaptureError(
        f"the server sent {what} that cannot be read: {len(given)} bytes, {shown}{'…' if len(given) > 40 else ''}",
        hint="nothing was skipped: check that nothing between todoku and the server changes the stream, or report it",
    )


_BEGIN: Final = Struct("!xQqI").unpack
_COMMIT: Final = Struct("!xBQQq").unpack
_OID: Final = Struct("!I").unpack_from
_COUNT: Final = Struct("!H").unpack_from
_COLUMN: Final = Struct("!Ii").unpack_from
_TRUNCATE: Final = Struct("!xIB").unpack_from
_MARK: Final = Struct("!xBQ").unpack_from


def _read_begin(payload: bytes) -> Begin:
    lsn, at, xid = _BEGIN(payload)
    return Begin(lsn, at / 1_000_000 + _EPOCH, xid)


def _read_commit(payload: bytes) -> Commit:
    _, lsn, end, at = _COMMIT(payload)
    return Commit(lsn, end, at / 1_000_000 + _EPOCH)


def _read_insert(payload: bytes) -> Insert:
    if payload[5] != 0x4E:  # N
        raise ValueError
    row, at = _read_row(payload, 6)
    if at != len(payload):
        raise ValueError
    return Insert(_OID(payload, 1)[0], row)


def _read_update(payload: bytes) -> Update:
    old, at, kind = None, 5, payload[5]
    if kind in (0x4B, 0x4F):  # K, O
        old, at = _read_row(payload, 6)
    if payload[at] != 0x4E:  # N
        raise ValueError
    new, at = _read_row(payload, at + 1)
    if at != len(payload):
        raise ValueError
    return Update(_OID(payload, 1)[0], old, kind == 0x4F, new)


def _read_delete(payload: bytes) -> Delete:
    kind = payload[5]
    if kind not in (0x4B, 0x4F):  # K, O
        raise ValueError
    old, at = _read_row(payload, 6)
    if at != len(payload):
        raise ValueError
    return Delete(_OID(payload, 1)[0], old, kind == 0x4F)


def _read_row(payload: bytes, at: int) -> tuple[Row, int]:
    """Returns the columns that begin at `at`, and where they end. A cut-off column ends behind the payload's end."""
    row: list[bytes | Unchanged | None] = []
    append, size = row.append, _OID
    (count,) = _COUNT(payload, at)
    at += 2
    for _ in range(count):
        kind = payload[at]
        if kind == 0x74:  # t
            start = at + 5
            at = start + size(payload, at + 1)[0]
            append(payload[start:at])
        elif kind == 0x6E:  # n
            append(None)
            at += 1
        elif kind == 0x75 and payload[0] == 0x55:  # u, in an update
            append(UNCHANGED)
            at += 1
        else:
            raise ValueError
    return tuple(row), at


def _read_relation(payload: bytes) -> Relation:
    schema, at = _read_text(payload, 5)
    table, at = _read_text(payload, at)
    identity = chr(payload[at])
    (count,) = _COUNT(payload, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        key = payload[at] & 1 == 1
        name, at = _read_text(payload, at + 1)
        columns.append(RelationColumn(name, _COLUMN(payload, at)[0], key))
        at += 8
    if at != len(payload) or identity not in "dnfi":
        raise ValueError
    return Relation(_OID(payload, 1)[0], schema or "pg_catalog", table, identity, tuple(columns))


def _read_text(payload: bytes, at: int) -> tuple[str, int]:
    """Returns the text that begins at `at`, and where the next field begins."""
    end = payload.index(0, at)
    return payload[at:end].decode(), end + 1


def _read_truncate(payload: bytes) -> Truncate:
    count, _ = _TRUNCATE(payload)
    if len(payload) != 6 + 4 * count:
        raise ValueError
    return Truncate(tuple(_OID(payload, 6 + 4 * number)[0] for number in range(count)))


def _read_mark(payload: bytes) -> Mark:
    flags, lsn = _MARK(payload)
    prefix, at = _read_text(payload, 10)
    content = payload[at + 4 :]
    if _OID(payload, at)[0] != len(content):
        raise ValueError
    return Mark(lsn, flags & 1 == 1, prefix, content)


def _read_other(payload: bytes) -> Other:
    return Other(chr(payload[0]))


_READERS: Final[dict[int, Callable[[bytes], StreamMessage]]] = {
    ord("I"): _read_insert,
    ord("U"): _read_update,
    ord("D"): _read_delete,
    ord("B"): _read_begin,
    ord("C"): _read_commit,
    ord("R"): _read_relation,
    ord("T"): _read_truncate,
    ord("M"): _read_mark,
    ord("O"): _read_other,
    ord("Y"): _read_other,
}

"""pgoutput: frames and messages are read as PostgreSQL writes them, to the last byte, or refused."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as some

from todoku.core.errors import CaptureError
from todoku.core.pgoutput import (
    UNCHANGED,
    Begin,
    Commit,
    Data,
    Delete,
    Insert,
    KeepAlive,
    Mark,
    Other,
    Relation,
    RelationColumn,
    Row,
    StreamMessage,
    Truncate,
    Update,
    decode,
    read_frame,
    status_update,
)

AT = 1_794_931_445.63675
ORDERS = Relation(
    16391,
    "public",
    "orders",
    "d",
    (
        RelationColumn("id", 20, True),
        RelationColumn("big", 25, False),
        RelationColumn("n", 1700, False),
        RelationColumn("ok", 16, False),
    ),
)

CAPTURED: list[tuple[str, StreamMessage]] = [
    (
        "770000000001739940000000000173994000030379cffee51a42000000000173b2b000030379cffebe8e000002fc",
        Begin(0x173B2B0, AT, 764),
    ),
    (("770000000000000000000000000000000000030379cffee54752000040077075626c6963006f7264657273006400040169640000000014"
        "ffffffff006269670000000019ffffffff006e00000006a4ffffffff006f6b0000000010ffffffff"),
        ORDERS,
    ),
    ("770000000001739cc80000000001739cc800030379cffee59349000040174e00037400000001617400000001626e",
        Insert(16407, (b"a", b"b", None))),
    ("770000000001739a780000000001739a7800030379cffee56355000040074e0004740000000131757400000004312e35306e",
        Update(16391, None, False, (b"1", UNCHANGED, b"1.50", None))),
    (("770000000001739b180000000001739b1800030379cffee56655000040074b00047400000001316e6e6e4e000474000000013275740000"
     "0004312e35306e"),
        Update(16391, (b"1", None, None, None), False, (b"2", UNCHANGED, b"1.50", None))),
    (("770000000001739d080000000001739d0800030379cffee59655000040174f00037400000001617400000001626e4e000374000000016174"
     "0000000162740000000131"),
        Update(16407, (b"a", b"b", None), True, (b"a", b"b", b"1"))),
    ("770000000001739c100000000001739c1000030379cffee56b44000040074b00047400000001326e6e6e",
        Delete(16391, (b"2", None, None, None), False)),
    ("770000000001739db80000000001739db800030379cffee59d44000040174f0003740000000163740000000162740000000131",
        Delete(16407, (b"c", b"b", b"1"), True)),
    ("77000000000173b280000000000173b28000030379cffee63c5400000002000000400700004017", Truncate((16391, 16407))),
    ("770000000001739c100000000001739c1000030379cffee5684d010000000001739c10746f646f6b75000000000568656c6c6f",
        Mark(0x1739C10, True, "todoku", b"hello")),
    ("77000000000173b528000000000173b52800030379d00196f84d00000000000173b528626561740000000000",
        Mark(0x173B528, False, "beat", b"")),
    ("770000000000000000000000000000000000030379cffee20259000040017075626c6963006d6f6f6400", Other("Y")),
    ("77000000000173b4f0000000000173b4f000030379cffee63f4300000000000173b2b0000000000173b4f000030379cffebe8e",
        Commit(0x173B2B0, 0x173B4F0, AT)),
]  # fmt: skip
"""Frames of a PostgreSQL 18: a transaction on a table with a primary key, and on one with REPLICA IDENTITY FULL."""


@pytest.mark.parametrize(("captured", "message"), CAPTURED, ids=[type(message).__name__ for _, message in CAPTURED])
def test_a_captured_frame_is_read(captured: str, message: StreamMessage) -> None:
    frame = read_frame(bytes.fromhex(captured))
    assert isinstance(frame, Data)
    assert decode(frame.payload) == message


def test_captured_positions_are_read() -> None:
    assert read_frame(bytes.fromhex(CAPTURED[0][0])[:25]) == Data(0x1739940, 0x1739940, b"")
    assert read_frame(bytes.fromhex("6b000000000173b4f000030379cffee65200")) == KeepAlive(0x173B4F0, False)
    assert read_frame(bytes.fromhex("6b000000000173b4f000030379cffee65201")) == KeepAlive(0x173B4F0, True)


# ------------------------------------------------------------
# A small encoder of its own, after the description of the protocol.


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def columns(row: Row) -> bytes:
    written = [len(row).to_bytes(2, "big")]
    for value in row:
        match value:
            case None:
                written.append(b"n")
            case bytes():
                written.append(b"t" + len(value).to_bytes(4, "big") + value)
            case _:
                written.append(b"u")
    return b"".join(written)


def written(message: StreamMessage) -> bytes:
    match message:
        case Begin(lsn, at, xid):
            return struct.pack("!cQqI", b"B", lsn, microseconds(at), xid)
        case Commit(lsn, end, at):
            return struct.pack("!cBQQq", b"C", 0, lsn, end, microseconds(at))
        case Relation(oid, schema, table, identity, listed):
            head = b"R" + struct.pack("!I", oid) + text("" if schema == "pg_catalog" else schema) + text(table)
            rest = [bytes([column.key]) + text(column.name) + struct.pack("!Ii", column.type, -1) for column in listed]
            return head + identity.encode() + struct.pack("!H", len(listed)) + b"".join(rest)
        case Insert(relation, new):
            return b"I" + struct.pack("!I", relation) + b"N" + columns(new)
        case Update(relation, old, full, new):
            before = b"" if old is None else (b"O" if full else b"K") + columns(old)
            return b"U" + struct.pack("!I", relation) + before + b"N" + columns(new)
        case Delete(relation, old, full):
            return b"D" + struct.pack("!I", relation) + (b"O" if full else b"K") + columns(old)
        case Truncate(relations):
            return struct.pack(f"!cIB{len(relations)}I", b"T", len(relations), 0, *relations)
        case Mark(lsn, transactional, prefix, content):
            return (
                struct.pack("!cBQ", b"M", transactional, lsn) + text(prefix) + struct.pack("!I", len(content)) + content
            )
        case Other():
            return b"O" + struct.pack("!Q", 7) + text("origin")


def microseconds(at: float) -> int:
    return round((at - 946_684_800) * 1_000_000)


lsns = some.integers(0, 2**64 - 1)
oids = some.integers(0, 2**32 - 1)
names = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
times = some.integers(0, 2**31).map(float)
known = some.none() | some.binary(max_size=300)
rows = some.lists(known, max_size=12).map(tuple)
new_rows = some.lists(known | some.just(UNCHANGED), max_size=12).map(tuple)
listed = some.lists(some.builds(RelationColumn, names, oids, some.booleans()), max_size=8).map(tuple)
messages = some.one_of(
    some.builds(Begin, lsns, times, oids),
    some.builds(Commit, lsns, lsns, times),
    some.builds(Relation, oids, names.map(lambda name: name or "pg_catalog"), names, some.sampled_from("dnfi"), listed),
    some.builds(Insert, oids, rows),
    some.builds(Update, oids, some.none(), some.just(False), new_rows),
    some.builds(Update, oids, rows, some.booleans(), new_rows),
    some.builds(Delete, oids, rows, some.booleans()),
    some.builds(Truncate, some.lists(oids, max_size=5).map(tuple)),
    some.builds(Mark, lsns, some.booleans(), names, some.binary(max_size=50)),
    some.just(Other("O")),
)


@given(messages)
def test_every_message_is_read_as_it_was_written(message: StreamMessage) -> None:
    assert decode(written(message)) == message


@given(lsns, lsns, some.integers(0, 2**62), some.binary(max_size=50))
def test_every_frame_is_read_as_it_was_written(start: int, end: int, at: int, payload: bytes) -> None:
    assert read_frame(struct.pack("!cQQq", b"w", start, end, at) + payload) == Data(start, end, payload)


@given(messages.filter(lambda message: not isinstance(message, Other)), some.data())
def test_a_message_that_is_cut_off_or_too_long_is_refused(message: StreamMessage, data: some.DataObject) -> None:
    whole = written(message)
    cut = data.draw(some.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(CaptureError, match="cannot be read") as found:
            decode(wrong)
        assert (found.value.reason, "nothing was skipped" in found.value.hint) == ("BAD_STREAM", True)


@given(some.binary(max_size=60))
def test_any_other_bytes_are_read_or_refused(given: bytes) -> None:
    for read in (decode, read_frame):
        with suppress(CaptureError):  # and nothing else
            read(given)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"X",
        b"S\0\0\0\1\1",  # a streamed transaction, which version 1 does not have
        b"I\0\0\0\1K\0\0",
        b"I\0\0\0\1N\0\1b\0\0\0\1x",  # a binary value, which was not requested
        b"I\0\0\0\1N\0\1u",  # an insert has all its values
        b"D\0\0\0\1K\0\1u",
        b"U\0\0\0\1X\0\0",
        b"D\0\0\0\1N\0\0",
        b"R\0\0\0\1public\0orders\0x\0\0",  # no such identity
        b"R\0\0\0\1public\0\xff\0d\0\0",  # no UTF-8
    ],
)
def test_what_version_1_does_not_have_is_refused(payload: bytes) -> None:
    with pytest.raises(CaptureError, match="cannot be read"):
        decode(payload)


@pytest.mark.parametrize("frame", [b"", b"x", b"w\0\0", b"k" + bytes(16), b"k" + bytes(18), b"r" + bytes(33)])
def test_what_is_no_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(CaptureError, match="a frame"):
        read_frame(frame)


def test_a_long_message_is_shown_in_part() -> None:
    with pytest.raises(CaptureError) as found:
        decode(b"X" * 5_000)
    assert "5000 bytes" in str(found.value)
    assert len(str(found.value)) < 400


def test_a_status_update_confirms_one_position() -> None:
    """Written, flushed and applied are the same: what is not stored is not claimed to be written either."""
    update = status_update(0x173B528, AT)
    assert struct.unpack("!cQQQqB", update) == (b"r", 0x173B528, 0x173B528, 0x173B528, 0x30379CFFEBE8E, 0)

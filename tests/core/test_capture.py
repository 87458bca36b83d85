"""Capture: positions, visibility, rules of tables, and the messages that changes become (R17, R18)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from todoku.core.capture import (
    OPS,
    CapturedChange,
    Encoder,
    PageSnapshot,
    format_lsn,
    key_text,
    parse_lsn,
    parse_snapshot,
    table_rule,
    widen_xid,
)
from todoku.core.errors import CaptureError, InvalidSetting
from todoku.core.message import MAX_KEY_LENGTH
from todoku.core.pgoutput import UNCHANGED, Relation, RelationColumn, Row

# ------------------------------------------------------------
# Positions and transactions.


@pytest.mark.parametrize(("text", "lsn"), [("0/0", 0), ("0/16B3748", 0x16B3748), ("A/1", 0xA_0000_0001)])
def test_a_position_is_written_as_postgres_writes_it(text: str, lsn: int) -> None:
    assert (parse_lsn(text), format_lsn(lsn)) == (lsn, text)


@given(some.integers(0, 2**64 - 1))
def test_every_position_is_read_back(lsn: int) -> None:
    assert parse_lsn(format_lsn(lsn)) == lsn


@pytest.mark.parametrize("text", ["", "0", "/", "0/", "g/0", "0/123456789", "0/0/0", " 0/0", "-1/0", "0/0\n"])
def test_what_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(CaptureError, match="not a position") as found:
        parse_lsn(text)
    assert "0/16B3748" in found.value.hint


def test_a_snapshot_is_read() -> None:
    assert parse_snapshot("10:20:10,14") == PageSnapshot(10, 20, frozenset({10, 14}))
    assert parse_snapshot("765:765:") == PageSnapshot(765, 765, frozenset())


@pytest.mark.parametrize("text", ["", "10:20", "10:20:1,", "a:b:", "10:20:10:14"])
def test_what_is_no_snapshot_is_refused(text: str) -> None:
    with pytest.raises(CaptureError, match="not a snapshot"):
        parse_snapshot(text)


@pytest.mark.parametrize(
    ("xid", "sees"), [(9, True), (10, False), (11, True), (14, False), (19, True), (20, False), (21, False)]
)
def test_R17_a_snapshot_sees_what_had_ended_when_it_was_taken(xid: int, sees: bool) -> None:
    assert parse_snapshot("10:20:10,14").sees(xid) is sees


EPOCH = 2**32


@pytest.mark.parametrize(
    ("xid", "near", "wide"),
    [
        (5, 10, 5),
        (15, 10, 15),
        (5, EPOCH + 10, EPOCH + 5),
        (EPOCH - 5, EPOCH + 10, EPOCH - 5),  # before the turn of an epoch
        (5, 2 * EPOCH - 10, 2 * EPOCH + 5),  # behind it
        (EPOCH - 5, 10, EPOCH - 5),  # no transaction has a negative number
    ],
)
def test_a_transaction_number_is_widened_to_the_nearest(xid: int, near: int, wide: int) -> None:
    assert widen_xid(xid, near) == wide


@given(some.integers(2**33, 2**62), some.integers(-(2**31) + 1, 2**31 - 1))
def test_every_near_transaction_number_is_widened_back(near: int, distance: int) -> None:
    assert widen_xid((near + distance) % EPOCH, near) == near + distance


def test_R17_visibility_holds_over_the_turn_of_an_epoch() -> None:
    snapshot = parse_snapshot(f"{EPOCH - 3}:{EPOCH + 3}:{EPOCH - 2},{EPOCH + 1}")
    visible = [number for number in range(EPOCH - 5, EPOCH + 5) if snapshot.sees(number % EPOCH)]
    assert visible == [EPOCH - 5, EPOCH - 4, EPOCH - 3, EPOCH - 1, EPOCH, EPOCH + 2]


# ------------------------------------------------------------
# Rules of tables.


def test_a_table_is_in_public_unless_it_says_otherwise() -> None:
    rule = table_rule("orders", "orders.{op}", "id")
    assert (rule.table, rule.schema, rule.name, rule.key) == ("public.orders", "public", "orders", ("id",))
    rule = table_rule("shop.Order Items", "items.{op}", ["tenant", "id"])
    assert (rule.schema, rule.name, rule.key) == ("shop", "Order Items", ("tenant", "id"))


@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("orders.{op}", "orders.truncate"),
        ("{schema}.{table}.{op}", "shop.orders.truncate"),
        ("cdc.{table}", "cdc.orders"),
        ("x{op}{op}", "xtruncatetruncate"),
    ],
)
def test_a_topic_is_made_of_its_template(topic: str, expected: str) -> None:
    assert table_rule("shop.orders", topic, "id").topic_of("truncate") == expected


@pytest.mark.parametrize(
    ("table", "topic", "key", "part", "hint"),
    [
        ("", "t", "id", "cannot be ''", "without quotes"),
        ("a.b.c", "t", "id", "cannot be 'a.b.c'", "a name with a dot"),
        ("public.", "t", "id", "cannot be 'public.'", "schema.table"),
        ('public."Orders"', "t", "id", "Orders", "without quotes"),
        ("x" * 64, "t", "id", "xxx", "schema.table"),
        ("\ud800", "t", "id", "cannot be", "schema.table"),
        (7, "t", "id", "cannot be 7", "schema.table"),
        ("orders", "t", None, "cannot be None", 'key="id"'),
        ("orders", "t", [7], "cannot be [7]", 'key="id"'),
        ("orders", None, "id", "cannot be None", "words"),
        ("orders", "t", "", "the key of orders cannot be ''", 'key="id"'),
        ("orders", "t", (), "cannot be ()", 'key="id"'),
        ("orders", "t", ("a", "a"), "cannot be ('a', 'a')", "once"),
        ("orders", "orders.{operation}", "id", "'orders.{operation}'", "{op}, {table} and {schema}"),
        ("orders", "orders.{op.__class__}", "id", "orders", "{op}"),
        ("orders", "", "id", "the topic of public.orders cannot be ''", "words"),
        ("Order Items", "{table}.{op}", "id", "'Order Items.insert'", "words"),
        ("orders", "x" * 250 + ".{op}", "id", "has 257 characters", "255 are allowed"),
    ],
)
def test_a_rule_that_could_not_work_is_refused(table: Any, topic: Any, key: Any, part: str, hint: str) -> None:
    with pytest.raises(InvalidSetting) as found:
        table_rule(table, topic, key)
    assert part in str(found.value)
    assert hint in found.value.hint


# ------------------------------------------------------------
# Keys.


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["42"], "42"),
        (["a", 'b"c'], '["a","b\\"c"]'),
        (["ä" * MAX_KEY_LENGTH], "ä" * MAX_KEY_LENGTH),
        (["x" * (MAX_KEY_LENGTH + 1)], "sha256:" + hashlib.sha256(b"x" * (MAX_KEY_LENGTH + 1)).hexdigest()),
        ([""], "sha256:" + hashlib.sha256(b"").hexdigest()),  # todoku has no empty keys
        (["", ""], '["",""]'),
        ([None], "[null]"),
        (["a", None], '["a",null]'),
    ],
)
def test_a_key_is_the_text_of_its_columns(values: list[str | None], expected: str) -> None:
    assert key_text(values) == expected


@given(some.lists(some.lists(some.text(max_size=4) | some.none(), min_size=2, max_size=2), max_size=8, unique_by=str))
def test_keys_of_two_columns_never_meet(rows: list[list[str | None]]) -> None:
    assert len({key_text(row) for row in rows}) == len(rows)


# ------------------------------------------------------------
# Messages.


def relation(*columns: tuple[str, int, bool], identity: str = "d") -> Relation:
    return Relation(7, "public", "orders", identity, tuple(RelationColumn(*column) for column in columns))


COLUMNS = [("id", 20, True), ("name", 25, False), ("ok", 16, False)]
ORDERS = Encoder(relation(*COLUMNS), table_rule("orders", "orders.{op}", "id"))
FULL = Encoder(
    relation(*((name, type, True) for name, type, _ in COLUMNS), identity="f"), table_rule("orders", "o.{op}", "id")
)


def message(op: str, key: str | None, payload: str, topic: str = "orders") -> CapturedChange:
    assert op in OPS
    return CapturedChange(op, f"{topic}.{op}", key, f'{{"op":"{op}","table":"public.orders",{payload}}}')  # type: ignore[arg-type]


def test_an_insert() -> None:
    row = '"row":{"id":1,"name":"a\\"b","ok":null},"old":null,"unchanged":[]'
    assert ORDERS.insert((b"1", b'a"b', None)) == [message("insert", "1", row)]


def test_a_row_of_a_snapshot() -> None:
    row = '"row":{"id":1,"name":"é","ok":true},"old":null,"unchanged":[]'
    assert ORDERS.snapshot((b"1", "é".encode(), b"t")) == [message("snapshot", "1", row)]


def test_an_update_of_other_columns() -> None:
    row = '"row":{"id":1,"name":null,"ok":false},"old":null,"unchanged":[]'
    assert ORDERS.update(None, False, (b"1", None, b"f")) == [message("update", "1", row)]


def test_an_update_says_which_values_are_not_in_the_log() -> None:
    row = '"row":{"id":1,"ok":false},"old":null,"unchanged":["name"]'
    assert ORDERS.update(None, False, (b"1", UNCHANGED, b"f")) == [message("update", "1", row)]


def test_R18_a_changed_key_is_a_delete_and_an_insert() -> None:
    gone = '"row":null,"old":{"id":1},"unchanged":[]'
    new = '"row":{"id":2,"ok":true},"old":null,"unchanged":["name"]'
    assert ORDERS.update((b"1", None, None), False, (b"2", UNCHANGED, b"t")) == [
        message("delete", "1", gone),
        message("insert", "2", new),
    ]


def test_with_the_whole_old_row_an_update_has_every_value() -> None:
    row = '"row":{"id":1,"name":"long","ok":true},"old":{"id":1,"name":"long","ok":null},"unchanged":[]'
    assert FULL.update((b"1", b"long", None), True, (b"1", UNCHANGED, b"t")) == [message("update", "1", row, "o")]


def test_R18_with_the_whole_old_row_a_changed_key_keeps_its_values() -> None:
    gone = '"row":null,"old":{"id":1,"name":"long","ok":null},"unchanged":[]'
    new = '"row":{"id":2,"name":"long","ok":null},"old":null,"unchanged":[]'
    assert FULL.update((b"1", b"long", None), True, (b"2", UNCHANGED, None)) == [
        message("delete", "1", gone, "o"),
        message("insert", "2", new, "o"),
    ]


def test_a_delete_has_the_identity_or_the_whole_old_row() -> None:
    assert ORDERS.delete((b"1", None, None), False) == [
        message("delete", "1", '"row":null,"old":{"id":1},"unchanged":[]')
    ]
    assert FULL.delete((b"1", b"a", None), True) == [
        message("delete", "1", '"row":null,"old":{"id":1,"name":"a","ok":null},"unchanged":[]', "o")
    ]


def test_a_truncate_has_no_key() -> None:
    assert ORDERS.truncate() == [message("truncate", None, '"row":null,"old":null,"unchanged":[]')]


def test_the_key_may_be_a_part_of_the_identity_in_any_order() -> None:
    columns = [("a", 25, True), ("b", 25, True), ("c", 25, True), ("v", 25, False)]
    encoder = Encoder(relation(*columns), table_rule("orders", "t", ("c", "a")))
    assert encoder.insert((b"1", b"2", b"3", b"x"))[0].key == '["3","1"]'
    (change,) = encoder.update((b"1", b"2", b"3", None), False, (b"1", b"9", b"3", b"x"))
    assert (change.op, change.key, json.loads(change.payload)["old"]) == (
        "update",
        '["3","1"]',
        {"a": "1", "b": "2", "c": "3"},
    )
    changes = encoder.update((b"1", b"2", b"3", None), False, (b"8", b"2", b"3", b"x"))
    assert [(change.op, change.key) for change in changes] == [("delete", '["3","1"]'), ("insert", '["3","8"]')]


def test_a_large_key_that_did_not_change_is_taken_from_the_old_row() -> None:
    """PostgreSQL logs the old key whenever a key column is stored out of line."""
    (change,) = FULL.update((b"1", b"a", None), True, (UNCHANGED, b"b", None))
    assert (change.op, change.key) == ("update", "1")
    with pytest.raises(CaptureError, match="no value for the key"):
        ORDERS.update(None, False, (UNCHANGED, b"b", None))


def test_a_text_that_is_not_utf8_is_published_with_escapes() -> None:
    """A database in SQL_ASCII has such texts. They do not stop the stream."""
    (change,) = ORDERS.insert((b"1", b"caf\xe9", None))
    assert json.loads(change.payload)["row"]["name"] == "caf\\xe9"
    (change,) = FULL.update((b"1", b"\xff", None), True, (b"1", UNCHANGED, b"t"))
    assert json.loads(change.payload)["row"]["name"] == "\\xff"
    (change,) = FULL.delete((b"1", b"\xff", None), True)
    assert json.loads(change.payload)["old"]["name"] == "\\xff"
    text_key = Encoder(relation(("id", 25, True)), table_rule("orders", "t", "id"))
    assert text_key.insert((b"\xff",))[0].key == "\\xff"


def test_names_may_have_any_characters() -> None:
    odd = Relation(7, "public", "Odd %s", "d", (RelationColumn("id %", 23, True), RelationColumn('q"{}', 25, False)))
    (change,) = Encoder(odd, table_rule("Odd %s", "odd.{op}", "id %")).insert((b"1", b"%d"))
    assert json.loads(change.payload)["row"] == {"id %": 1, 'q"{}': "%d"}
    assert json.loads(change.payload)["table"] == "public.Odd %s"


@pytest.mark.parametrize(
    ("columns", "key", "part"),
    [
        (COLUMNS, "number", "public.orders has no column number"),
        (COLUMNS, ("id", "name"), "the column name is not part of the replica identity of public.orders"),
    ],
)
def test_a_table_that_lost_its_key_is_refused(columns: list[Any], key: Any, part: str) -> None:
    with pytest.raises(CaptureError, match=part) as found:
        Encoder(relation(*columns), table_rule("orders", "t", key))
    assert found.value.reason == "NO_IDENTITY"
    assert found.value.hint


@pytest.mark.parametrize("row", [(), (b"1", b"a"), (b"1", b"a", None, None)])
def test_a_row_of_another_width_is_refused(row: Row) -> None:
    encoders = [
        lambda: ORDERS.insert(row),
        lambda: ORDERS.delete(row, False),
        lambda: FULL.update((b"1", b"a", None), True, row),
        lambda: FULL.update(row, True, (b"1", b"a", None)),
    ]
    for encode in encoders:
        with pytest.raises(CaptureError, match=rf"has {len(row)} columns instead of 3"):
            encode()


def test_a_change_that_is_too_large_keeps_its_key_columns() -> None:
    (change,) = ORDERS.insert((b"1", b"x" * 5_000, None))
    assert ORDERS.abridge(change) == message("insert", "1", '"row":{"id":1},"old":null,"unchanged":[]')
    (change,) = FULL.delete((b"1", b"x" * 5_000, None), True)
    assert FULL.abridge(change) == message("delete", "1", '"row":null,"old":{"id":1},"unchanged":[]', "o")
    wide = Encoder(relation(("id", 25, True)), table_rule("orders", "t", "id"))
    (change,) = wide.insert((b"x" * 5_000,))
    abridged = wide.abridge(change)
    assert json.loads(abridged.payload)["row"] == {}
    assert abridged.key == change.key


texts = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
values = some.none() | texts.map(str.encode) | some.binary(max_size=10).map(lambda value: value.replace(b"\0", b"."))
old_values = some.none() | texts.map(str.encode)


@given(some.integers(0, 9), values, some.sampled_from([None, b"t", b"f"]))
def test_every_payload_is_json_without_a_nul(id: int, name: bytes | None, ok: bytes | None) -> None:
    for change in (*ORDERS.insert((b"%d" % id, name, ok)), *FULL.delete((b"%d" % id, name, ok), True)):
        payload = msgspec.json.decode(change.payload)
        assert list(payload) == ["op", "table", "row", "old", "unchanged"]
        assert "\0" not in change.payload
        found = payload["row"] or payload["old"]
        expected = None if name is None else name.decode(errors="backslashreplace")
        assert found == {"id": id, "name": expected, "ok": {None: None, b"t": True, b"f": False}[ok]}


@given(
    old=some.none() | some.tuples(some.sampled_from([b"1", b"2"]), old_values, some.none()),
    new=some.tuples(some.sampled_from([b"1", b"2"]), old_values | some.just(UNCHANGED), some.none()),
)
def test_R18_every_update_is_published_under_the_keys_it_touches(old: Row | None, new: Row) -> None:
    """Applying the messages to a map by key gives the new row under its key, and nothing under another."""
    changes = FULL.update(old, True, new)
    rows: dict[str | None, Any] = {} if old is None else {old[0].decode(): "old"}  # type: ignore[union-attr]
    for change in changes:
        payload = json.loads(change.payload)
        if change.op == "delete":
            rows.pop(change.key)
        else:
            rows[change.key] = payload["row"]
            is_unknown = new[1] is UNCHANGED and (old is None or old[1] is None)
            assert payload["unchanged"] == (["name"] if is_unknown else [])
            assert ("name" in payload["row"]) != is_unknown
    assert list(rows) == [new[0].decode()]  # type: ignore[union-attr]

"""Columns as JSON: what PostgreSQL writes becomes JSON that every reader decodes, with nothing rounded."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from todoku.core.column_json import converter

BOOL, INT8, INT2, INT4, TEXT, OID, JSON, FLOAT4, FLOAT8 = 16, 20, 21, 23, 25, 26, 114, 700, 701
TIMESTAMP, TIMESTAMPTZ, NUMERIC, UUID, JSONB, DATE, BYTEA = 1114, 1184, 1700, 2950, 3802, 1082, 17
TEXTS, INTS, FLOATS, BOOLS, NUMERICS, TIMES, JSONBS, UUIDS = 1009, 1007, 1022, 1000, 1231, 1185, 3807, 2951
AN_ENUM = 16_385


@pytest.mark.parametrize(
    ("type", "text", "expected"),
    [
        (BOOL, "t", "true"),
        (BOOL, "f", "false"),
        (INT2, "-5", "-5"),
        (INT4, "0", "0"),
        (INT8, "9007199254740993", "9007199254740993"),
        (OID, "4294967295", "4294967295"),
        (FLOAT4, "1e-30", "1e-30"),
        (FLOAT8, "1e+300", "1e+300"),
        (FLOAT8, "-0", "-0"),
        (FLOAT8, "NaN", '"NaN"'),
        (FLOAT4, "Infinity", '"Infinity"'),
        (FLOAT8, "-Infinity", '"-Infinity"'),
        (NUMERIC, "100000000000000000000.10", '"100000000000000000000.10"'),
        (NUMERIC, "NaN", '"NaN"'),
        (TEXT, 'a"b\\c\nd\té', '"a\\"b\\\\c\\nd\\té"'),
        (TEXT, "", '""'),
        (UUID, "01890a5d-ac96-774b-bcce-b302099a8057", '"01890a5d-ac96-774b-bcce-b302099a8057"'),
        (BYTEA, "\\xdeadbeef", '"\\\\xdeadbeef"'),
        (DATE, "2024-02-29", '"2024-02-29"'),
        (TIMESTAMP, "2024-02-29 12:00:00.5", '"2024-02-29T12:00:00.5"'),
        (TIMESTAMP, "10000-01-01 00:00:00", '"10000-01-01T00:00:00"'),
        (TIMESTAMP, "0044-03-15 01:02:03 BC", '"0044-03-15T01:02:03 BC"'),
        (TIMESTAMP, "infinity", '"infinity"'),
        (TIMESTAMPTZ, "2024-02-29 10:00:00+00", '"2024-02-29T10:00:00+00:00"'),
        (TIMESTAMPTZ, "2024-02-29 10:00:00.123456-07", '"2024-02-29T10:00:00.123456-07:00"'),
        (TIMESTAMPTZ, "2024-02-29 10:00:00+05:30", '"2024-02-29T10:00:00+05:30"'),
        (TIMESTAMPTZ, "0044-03-15 01:02:03+00 BC", '"0044-03-15T01:02:03+00:00 BC"'),
        (TIMESTAMPTZ, "-infinity", '"-infinity"'),
        (JSON, ' {"a": [1, 2.0]}', ' {"a": [1, 2.0]}'),
        (JSONB, "null", "null"),
        (JSON, r'{"a":"\u0000"}', r'"{\"a\":\"\\u0000\"}"'),
        (JSON, r'{"a":"\\\u0000"}', r'"{\"a\":\"\\\\\\u0000\"}"'),
        (JSONB, r'{"a":"\\u0000"}', r'{"a":"\\u0000"}'),  # a backslash and five letters
        (JSON, r'"\ud83d"', r'"\"\\ud83d\""'),
        (JSON, r'"\ud83d\ude00"', r'"\ud83d\ude00"'),
        (JSON, "[1e999]", '"[1e999]"'),
        (JSON, "[" * 5_000 + "]" * 5_000, '"' + "[" * 5_000 + "]" * 5_000 + '"'),
        (INTS, "{}", "[]"),
        (INTS, "{1,NULL,3}", "[1,null,3]"),
        (INTS, "{{1,2},{3,NULL}}", "[[1,2],[3,null]]"),
        (INTS, "[0:2]={7,8,9}", "[7,8,9]"),
        (INTS, "[1:1][-2:-1]={{7,8}}", "[[7,8]]"),
        (BOOLS, "{t,f,NULL}", "[true,false,null]"),
        (FLOATS, "{NaN,-Infinity,1.5}", '["NaN","-Infinity",1.5]'),
        (NUMERICS, "{1.50,NaN}", '["1.50","NaN"]'),
        (UUIDS, "{01890a5d-ac96-774b-bcce-b302099a8057}", '["01890a5d-ac96-774b-bcce-b302099a8057"]'),
        (TIMES, '{"2024-01-01 00:00:00+00",infinity}', '["2024-01-01T00:00:00+00:00","infinity"]'),
        (JSONBS, r'{"{\"a\": \"b c\"}",null,NULL}', '[{"a": "b c"},null,null]'),
        (TEXTS, r'{"a b","NULL",NULL,"","\"q\""}', r'["a b","NULL",null,"","\"q\""]'),
        (TEXTS, r'{"ba\\ck","{x}","a,b"}', r'["ba\\ck","{x}","a,b"]'),
        (AN_ENUM, "happy", '"happy"'),
    ],
)  # fmt: skip
def test_a_value_has_its_json(type: int, text: str, expected: str) -> None:
    assert converter(type)(text) == expected


stored_texts = some.text(some.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@given(stored_texts)
def test_every_text_survives(text: str) -> None:
    for read in (json.loads, msgspec.json.decode):
        assert read(converter(TEXT)(text)) == text


def as_postgres(value: Any) -> str:
    """Writes an array as PostgreSQL does, with every text in quotes."""
    match value:
        case None:
            return "NULL"
        case str():
            return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
        case list():
            return "{" + ",".join(as_postgres(item) for item in value) + "}"
        case _:
            return str(value)


@given(some.integers(1, 3), some.data())
def test_every_array_of_texts_survives(depth: int, data: some.DataObject) -> None:
    arrays: some.SearchStrategy[Any] = some.none() | stored_texts
    for _ in range(depth):
        arrays = some.lists(arrays, min_size=1, max_size=3)
    value = data.draw(arrays)
    assert json.loads(converter(TEXTS)(as_postgres(value))) == value


@given(some.lists(some.none() | some.integers(-(2**31), 2**31 - 1), max_size=20))
def test_every_array_of_numbers_survives(value: list[int | None]) -> None:
    assert json.loads(converter(INTS)(as_postgres(value))) == value


documents = some.recursive(
    some.none()
    | some.booleans()
    | some.integers()
    | some.floats(allow_nan=False, allow_infinity=False)
    | some.text(max_size=10),
    lambda inner: some.lists(inner, max_size=4) | some.dictionaries(some.text(max_size=5), inner, max_size=4),
    max_leaves=15,
)


@given(documents, some.booleans())
def test_every_document_can_be_decoded_by_any_reader(document: Any, ascii_only: bool) -> None:
    """A column that a decoder of a receiver could refuse is a string with the document."""
    text = json.dumps(document, ensure_ascii=ascii_only, allow_nan=False).encode(errors="replace").decode()
    written = converter(JSON)(text)
    read = msgspec.json.decode(written)
    assert text in (written, read)
    assert not has_nul(read)


def has_nul(value: Any) -> bool:
    match value:
        case str():
            return "\0" in value
        case list():
            return any(map(has_nul, value))
        case dict():
            return any(map(has_nul, value)) or any(map(has_nul, value.values()))
        case _:
            return False

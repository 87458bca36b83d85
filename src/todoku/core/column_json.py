"""Turns a column's text, as PostgreSQL writes it, into JSON text.

The text is that of a session with `datestyle=ISO, timezone=UTC, intervalstyle=iso_8601, extra_float_digits=3,
bytea_output=hex`. Integers and floats are numbers; `numeric` is text, because most readers of JSON would round it. A
type that is not listed here (an enum, a domain, a type of an extension) is text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from json.encoder import encode_basestring
from typing import Final

import msgspec

Converter = Callable[[str], str]

quote: Final[Converter] = encode_basestring
"""Returns a text as a JSON string, in C."""


def converter(type: int) -> Converter:
    """Returns the function that turns texts of the type with this oid into JSON text. It is not called for NULL."""
    return _CONVERTERS.get(type, quote)


def _bool(text: str) -> str:
    return "true" if text == "t" else "false"


def _float(text: str) -> str:
    return text if text[-1].isdigit() else quote(text)  # NaN, Infinity and -Infinity are no JSON numbers


def _json(text: str) -> str:
    """Returns the document as it is, or as a string if a reader of the message might stumble over it.

    PostgreSQL accepts half a surrogate pair, a NUL (`\\u0000`) and numbers of any size; most decoders do not.
    """
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return quote(text)
    if "\\u0000" in text and _NUL.search(text):
        return quote(text)
    return text


_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL, and not an escaped backslash before the letters u0000."""


def _timestamp(text: str) -> str:
    return f'"{text.replace(" ", "T", 1)}"'


def _timestamp_with_zone(text: str) -> str:
    if text.endswith("+00"):
        return f'"{text.replace(" ", "T", 1)}:00"'
    moment, era = (text[:-3], " BC") if text.endswith(" BC") else (text, "")
    offset = ":00" if moment[-3] in "+-" else ""  # PostgreSQL leaves out the minutes of an offset of whole hours
    return f'"{moment.replace(" ", "T", 1)}{offset}{era}"'


# ------------------------------------------------------------
# Arrays: {1,NULL,3}, {{"a b",c},{d,"\"e\""}}, and with bounds [0:1]={1,2}.

_TOKEN: Final = re.compile(r'"(?P<quoted>[^"\\]*(?:\\.[^"\\]*)*)"|(?P<bare>[^{},"\\]+)|(?P<mark>[{},])', re.DOTALL)
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_MARKS: Final = {"{": "[", "}": "]", ",": ","}


def _array(element: Converter) -> Converter:
    def convert(text: str) -> str:
        values = text[text.index("=") + 1 :] if text.startswith("[") else text
        inner = values[1:-1]
        if not inner:
            return "[]"
        if '"' in inner or "{" in inner:
            return "".join([_element(token, element) for token in _TOKEN.finditer(values)])
        return f"[{','.join(['null' if item == 'NULL' else element(item) for item in inner.split(',')])}]"

    return convert


def _element(token: re.Match[str], element: Converter) -> str:
    """Returns the JSON of one token of an array: a bracket, a comma, or a value."""
    match token.lastgroup:
        case "quoted":
            return element(_ESCAPED.sub(r"\1", token["quoted"]))
        case "bare":
            return "null" if token["bare"] == "NULL" else element(token["bare"])
        case _:
            return _MARKS[token["mark"]]


# ------------------------------------------------------------
# Oids of built-in types never change.

_NOT_TEXT: Final[dict[int, Converter]] = {
    16: _bool,
    20: str,  # int8
    21: str,  # int2
    23: str,  # int4
    26: str,  # oid
    114: _json,
    700: _float,  # float4
    701: _float,  # float8
    1114: _timestamp,
    1184: _timestamp_with_zone,
    3802: _json,  # jsonb
}

_ARRAYS: Final = {
    143: 142,  # xml
    199: 114,  # json
    651: 650,  # cidr
    791: 790,  # money
    1000: 16,  # bool
    1001: 17,  # bytea
    1002: 18,  # "char"
    1003: 19,  # name
    1005: 21,  # int2
    1007: 23,  # int4
    1009: 25,  # text
    1014: 1042,  # char(n)
    1015: 1043,  # varchar
    1016: 20,  # int8
    1021: 700,  # float4
    1022: 701,  # float8
    1028: 26,  # oid
    1040: 829,  # macaddr
    1041: 869,  # inet
    1115: 1114,  # timestamp
    1182: 1082,  # date
    1183: 1083,  # time
    1185: 1184,  # timestamptz
    1187: 1186,  # interval
    1231: 1700,  # numeric
    1270: 1266,  # timetz
    1561: 1560,  # bit
    1563: 1562,  # varbit
    2951: 2950,  # uuid
    3807: 3802,  # jsonb
    3905: 3904,  # int4range
    3907: 3906,  # numrange
    3909: 3908,  # tsrange
    3911: 3910,  # tstzrange
    3913: 3912,  # daterange
    3927: 3926,  # int8range
}
"""The type of an array → the type of its elements."""

_CONVERTERS: Final[dict[int, Converter]] = _NOT_TEXT | {
    array: _array(_NOT_TEXT.get(element, quote)) for array, element in _ARRAYS.items()
}

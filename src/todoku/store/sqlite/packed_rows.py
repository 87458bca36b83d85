"""Decodes claimed rows, which SQLite returns as one text: see the query `claim`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from todoku.core.message import Claimed

_FIELDS: Final = Claimed.__struct_fields__
_SEQ: Final = _FIELDS.index("message_seq")
_PAYLOAD: Final = _FIELDS.index("payload")
_BYTES: Final = _FIELDS.index("payload_bytes")
_HEADERS: Final = _FIELDS.index("headers")
_DUE: Final = _FIELDS.index("next_run_at")
_TIMES: Final = (_DUE, _FIELDS.index("created_at"), _FIELDS.index("expires_at"))

_rows: Final = msgspec.json.Decoder(list[list[Any]])


def unpack(packed: str, large: Callable[[list[int]], Sequence[Any]]) -> list[list[Any]]:
    """Returns the rows in the form of the other claims, in order. `large` reads the messages left out, by seq."""
    rows = _rows.decode(packed)
    missing = []
    for row in rows:
        if not row.pop():
            missing.append(row)
        if (digits := row[_BYTES]) is not None:
            row[_BYTES] = bytes.fromhex(digits)
        for time in _TIMES:
            if row[time] is not None:
                row[time] /= 1e6
    if missing:
        found = {seq: rest for seq, *rest in large([row[_SEQ] for row in missing])}
        for row in missing:
            row[_PAYLOAD], row[_BYTES], row[_HEADERS] = found[row[_SEQ]]
    rows.sort(key=_due_order)
    return rows


def _due_order(row: list[Any]) -> tuple[float, int]:
    return row[_DUE], row[0]

"""Capture: why one does not read, which tables it reads, which rows a snapshot sees, and the messages of a change.

Positions in the log (LSN) are numbers; people see them as PostgreSQL writes them, `0/16B3748`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from todoku.core.column_json import converter, quote
from todoku.core.errors import CaptureError, InvalidMessage, InvalidSetting
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.core.pgoutput import UNCHANGED, Relation, Row
from todoku.core.topic_pattern import check_topic

Op = Literal["insert", "update", "delete", "truncate", "snapshot"]
OPS: Final[tuple[Op, ...]] = ("insert", "update", "delete", "truncate", "snapshot")

State = Literal["starting", "snapshot", "streaming", "away", "stopped"]

Reason = Literal[
    "WAL_LEVEL", "NO_RIGHTS", "NO_TABLE", "NO_IDENTITY", "NO_SLOTS_LEFT", "PUBLICATION_CHANGED", "SLOT_MISSING",
    "SLOT_LOST", "SLOT_DROPPED", "SLOT_AHEAD", "SLOT_BUSY", "OTHER_SERVER", "DIVERGED", "SOURCE_AWAY", "BAD_STREAM",
]  # fmt: skip
"""Why a capture is away or stopped."""

PASSING: Final[frozenset[Reason]] = frozenset({"SLOT_BUSY", "SOURCE_AWAY"})
"""Reasons that end by themselves: the capture is away and tries again. With any other one an operator must act."""


class Stop(msgspec.Struct, frozen=True):
    """Why a capture does not read. `why`: one sentence for the operator, with what to do."""

    reason: Reason
    why: str

    @property
    def state(self) -> Literal["away", "stopped"]:
        """The state of the capture: away if it tries again by itself."""
        return "away" if self.reason in PASSING else "stopped"


# ------------------------------------------------------------
# Positions and transactions.


def parse_lsn(text: str) -> int:
    """Reads a position as PostgreSQL writes it; CaptureError: it is none."""
    if not _LSN.fullmatch(text):
        raise CaptureError(f"{text[:40]!r} is not a position in the log", hint="it looks like 0/16B3748")
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def format_lsn(lsn: int) -> str:
    """Returns a position as PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"


_LSN: Final = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


def widen_xid(xid: int, near: int) -> int:
    """Returns the 64-bit number of a transaction whose lower 32 bits are `xid`: the one nearest to `near`."""
    wide = near & ~0xFFFF_FFFF | xid
    if wide - near > 1 << 31 and wide > 0xFFFF_FFFF:
        return wide - (1 << 32)
    if near - wide > 1 << 31:
        return wide + (1 << 32)
    return wide


class PageSnapshot(msgspec.Struct, frozen=True):
    """What a transaction of the source sees (`pg_current_snapshot()`), in 64-bit numbers of transactions."""

    xmin: int
    xmax: int
    running: frozenset[int]

    def sees(self, xid: int) -> bool:
        """Whether a committed transaction is visible; `xid`: its 32 bits, as in Begin."""
        wide = widen_xid(xid, self.xmax)
        return wide < self.xmin or (wide < self.xmax and wide not in self.running)


def parse_snapshot(text: str) -> PageSnapshot:
    """Reads the text of `pg_current_snapshot()`, `10:20:10,14`; CaptureError: it is none."""
    if not _SNAPSHOT.fullmatch(text):
        raise CaptureError(f"{text[:40]!r} is not a snapshot", hint="it looks like 10:20:10,14")
    xmin, xmax, running = text.split(":")
    return PageSnapshot(int(xmin), int(xmax), frozenset(map(int, running.split(","))) if running else frozenset())


_SNAPSHOT: Final = re.compile(r"[0-9]{1,20}:[0-9]{1,20}:(?:[0-9]{1,20}(?:,[0-9]{1,20})*)?")


# ------------------------------------------------------------
# The rules of tables.


class TableRule(msgspec.Struct, frozen=True):
    """A captured table (`public.orders`), the template of its topic, and the columns that are its messages' key."""

    table: str
    topic: str
    key: tuple[str, ...]

    @property
    def schema(self) -> str:
        """The schema of the table, as the catalog has it."""
        return self.table.partition(".")[0]

    @property
    def name(self) -> str:
        """The table's own name, as the catalog has it."""
        return self.table.partition(".")[2]

    def topic_of(self, op: Op) -> str:
        """Returns the topic of a change."""
        return self.topic.replace("{op}", op).replace("{schema}", self.schema).replace("{table}", self.name)


def table_rule(table: str, topic: str, key: str | Sequence[str]) -> TableRule:
    """Returns the checked rule of a table; InvalidSetting.

    `table`: its name as the catalog has it, without quotes; the schema is `public` if there is none. `topic`: may have
    {op}, {table} and {schema}. `key`: one column or several.
    """
    rule = TableRule(_check_table(table), _check_template(table, topic), _check_key(table, key))
    _check_topics(rule)
    return rule


def _check_table(table: object) -> str:
    names = table.split(".") if isinstance(table, str) else []
    if len(names) not in (1, 2) or not all(map(_is_name, names)):
        hint = "write schema.table as the catalog has them, without quotes; a name with a dot cannot be captured"
        raise InvalidSetting(f"a captured table cannot be {table!r}", hint=hint)
    return ".".join(names if len(names) == 2 else ["public", *names])


def _check_template(table: str, topic: object) -> str:
    if not isinstance(topic, str):
        raise InvalidSetting(f"the topic of {table} cannot be {topic!r}", hint=_TOPIC_HINT)
    return topic


def _check_key(table: str, key: str | Sequence[str]) -> tuple[str, ...]:
    columns = (key,) if isinstance(key, str) or not isinstance(key, Sequence) else tuple(key)
    if not columns or not all(map(_is_name, columns)) or len(set(columns)) < len(columns):
        hint = 'name each column of the key once: key="id", or key=("tenant", "id")'
        raise InvalidSetting(f"the key of {table} cannot be {key!r}", hint=hint)
    return columns


def _is_name(name: object) -> bool:
    if not isinstance(name, str) or not name.strip() or set(name) & {"\0", '"'}:
        return False
    encoded = name.encode(errors="ignore")
    return len(encoded) <= _MAX_NAME_BYTES and encoded.decode() == name  # half a surrogate pair is no name


_MAX_NAME_BYTES: Final = 63
"""PostgreSQL cuts off longer names."""


_TOPIC_HINT: Final = "use words with dots between them, {op}, {table} and {schema}: orders.{op}"


def _check_topics(rule: TableRule) -> None:
    for op in OPS:
        topic = rule.topic_of(op)
        try:
            check_topic(topic)
        except InvalidMessage:
            raise InvalidSetting(f"the topic of {rule.table} cannot be {topic!r}", hint=_TOPIC_HINT) from None
        if len(topic) > MAX_TOPIC_LENGTH:
            hint = f"{MAX_TOPIC_LENGTH} are allowed"
            raise InvalidSetting(f"the topic of {rule.table} has {len(topic)} characters", hint=hint)


# ------------------------------------------------------------
# Messages.


class CapturedChange(msgspec.Struct, frozen=True, gc=False):
    """A message to publish. `payload`: JSON text with op, table, row, old and unchanged, in this order."""

    op: Op
    topic: str
    key: str | None
    payload: str


def key_text(values: Sequence[str | None]) -> str:
    """Returns the key of a row: the text of its key column, or the JSON array of several, or of a NULL.

    A text that cannot be a key (empty, or above MAX_KEY_LENGTH) is replaced by `sha256:` and its hash.
    """
    text = values[0] if len(values) == 1 else None
    if text is None:
        text = f"[{','.join(['null' if value is None else quote(value) for value in values])}]"
    if 0 < len(text) <= MAX_KEY_LENGTH:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


class _Form(msgspec.Struct, frozen=True):
    """What all messages of one operation have in common."""

    op: Op
    topic: str
    head: str
    """The payload up to its row."""
    whole: str
    """The payload of a row with all its values, and nothing else: a format with `%s` for each column."""


class Encoder:
    """Turns the changes of one table into messages, as long as its columns stay the same.

    CaptureError: a key column is missing, or is not part of the replica identity.
    """

    def __init__(self, relation: Relation, rule: TableRule) -> None:
        columns = relation.columns
        places = {column.name: place for place, column in enumerate(columns)}
        for name in rule.key:
            if name not in places:
                hint = "choose another key, and give the capture a new snapshot"
                raise CaptureError(f"{rule.table} has no column {name}", hint=hint, reason="NO_IDENTITY")
            if not columns[places[name]].key:
                hint = f'make it part of it, or: alter table "{rule.schema}"."{rule.name}" replica identity full'
                message = f"the column {name} is not part of the replica identity of {rule.table}"
                raise CaptureError(message, hint=hint, reason="NO_IDENTITY")
        self._rule = rule
        self._key = tuple(places[name] for name in rule.key)
        self._names = tuple(quote(column.name) for column in columns)
        self._convert = tuple(converter(column.type) for column in columns)
        self._width = len(columns)
        self._all = tuple(range(self._width))
        self._identity = tuple(place for place, column in enumerate(columns) if column.key)
        self._insert, self._update, self._delete, self._truncate, self._snapshot = map(self._form, OPS)

    def _form(self, op: Op) -> _Form:
        head = f'{{"op":{quote(op)},"table":{quote(self._rule.table)},"row":'
        row = ",".join([f"{name.replace('%', '%%')}:%s" for name in self._names])
        whole = f'{head.replace("%", "%%")}{{{row}}},"old":null,"unchanged":[]}}'
        return _Form(op, self._rule.topic_of(op), head, whole)

    def insert(self, row: Row) -> list[CapturedChange]:
        """Returns the message of an inserted row."""
        return [self._encode_whole(self._insert, row)]

    def snapshot(self, row: Row) -> list[CapturedChange]:
        """Returns the message of a row that a snapshot found."""
        return [self._encode_whole(self._snapshot, row)]

    def update(self, old: Row | None, full: bool, new: Row) -> list[CapturedChange]:
        """Returns the message of a changed row; two, a delete and an insert, if its key changed (R18)."""
        if old is None and UNCHANGED not in new:
            return [self._encode_whole(self._update, new)]
        self._check_width(new)
        if old is None:
            return [self._encode(self._update, new, None, full)]
        self._check_width(old)
        new = self._filled(old, full, new)
        if all(old[place] == new[place] for place in self._key):
            return [self._encode(self._update, new, old, full)]
        return [self._encode_delete(old, full), self._encode(self._insert, new, None, full)]

    def delete(self, old: Row, full: bool) -> list[CapturedChange]:
        """Returns the message of a deleted row."""
        self._check_width(old)
        return [self._encode_delete(old, full)]

    def truncate(self) -> list[CapturedChange]:
        """Returns the message of an emptied table. It has no key."""
        form = self._truncate
        return [CapturedChange(form.op, form.topic, None, f'{form.head}null,"old":null,"unchanged":[]}}')]

    def abridge(self, change: CapturedChange) -> CapturedChange:
        """Returns the change with its key columns only: what a dead letter has of a row that is too large.

        A key column that is too large itself is left out.
        """
        payload = msgspec.json.decode(change.payload)
        for part in ("row", "old"):
            if payload[part] is not None:
                payload[part] = {
                    name: value for name, value in payload[part].items() if self._is_short_key(name, value)
                }
        return msgspec.structs.replace(change, payload=msgspec.json.encode(payload).decode())

    def _is_short_key(self, name: str, value: object) -> bool:
        return name in self._rule.key and len(str(value)) <= MAX_KEY_LENGTH

    # ------------------------------------------------------------

    def _encode_whole(self, form: _Form, row: Row) -> CapturedChange:
        """Returns the message of a row that has all its values. Most messages are made here."""
        self._check_width(row)
        try:
            values = [
                "null" if value is None else convert(value.decode())  # type: ignore[union-attr]  # none is UNCHANGED
                for convert, value in zip(self._convert, row)  # noqa: B905 - as long as each other; strict is slow
            ]
            return CapturedChange(form.op, form.topic, self._key_of(row), form.whole % tuple(values))
        except UnicodeDecodeError:
            return self._encode_whole(form, _readable(row))

    def _encode(self, form: _Form, new: Row, old: Row | None, full: bool) -> CapturedChange:
        """Returns the message of a row with an old one, or with values that are not in the log."""
        try:
            row, old_row = self._object(new, self._all), self._old(old, full)
            key = self._key_of(new)
        except UnicodeDecodeError:
            return self._encode(form, _readable(new), old and _readable(old), full)
        unchanged = ",".join([name for name, value in zip(self._names, new, strict=True) if value is UNCHANGED])
        payload = f'{form.head}{row},"old":{old_row},"unchanged":[{unchanged}]}}'
        return CapturedChange(form.op, form.topic, key, payload)

    def _encode_delete(self, old: Row, full: bool) -> CapturedChange:
        try:
            row, key = self._old(old, full), self._key_of(old)
        except UnicodeDecodeError:
            return self._encode_delete(_readable(old), full)
        form = self._delete
        return CapturedChange(form.op, form.topic, key, f'{form.head}null,"old":{row},"unchanged":[]}}')

    def _old(self, old: Row | None, full: bool) -> str:
        return "null" if old is None else self._object(old, self._all if full else self._identity)

    def _object(self, row: Row, places: Sequence[int]) -> str:
        """Returns the JSON object of the columns at these places, without those that are not in the log."""
        fields = []
        for place in places:
            value = row[place]
            if value is None:
                fields.append(f"{self._names[place]}:null")
            elif value is not UNCHANGED:
                fields.append(f"{self._names[place]}:{self._convert[place](value.decode())}")
        return f"{{{','.join(fields)}}}"

    def _filled(self, old: Row, full: bool, new: Row) -> Row:
        """Returns the new row with unchanged values from the old one, where the log has that."""
        if UNCHANGED not in new:
            return new
        known = self._all if full else self._identity
        return tuple(
            old[place] if value is UNCHANGED and place in known and old[place] is not None else value
            for place, value in enumerate(new)
        )

    def _key_of(self, row: Row) -> str:
        if len(self._key) == 1 and isinstance(value := row[self._key[0]], bytes):  # most rows, the short way
            text = value.decode()
            return text if 0 < len(text) <= MAX_KEY_LENGTH else key_text([text])
        values = []
        for place in self._key:
            value = row[place]
            if value is UNCHANGED:
                hint = "update the server to its newest minor release: early ones do not log such keys"
                raise CaptureError(f"the log has no value for the key of a row of {self._rule.table}", hint=hint)
            values.append(None if value is None else value.decode())
        return key_text(values)

    def _check_width(self, row: Row) -> None:
        if len(row) != self._width:
            message = f"a row of {self._rule.table} has {len(row)} columns instead of {self._width}"
            raise CaptureError(message, hint="nothing was skipped: restart the worker, which reads the columns anew")


def _readable(row: Row) -> Row:
    """Returns the row with bytes that are not UTF-8 as escapes, `\\xff`: databases in SQL_ASCII have such texts."""
    return tuple(
        value.decode(errors="backslashreplace").encode() if isinstance(value, bytes) else value for value in row
    )

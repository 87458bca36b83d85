"""The checker: what stands in todoku beside the model of the source, change by change.

It knows nothing of how a capture works. Of each key it wants the changes of the model, each once, in the order of their
commits, with the number of their transaction; of rows that were there before, one snapshot that is true where it
stands.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.capture.source_model import Change, Key, Row
from tests.capture.workload import STOCK
from tests.capture.writers import Model

SHOWN = 20


@dataclass(frozen=True)
class Seen:
    """A message of todoku."""

    seq: int
    topic: str
    key: str | None
    payload: dict[str, Any]
    headers: dict[str, str]

    @property
    def lsn(self) -> int:
        high, _, low = self.headers["capture-lsn"].partition("/")
        return (int(high, 16) << 32) + int(low, 16)


@dataclass
class _Entry:
    """One state of a row, since the change that made it."""

    era: int
    op: str | None
    row: Row | None
    may_lack: frozenset[str] = frozenset()
    xid: str | None = None
    also: list[Row] = field(default_factory=list)
    """How DDL let it look later, without a change."""


@dataclass
class Verdict:
    """What was compared, and what is wrong."""

    problems: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def wrong(self, what: str) -> None:
        self.counts["problems"] += 1
        if len(self.problems) < SHOWN:
            self.problems.append(what)

    def __str__(self) -> str:
        return ", ".join(f"{number:,} {what}" for what, number in sorted(self.counts.items()))


def compare(model: Model, messages: Iterable[Seen], *, complete_at: int | None = None) -> Verdict:
    """Compares them one by one. `complete_at`: the newest message when the snapshot was seen to be done."""
    return _Comparison(model, complete_at).run(sorted(messages, key=lambda one: one.seq))


class _Comparison:
    def __init__(self, model: Model, complete_at: int | None) -> None:
        self.verdict = Verdict()
        self._complete_at = complete_at
        self._entries: dict[tuple[str, Key], list[_Entry]] = {
            (table, key): [_Entry(0, None, row)] for table, rows in model.initial.items() for key, row in rows.items()
        }
        self._truncates: dict[str, list[str]] = defaultdict(list)
        self._places: Counter[tuple[str, Key]] = Counter()
        self._eras: Counter[str] = Counter()
        self._first: dict[tuple[str, Key], int] = {}
        self._truncated_at: dict[str, int] = {}
        self._copied: set[tuple[str, Key]] = set()
        self._broken: set[tuple[str, Key]] = set()
        for writer in model.writers:
            for transaction in writer:
                for change in transaction.changes:
                    self._expect(change, transaction.xid)
        for (table, _), entries in self._entries.items():
            if table == STOCK:  # changed by every writer: the server's own count is the order
                entries[1:] = sorted(entries[1:], key=lambda entry: int((entry.row or {})["v"]))
        self.verdict.counts["transactions of the source"] = model.transactions

    def _expect(self, change: Change, xid: str) -> None:
        if change.key is None:
            self._truncates[change.table].append(xid)
            return
        era = len(self._truncates[change.table])
        entries = self._entries.setdefault((change.table, change.key), [_Entry(0, None, None)])
        if change.op == "alter":
            assert change.row is not None
            entries[-1].also.append(change.row)
        else:
            entries.append(_Entry(era, change.op, change.row, change.may_lack, xid))

    # ---------------------------------------------------------------------------------------------------- comparing

    def run(self, messages: Sequence[Seen]) -> Verdict:
        for message in messages:
            self._look(message)
        self._in_order(messages)
        self._is_complete()
        return self.verdict

    def _look(self, message: Seen) -> None:
        op, table = message.payload["op"], message.payload["table"]
        self.verdict.counts[f"{op} messages"] += 1
        if op == "truncate":
            self._look_at_truncate(message, table)
            return
        place = (table, _key(message, self._width(table)))
        if place in self._broken:
            return
        if place not in self._entries:
            self.verdict.wrong(f"{_name(message)}: the source never had that key")
        elif op == "snapshot":
            self._look_at_copy(message, place)
        else:
            self._look_at_change(message, place)

    def _look_at_truncate(self, message: Seen, table: str) -> None:
        number = self._eras[table]
        expected = self._truncates[table][number : number + 1]
        if message.key is not None or [message.headers["capture-xid"]] != expected:
            self.verdict.wrong(f"{_name(message)}: is not truncate {number + 1} of {table}, {expected}")
        self._eras[table] += 1
        self._truncated_at.setdefault(table, message.seq)

    def _look_at_copy(self, message: Seen, place: tuple[str, Key]) -> None:
        """A row as it was when its page was read: it must stand behind the change that made it, before the next."""
        entry = self._entries[place][self._places[place]]
        alive = entry.row is not None and entry.era == self._eras[place[0]]
        if place in self._copied:
            self._break(place, f"{_name(message)}: the snapshot has this key twice")
        elif not alive or message.payload["row"] not in (entry.row, *entry.also):
            self._break(place, f"{_name(message)}: a snapshot of a row that looks different here: {entry}")
        self._copied.add(place)

    def _look_at_change(self, message: Seen, place: tuple[str, Key]) -> None:
        entries, number = self._entries[place], self._places[place] + 1
        if number >= len(entries):
            self._break(place, f"{_name(message)}: one more than the {len(entries) - 1} changes of this key")
        elif (why := self._difference(message, entries[number], place)) is not None:
            self._break(place, f"{_name(message)}: change {number} of this key: {why}")
        else:
            self._places[place] = number
            self._first.setdefault(place, message.seq)
            self.verdict.counts["changes compared"] += 1

    def _difference(self, message: Seen, entry: _Entry, place: tuple[str, Key]) -> str | None:
        payload, era = message.payload, self._eras[place[0]]
        unchanged = frozenset(payload["unchanged"] or ())
        self.verdict.counts["values left out as unchanged"] += len(unchanged)
        found, wanted = (payload["op"], message.headers["capture-xid"], era), (entry.op, entry.xid, entry.era)
        if found != wanted:
            return f"op, transaction, truncates before: {found}, not {wanted}"
        if not unchanged <= entry.may_lack:
            return f"{sorted(unchanged - entry.may_lack)} did change, or are short"
        if _without(payload["row"], unchanged) != _without(entry.row, unchanged):
            return f"row {payload['row']}, not {entry.row}"
        if payload["op"] == "delete" and tuple(str(value) for value in _keyed(payload["old"], place)) != place[1]:
            return f"old is {payload['old']}"
        return None

    def _in_order(self, messages: Sequence[Seen]) -> None:
        """Positions never fall, and no transaction is interrupted by another."""
        ended: set[str] = set()
        before: Seen | None = None
        for message in messages:
            xid = message.headers.get("capture-xid")
            if before is not None and message.lsn < before.lsn:
                self.verdict.wrong(f"{_name(message)}: stands behind one with a greater position")
            if before is not None and xid != before.headers.get("capture-xid"):
                ended.add(before.headers.get("capture-xid") or "")
                if xid in ended and xid:
                    self.verdict.wrong(f"{_name(message)}: transaction {xid} was interrupted")
            before = message

    def _is_complete(self) -> None:
        for table, xids in self._truncates.items():
            if self._eras[table] < len(xids):
                self.verdict.wrong(f"{table}: {len(xids) - self._eras[table]} truncates are missing")
        for place, entries in self._entries.items():
            if place in self._broken:
                continue
            if missing := len(entries) - 1 - self._places[place]:
                self.verdict.wrong(f"{place}: {missing} of {len(entries) - 1} changes are missing at the end")
            elif entries[0].row is not None and place not in self._copied and not self._was_hidden(place):
                self.verdict.wrong(f"{place}: never in the snapshot, and not changed before it was done")

    def _was_hidden(self, place: tuple[str, Key]) -> bool:
        """Whether a row of the beginning was changed, or truncated, early enough to be left out of the snapshot."""
        changed = [at for at in (self._first.get(place), self._truncated_at.get(place[0])) if at is not None]
        return bool(changed) and (self._complete_at is None or min(changed) <= self._complete_at)

    def _break(self, place: tuple[str, Key], what: str) -> None:
        """One complaint a key is enough."""
        self._broken.add(place)
        self.verdict.wrong(what)

    def _width(self, table: str) -> int:
        return 2 if table.rpartition(".")[2].startswith(("lines_", "regions_")) else 1


def _key(message: Seen, width: int) -> Key:
    """Several key columns are a JSON array of their texts."""
    if message.key is None:
        return ()
    return (message.key,) if width == 1 else tuple(json.loads(message.key))


def _keyed(old: Row | None, place: tuple[str, Key]) -> list[Any]:
    names = {"lines": ("order_id", "line"), "regions": ("region", "id")}.get(
        place[0].split(".")[1].split("_")[0], ("id",)
    )
    return [(old or {}).get(name) for name in names]


def _without(row: Row | None, names: frozenset[str]) -> Row | None:
    return None if row is None else {name: value for name, value in row.items() if name not in names}


def _name(message: Seen) -> str:
    return f"message {message.seq} {message.topic} {message.key!r}"


def arrived(recorded: Iterable[tuple[str | None, int]], messages: Sequence[Seen]) -> Verdict:
    """What a destination got, as (key, number of the message): each at least once, those of a key in order."""
    verdict = Verdict()
    newest: dict[str, int] = {}
    got: Counter[int] = Counter()
    for key, seq in recorded:
        if key is not None and not got[seq] and seq < newest.get(key, 0):
            verdict.wrong(f"{key!r}: message {seq} arrived for the first time behind {newest[key]}")
        got[seq] += 1
        if key is not None:
            newest[key] = max(seq, newest.get(key, 0))
    if missing := [one.seq for one in messages if not got[one.seq]]:
        verdict.wrong(f"{len(missing)} messages never arrived, such as {missing[:5]}")
    verdict.counts |= Counter(
        {"arrived": len(got), "arrived again after a kill": sum(got.values()) - len(got)}
    )  # fmt: skip
    return verdict

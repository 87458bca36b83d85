"""Search: the deliveries that meet criteria, finished or not, newest first, by an index where there is one.

Every page looks at a bounded number of rows, says how many, and has a cursor to go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from todoku.core.search import Criteria, topic_expression
from todoku.store.database import Database, Tx
from todoku.store.deliveries import Delivery, delivery, parse_cursor
from todoku.store.situation import Situation, read_situations

LOOKED_AT: Final = 20_000
"""Rows that one page looks at."""

LOOKED_BESIDE: Final = 10_000
"""Rows that one page looks at, if it has to read their messages."""

LOOKED_INTO: Final = 2_500
"""Rows that one page looks at, if it has to read their payloads or headers."""

_SHARES: Final = (200, 2_000)
_CHUNK: Final = 2_000
_NAMES_OF: Final = 2_000
"""Newest rows whose names are suggested."""

_HIGHEST: Final = (1 << 63) - 1

Walk = Literal["unfinished", "finished", "dead", "fingerprint", "running"]
"""The order in which rows are looked at: one table or index, newest first."""

_BY_ID: Final[tuple[Walk, ...]] = ("dead", "fingerprint")
"""Walks in the order of deliveries. The others are in the order of messages, which both tables have an index for."""


class Position(msgspec.Struct, frozen=True, order=True):
    """A place in the list: the number of the message, then of the delivery. Larger is newer."""

    seq: int
    id: int

    def __str__(self) -> str:
        return f"{self.seq}.{self.id}"


TOP: Final = Position(_HIGHEST, _HIGHEST)
_BOTTOM: Final = Position(0, 0)


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a search, newest first, and the cursor to go on (None: there is nothing more).

    `looked_at`: rows that were looked at for it; of these `sealed` have a payload that cannot be searched. `complete`
    is False if the bound on rows ended the page before it was full.
    """

    items: tuple[Delivery, ...]
    next: str | None
    looked_at: int
    sealed: int
    complete: bool


class KnownWord(msgspec.Struct, frozen=True):
    """Whether a word is the key or a label of a message."""

    is_key: bool
    is_label: bool


class SearchStore:
    """Searches the deliveries of one database. Only reads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(
        self, wanted: Criteria, *, cursor: str | None = None, limit: int = 50, look: int = LOOKED_AT
    ) -> SearchPage:
        """One page of the deliveries that meet the criteria; `words` and names of workers must be resolved before."""
        before = TOP if cursor is None else Position(*parse_cursor(cursor, 2))
        named = self._named_messages(wanted)
        return self._database.read(lambda tx: _Page(tx, wanted, before, limit, look, named).find())

    def _named_messages(self, wanted: Criteria) -> list[int]:
        """The numbers of the messages of deliveries and messages that are asked for by id, the newest first."""
        if not (wanted.ids or wanted.message_ids):
            return []
        ids, messages = list(wanted.ids), [str(id) for id in wanted.message_ids]
        # Deliveries that succeeded are found by number through an index of blocks, which is read by a bitmap.
        rows = self._database.read(lambda tx: tx.rows("seqs_of_ids", ids=ids, message_ids=messages), pinned=False)
        return [seq for (seq,) in rows]

    def situations(self, deliveries: Sequence[Delivery]) -> dict[int, Situation]:
        """Everything that decides when each of these deliveries runs, by their numbers.

        Those that have ended since, or succeeded, are left out. The number of queries does not depend on theirs.
        """
        waiting = [each for each in deliveries if each.status != "succeeded"]
        return self._database.read(lambda tx: read_situations(tx, waiting)) if waiting else {}

    def known_words(self, words: Sequence[str]) -> dict[str, KnownWord]:
        """Which of these words are keys or labels of messages."""
        rows = self._database.read(lambda tx: tx.rows("known_words", words=list(words))) if words else []
        return {word: KnownWord(bool(key), bool(label)) for word, key, label in rows}

    def declared_fields(self, paths: Sequence[str]) -> frozenset[str]:
        """Those of these payload fields that are kept as labels of at least one message."""
        prefixes = {f"payload.{path}:": path for path in paths}
        rows = self._database.read(lambda tx: tx.rows("declared_fields", prefixes=list(prefixes))) if prefixes else []
        return frozenset(prefixes[prefix] for (prefix,) in rows)

    def label_names(self, prefix: str, *, limit: int = 20) -> tuple[str, ...]:
        """Labels, or their names with a colon if they have values, that begin with a prefix, in order."""
        rows = self._database.read(lambda tx: tx.rows("label_names", prefix=prefix, most=limit))
        return tuple(dict.fromkeys(name for (name,) in rows))

    def recent_names(self) -> dict[str, tuple[str, ...]]:
        """Topics, queues, destinations and reasons of the newest rows, each sorted."""
        found: dict[str, list[str]] = {"topic": [], "queue": [], "destination": [], "reason": []}
        for kind, name in self._database.read(lambda tx: tx.rows("recent_names", look=_NAMES_OF)):
            found[kind].append(name)
        return {kind: tuple(sorted(names)) for kind, names in found.items()}


class _Page:
    """One page of one search, in an open transaction."""

    def __init__(self, tx: Tx, wanted: Criteria, before: Position, limit: int, look: int, named: Sequence[int]) -> None:
        self._tx = tx
        self._named = named
        self._wanted = wanted
        self._limit = limit
        most = LOOKED_BESIDE if wanted.topics else LOOKED_AT
        self._look = min(look, LOOKED_INTO if wanted.payload or wanted.headers else most)
        self._low = 0 if wanted.since is None else _last_before(tx, wanted.since)
        self._high = _HIGHEST if wanted.until is None else _last_before(tx, wanted.until)
        self._before = min(before, Position(self._high, _HIGHEST))
        self._filters = _parameters(wanted)
        self._ends: dict[tuple[Walk, Position], tuple[int, Position]] = {}

    def find(self) -> SearchPage:
        wanted = self._wanted
        if wanted.ids or wanted.message_ids or wanted.labels or wanted.keys:
            return self._by_messages()
        walks = _walks(wanted)
        return self._merge(walks) if walks else SearchPage(items=(), next=None, looked_at=0, sealed=0, complete=True)

    # ------------------------------------------------------------------------------ by walking a table

    def _merge(self, walks: Sequence[Walk]) -> SearchPage:
        """The rows of one or two walks in one order. Rows behind the end of a walk that was cut wait for it.

        `floor`: nothing older is shown, so the second walk does not go further.
        """
        rows: list[tuple[Position, Delivery]] = []
        cut: list[Position] = []
        floor = _BOTTOM
        for walk in walks:
            found = self._rows(walk, floor)
            rows += found
            if len(found) > self._limit:
                floor = max(floor, found[self._limit - 1][0])
            elif (end := self._looked(walk, floor))[0] >= self._look:
                cut.append(end[1])
                floor = max(floor, end[1])
        rows.sort(key=lambda row: row[0], reverse=True)
        horizon = max(cut, default=_BOTTOM)
        shown = [row for row in rows[: self._limit] if row[0] >= horizon]
        full = len(rows) > self._limit and len(shown) == self._limit
        stop = shown[-1][0] if full else horizon
        return SearchPage(
            items=tuple(item for _, item in shown),
            next=str(stop) if full or cut else None,
            looked_at=sum(self._looked(walk, stop)[0] for walk in walks),
            sealed=sum(self._sealed(walk, stop) for walk in walks) if self._wanted.payload else 0,
            complete=full or not cut,
        )

    def _rows(self, walk: Walk, stop: Position) -> list[tuple[Position, Delivery]]:
        """The newest rows that match. Looks at few first: a database may read all rows below a bound to sort them."""
        rows: list[Any] = []
        looks = (*(share for share in _SHARES if share < self._look), self._look)
        for look in looks:
            span = {**self._span(stop), "look": look}
            rows = self._tx.rows(f"search_{walk}", **self._filters, **span, most=self._limit + 1)
            if len(rows) > self._limit:
                break
        return [(_position(walk, seq, item.id), item) for item, seq in map(_row, rows)]

    def _looked(self, walk: Walk, stop: Position) -> tuple[int, Position]:
        """How many rows of a walk there are down to `stop`, as far as the bound allows, and the last of them."""
        if (known := self._ends.get((walk, stop))) is not None:
            return known
        end = 0, _BOTTOM
        for number, seq, id in self._tx.rows(f"looked_{walk}", **self._filters, **self._span(stop)):
            end = number, _position(walk, seq, id)
        self._ends[walk, stop] = end
        return end

    def _sealed(self, walk: Walk, stop: Position) -> int:
        return int(self._tx.rows(f"sealed_{walk}", **self._filters, **self._span(stop))[0][0])

    def _span(self, stop: Position) -> dict[str, int]:
        return {
            "before_seq": self._before.seq,
            "before_id": self._before.id,
            "stop_seq": stop.seq,
            "stop_id": stop.id,
            "low": max(self._low, stop.seq - 1),  # a bound that every index by message can use
            "high": self._high,
            "look": self._look,
        }

    # ------------------------------------------------------------------- by messages that an index names

    def _by_messages(self) -> SearchPage:
        rows: list[tuple[Position, Delivery]] = []
        looked, chunk, top = 0, 2 * self._limit + 2, self._before
        while True:
            seqs = self._seqs(top.seq, chunk)
            looked += len(seqs)
            rows += ((Position(seq, item.id), item) for item, seq in (self._of_messages(seqs) if seqs else ()))
            end = Position(seqs[-1], 0) if len(seqs) == chunk else None
            if len(rows) > self._limit or end is None or looked >= self._look:
                break
            top, chunk = Position(end.seq - 1, _HIGHEST), min(chunk * 4, _CHUNK)
        full = len(rows) > self._limit
        following = rows[self._limit - 1][0] if full else end
        return SearchPage(
            items=tuple(item for _, item in rows[: self._limit]),
            next=None if following is None else str(following),
            looked_at=looked,
            sealed=0,
            complete=full or end is None,
        )

    def _seqs(self, before_seq: int, look: int) -> list[int]:
        wanted, values = self._wanted, {"before_seq": before_seq, "low": self._low, "look": look}
        if wanted.ids or wanted.message_ids:
            return [seq for seq in self._named if self._low < seq <= before_seq][:look]
        query, names = ("seqs_of_label", wanted.labels[0]) if wanted.labels else ("seqs_of_key", wanted.keys)
        found = {seq for name in names for (seq,) in self._tx.rows(query, value=name, **values)}
        return sorted(found, reverse=True)[:look]

    def _of_messages(self, seqs: Sequence[int]) -> Iterable[tuple[Delivery, int]]:
        position = {"before_seq": self._before.seq, "before_id": self._before.id}
        rows = self._tx.rows("search_messages", **self._filters, **position, seqs=list(seqs), most=self._limit + 1)
        return map(_row, rows)


def _row(row: tuple[Any, ...]) -> tuple[Delivery, int]:
    """A delivery, and the number of its message."""
    return delivery(row[:-1]), row[-1]


def _position(walk: Walk, seq: int, id: int) -> Position:
    return Position(0 if walk in _BY_ID else seq, id)


def _walks(wanted: Criteria) -> tuple[Walk, ...]:
    """Where to look: the smallest index that has every row that can match."""
    if len(wanted.fingerprints) == 1:  # only those of dead letters are in the index
        return ("fingerprint",) if not wanted.statuses or "aborted" in wanted.statuses else ()
    if wanted.statuses == ("aborted",):
        return ("dead",)
    if wanted.statuses == ("sending",):
        return ("running",)
    walks: list[Walk] = []
    failed = wanted.reasons or wanted.errors or wanted.fingerprints
    if not failed and (not wanted.statuses or "succeeded" in wanted.statuses):
        walks.append("finished")  # first: where most is done, it bounds the other
    if wanted.statuses != ("succeeded",):
        walks.append("unfinished")
    return tuple(walks)


def _last_before(tx: Tx, moment: datetime) -> int:
    """The number of the last message that was published before a moment: numbers rise with time."""
    at, low, high = moment.timestamp(), 0, _HIGHEST
    for last, _ in tx.rows("seq_at", seq=_HIGHEST):
        high = last
    while low < high:
        middle = (low + high + 1) // 2
        rows = tx.rows("seq_at", seq=middle)
        if not rows or rows[0][1] < at:
            low = middle
        else:
            high = rows[0][0] - 1
    return low


def _parameters(wanted: Criteria) -> dict[str, Any]:
    """The parameters of the fragment `search_matching`; some are for one of the databases only."""
    labels = [(label, place) for place, group in enumerate(wanted.labels) for label in group]
    headers = [(name.lower(), value) for name, value in wanted.headers]
    return {
        "statuses": list(wanted.statuses) or None,
        "by_id": bool(wanted.ids or wanted.message_ids),
        "ids": list(wanted.ids) or None,
        "message_ids": [str(id) for id in wanted.message_ids] or None,
        "topics": list(wanted.topics) or None,
        "topic_expressions": [topic_expression(topic) for topic in wanted.topics] or None,
        "queues": list(wanted.queues) or None,
        "destinations": list(wanted.destinations) or None,
        "hosts": list(wanted.hosts) or None,
        "keys": list(wanted.keys) or None,
        "reasons": list(wanted.reasons) or None,
        "fingerprints": list(wanted.fingerprints) or None,
        "fingerprint": wanted.fingerprints[0] if len(wanted.fingerprints) == 1 else None,
        "errors": list(wanted.errors) or None,
        "workers": list(wanted.workers) or None,
        "label_groups": len(wanted.labels),
        "labels": [label for label, _ in labels] or None,
        "label_places": [place for _, place in labels] or None,
        "payload_paths": [_postgres_path(path) for path, _ in wanted.payload] or None,
        "payload_values": [value for _, value in wanted.payload] or None,
        "payload_terms": [{"path": _sqlite_path(path), "value": value} for path, value in wanted.payload] or None,
        "header_names": [name for name, _ in headers] or None,
        "header_values": [value for _, value in headers] or None,
        "header_terms": [{"name": name, "value": value} for name, value in headers] or None,
    }


def _postgres_path(path: str) -> str:
    """A path as an array of text; a path has no quotation mark and no backslash."""
    return "{" + ",".join(f'"{part}"' for part in path.split(".")) + "}"


def _sqlite_path(path: str) -> str:
    return "$" + "".join(f"[{part}]" if part.isdecimal() else f'."{part}"' for part in path.split("."))

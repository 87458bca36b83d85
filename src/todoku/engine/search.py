"""Search: text becomes criteria, criteria become a page of deliveries, each with the first cause why it waits.

What a word can mean is decided here: which index answers it, which role may ask for it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct
from todoku.core.redaction import is_sensitive
from todoku.core.sealed import MasterKeys
from todoku.core.search import (
    NAMES,
    PREFIXES,
    STATUSES,
    Criteria,
    Partial,
    Term,
    criteria,
    field_label,
    last_word,
    parse,
)
from todoku.core.settings import Settings
from todoku.engine.diagnostics.explanation import Because, explain
from todoku.engine.searched_fields import is_masked, keyed_label
from todoku.store.deliveries import Delivery
from todoku.store.store import Store

MOST_SUGGESTIONS: Final = 20
MOST_IDS: Final = 10_000
"""Deliveries that an act on a search takes: every batch of the act carries their numbers."""

_LOOKED_AT_FOR_IDS: Final = 200_000


class FoundDelivery(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery, and the first cause why it waits or failed; None: it succeeded, or has just ended."""

    delivery: Delivery
    why: Because | None


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """One page of a search, newest first. `next`: the cursor to go on (null: there is nothing more).

    `looked_at` rows were looked at; of these, `sealed` have an encrypted payload, which was passed over. `complete` is
    false if the bound on rows ended the page early: there may be more behind `next`. `notes` say how words were read.
    """

    query: str
    items: tuple[FoundDelivery, ...]
    next: str | None
    looked_at: int
    sealed: int
    complete: bool
    notes: tuple[str, ...]


class FoundIds(msgspec.Struct, frozen=True):
    """Numbers of deliveries, newest first. `complete` is False if there are, or may be, more."""

    ids: tuple[int, ...]
    complete: bool


class Suggestion(msgspec.Struct, frozen=True):
    """A text that may follow: the whole search with it, the word alone, and what it is."""

    query: str
    word: str
    about: str


Reader = Literal["viewer", "admin"]
"""Who searches: only an admin may ask for values of masked fields."""


class Searcher:
    """Searches the deliveries of one store."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._masked = frozenset(settings.mask_fields)
        self._masters: MasterKeys = settings.master_keys

    def search(self, text: str, *, reader: Reader, cursor: str | None = None, limit: int = 50) -> SearchResult:
        """One page of what a text asks for. InvalidAct: a word is wrong, or not for this reader."""
        query = parse(text)
        wanted, notes = self._resolved(criteria(query, datetime.fromtimestamp(self._store.ping(), UTC)), reader)
        found = self._store.search.find(wanted, cursor=cursor, limit=limit)
        return SearchResult(
            query=str(query),
            items=self.explained(found.items),
            next=found.next,
            looked_at=found.looked_at,
            sealed=found.sealed,
            complete=found.complete,
            notes=notes,
        )

    def find_ids(self, text: str, *, reader: Reader) -> FoundIds:
        """The numbers of what a text asks for, newest first, for an act on them. InvalidAct: as of `search`."""
        now = datetime.fromtimestamp(self._store.ping(), UTC)
        wanted, _ = self._resolved(criteria(parse(text), now), reader)
        ids: list[int] = []
        cursor, looked_at = None, 0
        while len(ids) < MOST_IDS and looked_at < _LOOKED_AT_FOR_IDS:
            found = self._store.search.find(wanted, cursor=cursor, limit=min(500, MOST_IDS - len(ids)))
            ids += [each.id for each in found.items]
            cursor, looked_at = found.next, looked_at + found.looked_at
            if cursor is None:
                return FoundIds(tuple(ids), complete=True)
        return FoundIds(tuple(ids), complete=False)

    def explained(self, deliveries: tuple[Delivery, ...]) -> tuple[FoundDelivery, ...]:
        """These deliveries, each with the first cause why it waits: a fixed number of queries for all of them."""
        situations = self._store.search.situations(deliveries)
        return tuple(
            FoundDelivery(delivery=each, why=explain(situations[each.id])[0] if each.id in situations else None)
            for each in deliveries
        )

    def suggest(self, text: str) -> tuple[Suggestion, ...]:
        """What may follow at the end of a text: names of words, then known values. Bounded and cheap."""
        partial = last_word(text[-1000:])
        if partial.name is None:
            words = [(f"{name}:", about) for name, about in NAMES.items() if name.startswith(partial.value)]
            words += [(f"{name}.", about) for name, about in PREFIXES.items() if name.startswith(partial.value)]
            labels = self._store.search.label_names("payload.", limit=MOST_SUGGESTIONS)
            words += [(name, "a field that is kept for searches") for name in labels if name.startswith(partial.value)]
        else:
            words = [(str(Term(partial.name, value)), "") for value in self._values(partial)]
        return tuple(Suggestion(partial.before + word, word, about) for word, about in words[:MOST_SUGGESTIONS])

    def _values(self, partial: Partial) -> list[str]:
        name, value = partial.name or "", partial.value
        match name:
            case "status":
                known: tuple[str, ...] = STATUSES
            case "topic" | "queue" | "destination" | "reason":
                known = self._store.search.recent_names()[name]
            case "host":
                places = self._store.search.recent_names()["destination"]
                known = tuple(sorted({place.partition("://")[2] for place in places if "://" in place}))
            case "worker":
                known = tuple(sorted({worker.name for worker in self._store.leases.workers()}))
            case "label":
                names = self._store.search.label_names(value, limit=MOST_SUGGESTIONS)
                known = tuple(each for each in names if not each.startswith("payload."))
            case "since" | "until":
                known = ("15m", "1h", "6h", "1d", "7d")
            case _:
                known = ()
        return [each for each in known if each.startswith(value)]

    # ---------------------------------------------------------------------------- what a word can mean

    def _resolved(self, wanted: Criteria, reader: Reader) -> tuple[Criteria, tuple[str, ...]]:
        self._refuse_masked(wanted, reader)
        wanted, notes = self._resolve_words(wanted)
        wanted, more = self._resolve_fields(wanted)
        return msgspec.structs.replace(wanted, workers=self._worker_ids(wanted.workers)), (*notes, *more)

    def _refuse_masked(self, wanted: Criteria, reader: Reader) -> None:
        if reader == "admin":
            return
        named = [path for path, _ in wanted.payload if is_masked(path, self._masked)]
        named += [name for name, _ in wanted.headers if is_sensitive(name, self._masked)]
        if named:
            raise InvalidAct(
                f"{named[0][:64]!r} is masked", hint="only those who may open what is masked may search for it: admin"
            )

    def _resolve_words(self, wanted: Criteria) -> tuple[Criteria, tuple[str, ...]]:
        """A bare word is a key or a label if there is one, else a part of an error."""
        known, notes = self._store.search.known_words(wanted.words), []
        keys, labels, errors = list(wanted.keys), list(wanted.labels), list(wanted.errors)
        for word in wanted.words:
            if word in known and known[word].is_key:
                keys.append(word)
                notes.append(f"{word[:64]!r} is a key")
            elif word in known and known[word].is_label:
                labels.append((word,))
                notes.append(f"{word[:64]!r} is a label")
            else:
                errors.append(word)
                notes.append(f"{word[:64]!r} is no id, key or label: errors were searched for it")
        resolved = msgspec.structs.replace(
            wanted, words=(), keys=tuple(keys), labels=tuple(labels), errors=tuple(errors)
        )
        return resolved, tuple(notes)

    def _resolve_fields(self, wanted: Criteria) -> tuple[Criteria, tuple[str, ...]]:
        """A payload field that is kept as a label is answered by labels: in plain text, or by keyed digests."""
        declared = self._store.search.declared_fields([path for path, _ in wanted.payload])
        labels = tuple(
            (field_label(path, value), *(keyed_label(master, path, value) for master in self._masters))
            for path, value in wanted.payload
            if path in declared
        )
        resolved = msgspec.structs.replace(
            wanted,
            labels=(*labels, *wanted.labels),
            payload=tuple(each for each in wanted.payload if each[0] not in declared),
        )
        notes = tuple(
            f"payload.{path}: messages published before the field was declared are not found"
            for path in sorted(declared)
        )
        return resolved, notes

    def _worker_ids(self, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            return ()
        workers, ids = self._store.leases.workers(), list[str]()
        for name in names:
            try:
                found = [str(UUID(name))]
            except ValueError:
                found = [str(worker.id) for worker in workers if worker.name == name]
            if not found:
                known = ", ".join(sorted({worker.name for worker in workers})[:5]) or "none is alive"
                raise InvalidAct(f"no worker {name[:64]!r} is alive", hint=f"its id, or a name: {known}")
            ids += found
        return tuple(ids)

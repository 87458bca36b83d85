"""The live tail: publishes, ends of attempts and acts of operators as they happen, each once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec

from todoku.core.errors import InvalidAct
from todoku.core.search import Search, criteria, parse
from todoku.core.topic_pattern import matches
from todoku.store.attempts import Event
from todoku.store.columns import EPOCH
from todoku.store.store import Store

OVERLAP: Final = 5.0
"""Seconds that each poll reads again: a transaction that commits late has the earlier time of its statement."""

_WORDS: Final = ("", "id", "topic", "destination", "status", "reason", "error", "key")
"""The words of a search that events can be filtered by."""

LONGEST: Final = 600.0
"""Seconds of the past that a page may ask for."""

MOST: Final = 500
"""Events of each kind that one poll reads."""


class Polled(msgspec.Struct, frozen=True):
    """Events that no poll before returned, oldest first. `cut`: there were more than one poll reads."""

    events: list[Event]
    cut: bool


class EventTail:
    """Follows the events of one store. Each poll returns those that the polls before have not."""

    def __init__(self, store: Store, *, since: float = 0.0) -> None:
        self._store = store
        self._begin = store.ping() - since
        self._last = self._begin
        self._seen: dict[tuple[str, str], float] = {}

    def poll(self) -> Polled:
        """The events since the last poll, oldest first: at most some hundreds of each kind."""
        now = self._store.ping()
        since = max(self._begin, self._last - OVERLAP)
        found = self._store.attempts.tail(since=since, limit=MOST)
        new = [event for event in found if self._seen.setdefault((event.what, event.mark), now) == now]
        kinds = Counter(event.what for event in new)
        self._seen = {mark: at for mark, at in self._seen.items() if at > now - 4 * OVERLAP - (now - self._last)}
        self._last = now
        return Polled(new, cut=max(kinds.values(), default=0) >= MOST)


def poll_since(store: Store, moment: float) -> Polled:
    """The events since a moment in unix seconds of the database, ten minutes ago at most, some of them from before."""
    return EventTail(store, since=min(max(0.0, store.ping() - moment + OVERLAP), LONGEST)).poll()


def event_filter(text: str) -> Callable[[Event], bool]:
    """Whether an event meets a search. InvalidAct: a word is wrong, or events do not have it."""
    query = parse(text)
    for term in query.terms:
        if term.name not in _WORDS:
            known = ", ".join(name for name in _WORDS if name)
            raise InvalidAct(f"events have no {term.name!r}", hint=f"known here: {known}; or a part of the text")
    return _matcher(query)


def _matcher(query: Search) -> Callable[[Event], bool]:
    wanted = criteria(query, EPOCH)
    words = [word.lower() for word in (*wanted.words, *wanted.errors)]
    checks: list[Callable[[Event], bool]] = []
    if wanted.ids or wanted.message_ids:
        checks.append(lambda event: event.delivery_id in wanted.ids or event.message_id in wanted.message_ids)
    if wanted.topics:
        checks.append(
            lambda event: event.topic is not None and any(matches(each, event.topic) for each in wanted.topics)
        )
    if wanted.destinations:
        checks.append(lambda event: bool({*(event.destination or "").split(", ")} & {*wanted.destinations}))
    if wanted.statuses:
        checks.append(lambda event: {"published": "pending"}.get(event.what, event.what) in wanted.statuses)
    if wanted.reasons:
        checks.append(lambda event: (event.told or "").partition(":")[0] in wanted.reasons)
    if wanted.keys:
        checks.append(lambda event: event.what == "published" and event.told in wanted.keys)
    if words:
        checks.append(
            lambda event: all(
                word in f"{event.what} {event.topic} {event.destination} {event.told}".lower() for word in words
            )
        )
    return lambda event: all(check(event) for check in checks)

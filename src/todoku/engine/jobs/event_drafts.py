"""Many events that are to be published together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from todoku.core.errors import InvalidMessage
from todoku.core.message import Alike, Draft
from todoku.core.topic_pattern import Route
from todoku.engine.jobs.event import Event, EventClasses
from todoku.engine.outbox import Outbox, new_ids
from todoku.engine.publish import Encoded, MessageOptions, PreparedDraft

_Split = tuple[str, Encoded | bytes, str | None]


class EventDrafts:
    """Events, or (topic, payload). What events of one topic have in common is checked once.

    Payloads are encoded here, before there is a transaction: that may run code of the application, and the application
    may change them afterwards.
    """

    def __init__(
        self, events: Iterable[tuple[str, object] | Event], kinds: EventClasses, outbox: Outbox, routes: Sequence[Route]
    ) -> None:
        self._outbox = outbox
        self._routes = routes
        self._prepared: dict[str, PreparedDraft] = {}
        self._events = [self._split(kinds, event) for event in events]

    def __len__(self) -> int:
        return len(self._events)

    def build(self, start: int, stop: int) -> list[Draft]:
        """As Unbuilt.build."""
        events = self._events[start:stop]
        return [self._draft(new, *event) for event, new in zip(events, new_ids(len(events)), strict=True)]

    def alike(self, start: int, stop: int) -> Alike | None:
        """As Unbuilt.alike."""
        events, payloads = self._events[start:stop], []
        first = events[0][0]
        for topic, payload, key in events:
            if topic != first or key is not None or isinstance(payload, bytes):
                return None
            payloads.append(payload.text)
        return self._outbox.alike(self._prepared_for(first, None), payloads)

    def _split(self, kinds: EventClasses, event: tuple[str, object] | Event) -> _Split:
        if isinstance(event, str):
            raise InvalidMessage(f"{event!r} is a topic without its payload", hint="pass (topic, payload), or an event")
        topic, payload, key = kinds.split(*(event if isinstance(event, tuple) else (event, None)))
        return topic, self._outbox.encoded(payload), key

    def _draft(self, id: UUID, topic: str, payload: Encoded | bytes, key: str | None) -> Draft:
        return self._outbox.fill(self._prepared_for(topic, key), id, payload)

    def _prepared_for(self, topic: str, key: str | None) -> PreparedDraft:
        prepared = self._prepared.get(topic) if key is None else None
        if prepared is None:
            prepared = self._outbox.prepare(topic, MessageOptions(key=key), self._routes)
            if key is None:
                self._prepared[topic] = prepared
        return prepared

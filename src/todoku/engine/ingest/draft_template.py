"""Drafts of events, cast in a mould: what all events of a topic have in common is checked and routed once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from todoku.core.message import Draft, Idempotency
from todoku.core.topic_pattern import Route
from todoku.engine.observability.tracing import inject
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import Encoded, Options

_MOST: Final = 1024
"""Topics that are remembered: sources have some dozens."""


class Moulds:
    """Makes drafts of an App's events."""

    def __init__(self, outbox: Outbox, routes: Callable[[], Sequence[Route]]) -> None:
        self._outbox = outbox
        self._routes = routes
        self._moulds: dict[str, Draft] = {}
        self._routed = 0
        """So many routes there were when these were made. Routes are only added."""

    def draft(
        self, topic: str, payload: Encoded | bytes, key: str | None, headers: Mapping[str, str], entry: Idempotency
    ) -> Draft:
        """As `Outbox.draft`. `headers` are texts that were checked already, `entry` is what it is known by again."""
        routes = self._routes()
        if len(routes) != self._routed or len(self._moulds) >= _MOST:
            self._moulds.clear()
            self._routed = len(routes)
        mould = self._moulds.get(topic)
        if mould is None or key is not None or isinstance(payload, bytes):
            made = self._outbox.draft(topic, payload, Options(key=key, headers=headers), routes)
            if made.key is None and made.payload is not None:
                self._moulds[topic] = made
            return msgspec.structs.replace(made, idempotency=entry)
        made = Draft(
            id=new_id(),
            topic=topic,
            type=mould.type,
            legs=mould.legs,
            payload=payload.text,
            headers=msgspec.json.encode(inject(headers)).decode(),
            idempotency=entry,
        )
        finished = self._outbox.finished(made)
        # Sealing makes another digest; an event's is its own.
        return made if finished is made else msgspec.structs.replace(finished, idempotency=entry)

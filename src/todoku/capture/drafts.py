"""Drafts of captured changes. What cannot be published as it is becomes a dead letter: no change is skipped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from todoku.core.capture import CapturedChange, Encoder, format_lsn
from todoku.core.errors import InvalidMessage
from todoku.core.message import Draft, Leg
from todoku.core.topic_pattern import Route, resolve
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import check_json, leg_of

_MAX_TOPICS: Final = 1024
_NO_ROUTE: Final = (Leg(destination="none", dead="NO_ROUTE"),)


class _Topic(msgspec.Struct, frozen=True):
    """The routes that take a topic. `legs`: the deliveries of every message, if they do not depend on its key."""

    routes: tuple[Route, ...]
    legs: tuple[Leg, ...] | None


class CapturedDrafts:
    """Makes drafts, with the routes of each topic resolved once."""

    def __init__(self, outbox: Outbox, routes: Callable[[], Sequence[Route]]) -> None:
        self._outbox = outbox
        self._routes = routes
        self._routed = 0
        self._topics: dict[str, _Topic] = {}
        self._largest = outbox.settings.max_payload_bytes
        self._surely_fits = self._largest // 4

    def draft(self, change: CapturedChange, headers: str, encoder: Encoder) -> Draft:
        """Returns the draft of a change. It never raises for what the change contains."""
        topic, payload = change.topic, change.payload
        dead = None
        if len(payload) > self._surely_fits and len(payload.encode()) > self._largest:
            dead = "TOO_LARGE"
        else:
            try:
                check_json(payload)
            except InvalidMessage:
                dead = "BAD_PAYLOAD"
        if dead is not None:
            payload = encoder.abridge(change).payload
        made = Draft(
            id=new_id(), topic=topic, type=topic, key=change.key, payload=payload, headers=headers,
            legs=self._legs(topic, change.key, dead),
        )  # fmt: skip
        return self._finished(made)

    def _finished(self, made: Draft) -> Draft:
        outbox = self._outbox
        try:
            return outbox.finished(made)
        except InvalidMessage:  # it breaks the schema of its topic
            legs = self._legs(made.topic, made.key, "BAD_PAYLOAD")
            sealer = outbox.sealer
            made = msgspec.structs.replace(made, legs=legs)
            return sealer.seal(made) if sealer.is_used and sealer.is_encrypted(made.topic) else made

    def _legs(self, topic: str, key: str | None, dead: str | None) -> tuple[Leg, ...]:
        known = self._topic(topic)
        if not known.routes:
            return _NO_ROUTE
        if dead is not None:
            # Without a lane: a message that is dead from the start does not hold up the later ones of its key.
            return tuple(
                Leg(destination=route.destination, queue=route.queue, max_attempts=route.max_attempts, dead=dead)
                for route in known.routes
            )
        return known.legs or tuple(_leg(route, key) for route in known.routes)

    def _topic(self, topic: str) -> _Topic:
        routes = self._routes()
        if len(routes) != self._routed or len(self._topics) >= _MAX_TOPICS:  # routes are only added
            self._topics.clear()
            self._routed = len(routes)
        if (known := self._topics.get(topic)) is None:
            taken = tuple(resolve(routes, topic))
            plain = not any(route.ordered or route.per_key or route.key for route in taken)
            known = _Topic(taken, tuple(_leg(route, None) for route in taken) if plain else None)
            self._topics[topic] = known
        return known


def _leg(route: Route, key: str | None) -> Leg:
    # A projection writes versions by key: a TRUNCATE, which has none, is for an operator to apply.
    return leg_of(route, key, dead="NO_KEY" if route.key is not None and key is None else None)


def headers_text(
    capture: str, lsn: int, generation: int, *, xid: int | None = None, committed_at: float | None = None
) -> str:
    """Returns the headers of all changes of one source transaction, as JSON."""
    headers = {"capture": capture, "capture-lsn": format_lsn(lsn)}
    if xid is not None and committed_at is not None:
        headers["capture-xid"] = str(xid)
        headers["capture-committed-at"] = datetime.fromtimestamp(committed_at, UTC).isoformat()
    headers["capture-generation"] = str(generation)
    return msgspec.json.encode(headers).decode()

"""1''. Receive: a request of a source, verified, becomes a message; what returns is committed.

Nothing is believed before the signature is right, and nothing is told before that either: a source that there is not,
a wrong signature and a broken body are one and the same refusal.
"""

from __future__ import annotations

import hmac
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from todoku.core.errors import InvalidMessage, TodokuError
from todoku.core.identity import ingest_scope, key_hash
from todoku.core.ingest import Arrived, Challenge, Identity, text_at
from todoku.core.message import MAX_KEY_LENGTH, Draft, Idempotency
from todoku.core.topic_pattern import Route
from todoku.engine.group_commit import Answer, Together
from todoku.engine.ingest.ingest_request import UNKNOWN, Visit
from todoku.engine.ingest.source import Source, Sources
from todoku.engine.ingest.source_keys import SourceKeys
from todoku.engine.jobs.decoders import describe
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import Log
from todoku.engine.observability.tracing import inject, travelling
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import Encoded, MessageOptions, check_json

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
            made = self._outbox.draft(topic, payload, MessageOptions(key=key, headers=headers), routes)
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


CORRELATION: Final = "x-correlation-id"
EVENT_ID: Final = "x-event-id"
SOURCE: Final = "x-ingest-source"

_REMIND: Final = 60.0
"""Seconds between two warnings that a source still signs with an old secret."""

_NOBODY: Final = os.urandom(32)
_LONGEST: Final = 8192
_PARTS, _TRACE_ID = 4, 32


class Unverified(TodokuError):
    """No such source, not signed by it, or no JSON. Which of these, nobody is told."""


class Ingest:
    """Takes in what the sources of one App send."""

    def __init__(
        self, outbox: Outbox, sources: Sources, routes: Callable[[], Sequence[Route]], together: Together
    ) -> None:
        self.outbox = outbox
        self._sources = sources
        self._moulds = Moulds(outbox, routes)
        self._together = together
        self._keys = SourceKeys(outbox.secrets)
        self._keys.refuse_empty(sources.values())
        self._reminded: dict[str, float] = {}

    def visit(self, name: str, request_id: str) -> Visit:
        """What is known of a request to `name` at first."""
        return Visit(name if name in self._sources else UNKNOWN, request_id)

    async def receive(self, name: str, arrived: Arrived, visit: Visit) -> Challenge | None:
        """Store the event that `name` sent, or find it stored already; `visit` then knows its message.

        A Challenge is to be answered instead. Unverified, InvalidMessage, IdempotencyConflict, NoSecret: nothing was
        stored; DatabaseUnavailable: that is not known.
        """
        source = self._sources.get(name)
        keys = () if source is None else await self._keys.of(source)
        drafted = self._drafted(source, keys, arrived, visit)
        if isinstance(drafted, Challenge):
            return drafted
        (message,) = await self._together.put([drafted])
        visit.stored(message)
        return None

    def hand_in(self, name: str, arrived: Arrived, visit: Visit, told: Callable[[Exception | None], None]) -> bool:
        """As `receive`, for who does not wait: `told` is called later in this event loop, with None after the commit.

        False: there is more to it than storing an event, or something is wrong with it. Let it be received.
        """
        source = self._sources.get(name)
        keys = None if source is None else self._keys.known(source)
        if source is None or keys is None or self.outbox.instead is not None:
            return False

        def stored(answer: Answer) -> None:
            if isinstance(answer, Exception):
                told(answer)
            else:
                visit.stored(answer[0])
                told(None)

        try:
            drafted = self._drafted(source, keys, arrived, visit)
            if isinstance(drafted, Challenge):
                return False
            self._together.hand_in([drafted], stored)
        except Exception:  # noqa: BLE001 - whoever receives it meets it again, and tells of it
            return False
        return True

    def _drafted(
        self, source: Source | None, keys: tuple[bytes, ...], arrived: Arrived, visit: Visit
    ) -> Draft | Challenge:
        if source is None:
            _compare_with_nobody(arrived.body)
            raise Unverified(_REFUSED)
        place = source.verifier.signed_by(arrived, keys, time.time())
        if place is None:
            raise Unverified(_REFUSED)
        if place > 0:
            self._warn(source, place)
        event = _parsed(arrived.body)
        identity = source.verifier.identity(arrived, event)
        if isinstance(identity, Challenge):
            return identity
        visit.event_id = identity.id
        return self._draft(source, arrived, event, identity, visit)

    def _draft(self, source: Source, arrived: Arrived, event: object, identity: Identity, visit: Visit) -> Draft:
        if source.decode is not None:
            try:
                source.decode(arrived.body)
            except msgspec.DecodeError as error:  # of which a ValidationError is one
                raise InvalidMessage(
                    f"the event is not as {source.name} declares it: {describe(error)}",
                    hint="model= of box.ingest",
                ) from None
        # Its digest is its own: an event that its source writes down anew is a repetition, never a conflict.
        hashed = key_hash(identity.id)
        entry = Idempotency(
            ingest_scope(source.name), identity.id, hashed, hashed, reopen=source.reopen, lasts=source.dedupe_for
        )
        visit.topic = topic = source.topic.topic(identity, event)
        key = None if source.key is None else text_at(source.key, event)
        headers = self._headers(source, arrived, identity, visit)
        return self._moulds.draft(topic, _payload(arrived.body), key and key[:MAX_KEY_LENGTH], headers, entry)

    def _headers(self, source: Source, arrived: Arrived, identity: Identity, visit: Visit) -> dict[str, str]:
        """What the message takes along: the trace, what only headers say, and which request this was."""
        headers = travelling(arrived.headers)
        visit.trace_id = _trace_id(headers.get("traceparent", ""))
        for name in source.verifier.kept:
            if value := _storable(arrived.headers.get(name)):
                headers[name] = value
        headers[CORRELATION] = visit.request_id
        headers[EVENT_ID] = identity.id
        headers[SOURCE] = source.name
        return headers

    def _warn(self, source: Source, place: int) -> None:
        """Somebody still signs with what is to be given up: seen before it is."""
        self.outbox.telemetry.metrics.add(counting.OLD_SECRET, 1, source.name)
        now = time.monotonic()
        if now - self._reminded.get(source.name, -_REMIND) >= _REMIND:
            self._reminded[source.name] = now
            Log(source=source.name).warning("OLD_SECRET", place=place, of=len(source.verifier.secrets))


_REFUSED: Final = "this cannot be accepted"


def _compare_with_nobody(body: bytes) -> None:
    """As much work as a source would make of it."""
    hmac.compare_digest(hmac.digest(_NOBODY, body, "sha256"), _NOBODY)


def _parsed(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unverified(_REFUSED) from None


def _payload(body: bytes) -> Encoded | bytes:
    """JSON as it was sent; or as bytes, if there is something in it that a database will not take as JSON.

    It was signed and will be acknowledged, so it must be kept: its handler may read bytes, or it is a dead letter.
    """
    try:
        text = body.decode()
        check_json(text)
    except (UnicodeDecodeError, InvalidMessage):
        return body
    return Encoded(text)


def _trace_id(traceparent: str) -> str | None:
    parts = traceparent.split("-")
    return parts[1] if len(parts) >= _PARTS and len(parts[1]) == _TRACE_ID else None


def _storable(value: str | None) -> str | None:
    return value if value is not None and value.isprintable() and len(value) <= _LONGEST else None

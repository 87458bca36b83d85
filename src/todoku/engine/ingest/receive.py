"""1''. Receive: verifies the request of a source, and stores it as a message before it is acknowledged.

Nothing in a request is trusted before its signature is verified, and nothing is revealed: an unknown source, a wrong
signature and a body that is not JSON get the same refusal.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from todoku.core.errors import InvalidMessage, TodokuError
from todoku.core.identity import ingest_scope, key_hash
from todoku.core.ingest import Challenge, Identity, ReceivedRequest, text_at
from todoku.core.message import MAX_KEY_LENGTH, Draft, Idempotency, Message
from todoku.core.topic_pattern import Route
from todoku.engine.group_commit import CommitResult, GroupCommit
from todoku.engine.ingest.source import Source, SourceKeys, Sources
from todoku.engine.ingest.source_counts import SourceCounts
from todoku.engine.jobs.decoders import describe
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.log import LEVELS, Log, log_lines, lowest_level
from todoku.engine.observability.log_line import IngestedLine, Level
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import TRACE_HEADERS, inject
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import Encoded, MessageOptions, check_json

# ------------------------------------------------------------
# Requests to ingest, and their log lines and metrics, which never contain a body.
#
# They are reported in batches: requests that shared a commit are answered in one turn of the event loop.

UNKNOWN: Final = "unknown"
"""The metric label for sources that do not exist: names invented by callers must not become labels."""

_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


class Visit:
    """One request to ingest, with what is known of it so far."""

    __slots__ = (
        "began", "duplicate", "error", "event_id", "message_id", "request_id", "seconds", "source", "status", "topic",
        "trace_id",
    )  # fmt: skip

    def __init__(self, source: str, request_id: str) -> None:
        self.began = time.perf_counter()
        self.request_id = request_id
        self.source = source
        self.trace_id: str | None = None
        self.event_id: str | None = None
        self.topic: str | None = None
        self.message_id: str | None = None
        self.duplicate = False
        self.status = 0
        self.seconds = 0.0
        self.error: str | None = None

    def stored(self, message: Message) -> None:
        """Records the message of the event, which may have been stored by an earlier request."""
        self.message_id, self.duplicate = str(message.id), message.duplicate


class Visits:
    """Reports ended requests, from a later turn of the event loop. Used within event loops only."""

    def __init__(self, telemetry: Telemetry, counts: SourceCounts) -> None:
        self._telemetry = telemetry
        self._counts = counts
        self._ended: list[Visit] = []

    def end(self, visit: Visit, status: int, error: Exception | None = None) -> None:
        """Records that the request was answered with this status, and because of which error, if any."""
        visit.status = status
        visit.seconds = time.perf_counter() - visit.began
        if error is not None:
            visit.error = type(error).__name__
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._report)
        self._ended.append(visit)

    def _report(self) -> None:
        ended, self._ended = self._ended, []
        metrics = self._telemetry.metrics
        for label, number in Counter(f"{visit.source},{visit.status}" for visit in ended).items():
            metrics.add(counting.INGESTED, number, label)
        metrics.observe(counting.INGEST_SECONDS, [visit.seconds for visit in ended])
        at = datetime.now(UTC)
        for visit in ended:
            self._counts.add(visit.source, visit.status, at, duplicate=visit.duplicate, message_id=visit.message_id)
        if (least := lowest_level()) is not None:
            log_lines([_line(visit, at) for visit in ended if LEVELS[_level(visit.status)] >= least])


def _line(visit: Visit, at: datetime) -> IngestedLine:
    return IngestedLine(
        "ingested",
        at,
        _level(visit.status),
        visit.request_id,
        visit.trace_id,
        visit.message_id,
        visit.topic,
        visit.status,
        visit.error,
        round(visit.seconds * 1000, 3),
        visit.event_id,
        visit.source,
        visit.duplicate,
    )


def _level(status: int) -> Level:
    if status < _CLIENT_ERROR:
        return "info"
    return "warning" if status < _SERVER_ERROR else "error"


_MAX_TOPICS: Final = 1024
"""Topics whose template draft is cached; sources have some dozens."""


class DraftTemplates:
    """Creates drafts of events from a cached template per topic."""

    def __init__(self, outbox: Outbox, routes: Callable[[], Sequence[Route]]) -> None:
        self._outbox = outbox
        self._routes = routes
        self._templates: dict[str, Draft] = {}
        self._routed = 0
        """The number of routes when the templates were created. Routes are only added, so a new number means new
        routes."""

    def draft(
        self, topic: str, payload: Encoded | bytes, key: str | None, headers: Mapping[str, str], entry: Idempotency
    ) -> Draft:
        """As `Outbox.draft`. `headers` must be checked already; `entry` identifies repetitions of the event."""
        routes = self._routes()
        if len(routes) != self._routed or len(self._templates) >= _MAX_TOPICS:
            self._templates.clear()
            self._routed = len(routes)
        template = self._templates.get(topic)
        if template is None or key is not None or isinstance(payload, bytes):
            made = self._outbox.draft(topic, payload, MessageOptions(key=key, headers=headers), routes)
            if made.key is None and made.payload is not None:
                self._templates[topic] = made
            return msgspec.structs.replace(made, idempotency=entry)
        made = Draft(
            id=new_id(),
            topic=topic,
            type=template.type,
            legs=template.legs,
            payload=payload.text,
            headers=msgspec.json.encode(inject(headers)).decode(),
            idempotency=entry,
        )
        finished = self._outbox.finished(made)
        # Sealing replaces the digest; that of an event must stay.
        return made if finished is made else msgspec.structs.replace(finished, idempotency=entry)


CORRELATION: Final = "x-correlation-id"
EVENT_ID: Final = "x-event-id"
SOURCE: Final = "x-ingest-source"

_WARN_INTERVAL: Final = 60.0
"""Seconds between two warnings that a source still signs with an old secret."""

_DUMMY_KEY: Final = os.urandom(32)
_MAX_HEADER: Final = 8192
_PARTS, _TRACE_ID = 4, 32


class Unverified(TodokuError):
    """An unknown source, a wrong signature, or a body that is not JSON. The sender does not learn which."""


class Ingest:
    """Stores the events that the sources of one App send."""

    def __init__(
        self, outbox: Outbox, sources: Sources, routes: Callable[[], Sequence[Route]], together: GroupCommit
    ) -> None:
        self.outbox = outbox
        self.counts = sources.counts
        self._sources = sources
        self._templates = DraftTemplates(outbox, routes)
        self._group_commit = together
        self._keys = SourceKeys(outbox.secrets)
        self._keys.refuse_empty(sources.values())
        self._warned_at: dict[str, float] = {}

    def visit(self, name: str, request_id: str) -> Visit:
        """Begins to record a request to the source `name`."""
        return Visit(name if name in self._sources else UNKNOWN, request_id)

    async def receive(self, name: str, arrived: ReceivedRequest, visit: Visit) -> Challenge | None:
        """Stores the event that `name` sent, or finds it stored already, and records its message in `visit`.

        Returns a Challenge if that is to be answered instead. After Unverified, InvalidMessage, IdempotencyConflict and
        NoSecret nothing was stored; after DatabaseUnavailable that is unknown.
        """
        source = self._sources.get(name)
        keys = () if source is None else await self._keys.of(source)
        draft = self._verify_and_draft(source, keys, arrived, visit)
        if isinstance(draft, Challenge):
            return draft
        (message,) = await self._group_commit.put([draft])
        visit.stored(message)
        return None

    def submit(
        self, name: str, arrived: ReceivedRequest, visit: Visit, on_result: Callable[[Exception | None], None]
    ) -> bool:
        """As `receive`, without waiting: `on_result` is called later in this event loop, with None after the commit.

        False: this is not a plain valid event; call `receive`, which handles every case.
        """
        source = self._sources.get(name)
        keys = None if source is None else self._keys.known(source)
        if source is None or keys is None or self.outbox.instead is not None:
            return False

        def stored(answer: CommitResult) -> None:
            if isinstance(answer, Exception):
                on_result(answer)
            else:
                visit.stored(answer[0])
                on_result(None)

        try:
            draft = self._verify_and_draft(source, keys, arrived, visit)
            if isinstance(draft, Challenge):
                return False
            self._group_commit.submit([draft], stored)
        except Exception:  # noqa: BLE001 - `receive` raises it again
            return False
        return True

    def _verify_and_draft(
        self, source: Source | None, keys: tuple[bytes, ...], arrived: ReceivedRequest, visit: Visit
    ) -> Draft | Challenge:
        if source is None:
            _spend_verification_time(arrived.body)
            raise Unverified(_REFUSED)
        place = source.verifier.signed_by(arrived, keys, time.time())
        if place is None:
            raise Unverified(_REFUSED)
        if place > 0:
            self._warn_old_secret(source, place)
        event = _parse(arrived.body)
        identity = source.verifier.identity(arrived, event)
        if isinstance(identity, Challenge):
            return identity
        visit.event_id = identity.id
        return self._draft(source, arrived, event, identity, visit)

    def _draft(
        self, source: Source, arrived: ReceivedRequest, event: object, identity: Identity, visit: Visit
    ) -> Draft:
        if source.decode is not None:
            try:
                source.decode(arrived.body)
            except msgspec.DecodeError as error:  # of which a ValidationError is one
                raise InvalidMessage(
                    f"the event is not as {source.name} declares it: {describe(error)}",
                    hint="model= of box.ingest",
                ) from None
        # The digest is that of the event id: a repeated event whose body is serialised differently is no conflict.
        hashed = key_hash(identity.id)
        entry = Idempotency(
            ingest_scope(source.name), identity.id, hashed, hashed, reopen=source.reopen, lasts=source.dedupe_for
        )
        visit.topic = topic = source.topic.topic(identity, event)
        key = None if source.key is None else text_at(source.key, event)
        headers = self._headers(source, arrived, identity, visit)
        return self._templates.draft(
            topic, _storable_payload(arrived.body), key and key[:MAX_KEY_LENGTH], headers, entry
        )

    def _headers(self, source: Source, arrived: ReceivedRequest, identity: Identity, visit: Visit) -> dict[str, str]:
        """Returns the headers of the message: the trace, the verifier's headers, and the id of this request."""
        headers: dict[str, str] = {}
        for name in (*TRACE_HEADERS, *source.verifier.kept):
            if value := _storable_header(arrived.headers.get(name)):
                headers[name] = value
        visit.trace_id = _trace_id(headers.get("traceparent", ""))
        headers[CORRELATION] = visit.request_id
        headers[EVENT_ID] = identity.id
        headers[SOURCE] = source.name
        return headers

    def _warn_old_secret(self, source: Source, place: int) -> None:
        """Counts and logs that a source still signs with an old secret, so that it is seen before its removal."""
        self.outbox.telemetry.metrics.add(counting.OLD_SECRET, 1, source.name)
        now = time.monotonic()
        if now - self._warned_at.get(source.name, -_WARN_INTERVAL) >= _WARN_INTERVAL:
            self._warned_at[source.name] = now
            Log(source=source.name).warning("OLD_SECRET", place=place, of=len(source.verifier.secrets))


_REFUSED: Final = "the request cannot be accepted"


def _spend_verification_time(body: bytes) -> None:
    """Does the same work as a known source would, so that the time of the answer does not reveal unknown sources."""
    hmac.compare_digest(hmac.digest(_DUMMY_KEY, body, "sha256"), _DUMMY_KEY)


def _parse(body: bytes) -> object:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Unverified(_REFUSED) from None


def _storable_payload(body: bytes) -> Encoded | bytes:
    """Returns the JSON text as it was sent, or bytes if the databases would not accept it as JSON.

    A signed event is acknowledged, so it must be stored: its handler may read bytes, or it becomes a dead letter.
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


def _storable_header(value: str | None) -> str | None:
    return value if value and value.isprintable() and len(value) <= _MAX_HEADER else None

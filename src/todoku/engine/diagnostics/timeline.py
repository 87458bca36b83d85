"""The timeline of a message: what it waited for, when it ran, what came of it, and what followed.

Everything is built from rows that exist anyway. A wait is what lies between two known moments, so the delay of a
delivery that has run already is part of its wait in the queue.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.ending import BATCH, OWN
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import CALLBACK_TOPIC, request_of
from todoku.core.identity import effect_scope
from todoku.engine.observability.message_headers import correlation_id, decode_headers
from todoku.engine.repetition import AGAIN_OF, EDITED_OF
from todoku.store.attempts import Attempt
from todoku.store.audit import AuditRow
from todoku.store.batches import BatchStatus
from todoku.store.deliveries import Delivery
from todoku.store.ledger import Entry
from todoku.store.messages import Follower, Story
from todoku.store.store import Store

SpanKind = Literal[
    "scheduled", "queue", "backoff", "lane", "dead", "attempt", "running", "succeeded", "published", "act", "effect"
]
"""Waits (scheduled, queue, backoff, lane, dead), runs (attempt, running, succeeded), and moments."""

FollowerKind = Literal["hook", "callback", "child", "again", "edited"]

_WAITS: Final = frozenset({"scheduled", "queue", "backoff", "lane"})
_RUNS: Final = frozenset({"attempt", "running", "succeeded"})


class TimelineSpan(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of time, or a moment if it ends as it starts. `end` null: it goes on.

    `attempt` is the attempt's number, `epoch` identifies it among the attempts of its delivery. `text`: the reason and
    error of an attempt, the act of an operator, the state of a ledger entry.
    """

    kind: SpanKind
    delivery_id: int | None
    start: datetime
    end: datetime | None
    attempt: int | None = None
    epoch: int | None = None
    text: str | None = None


class TimelineFollower(msgspec.Struct, frozen=True, kw_only=True):
    """A message that this one brought about, or that runs it again."""

    kind: FollowerKind
    message_id: UUID
    at: datetime
    topic: str
    key: str | None = None


class DeliveryTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds that a delivery waited and ran. `run` is null if the time of its success was not kept."""

    delivery_id: int
    waited: float
    run: float | None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """A message from its publish on, the oldest first.

    `parent`: the message that this one runs again, or whose end it reports. `complete` is false if more messages were
    published while it ran than were looked at, so that followers may be missing.
    """

    now: datetime
    spans: tuple[TimelineSpan, ...]
    times: tuple[DeliveryTimes, ...]
    followers: tuple[TimelineFollower, ...]
    complete: bool
    parent: UUID | None = None
    batch: BatchStatus | None = None


# ------------------------------------------------------------
# Reading: the story exists already; what followed is looked for where it must be.

_SLACK: Final = timedelta(milliseconds=250)
"""Ids have the clock of their publisher, attempts that of the database."""

_MOST_WINDOWS: Final = 8
_LONGEST_WINDOW: Final = timedelta(hours=1)


def read_timeline(store: Store, story: Story, now: datetime) -> Timeline:
    """Reads what followed a message and the ledger's entries of its effects. Blocks; its cost is bounded."""
    message, decoded = story.message, decode_headers(story.message.headers)
    needles = [str(message.id), *(msgspec.json.encode(text).decode()[1:-1] for text in _threads(decoded))]
    found = store.messages.find_followers(message.id, _windows(story, now), needles=needles)
    marked = store.messages.find_labelled([f"{mark}{message.id}" for mark in (AGAIN_OF, EDITED_OF)])
    batch = decoded.get(BATCH)
    return build_timeline(
        story,
        now,
        followers=_followers(story, (*found.items, *marked), decoded),
        complete=found.complete,
        entries=list(_effects(store, story)),
        batch=None if batch is None else _read_batch(store, batch),
    )


def _effects(store: Store, story: Story) -> Iterator[tuple[int, Entry]]:
    """The ledger's entry of each delivery, if the message has an idempotency key."""
    if (hashed := story.message.key_hash) is not None:
        for each in story.deliveries[:_MOST_EFFECTS]:
            if (entry := store.ledger.entry(effect_scope(each.destination), hashed)) is not None:
                yield each.id, entry


_MOST_EFFECTS: Final = 100


def trace_id(headers: str | None) -> str | None:
    """The id of the trace that a message belongs to, if its headers carry one."""
    parts = decode_headers(headers).get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 and re.fullmatch(r"[0-9a-f]{32}", parts[1]) else None


def _threads(decoded: dict[str, str]) -> Iterator[str]:
    """The correlation id and the trace id: what a handler publishes inherits them."""
    if (correlation := correlation_id(decoded)) is not None:
        yield correlation
    if (trace := trace_id(msgspec.json.encode(decoded).decode())) is not None:
        yield trace


def _read_batch(store: Store, text: str) -> BatchStatus | None:
    try:
        return store.batch(UUID(text))
    except ValueError:
        return None  # not an id that todoku wrote


def _windows(story: Story, now: datetime) -> list[tuple[datetime, datetime]]:
    """When attempts ran and ended, the latest ones, merged where they overlap."""
    found = [(_start_of(each), each.ended_at) for each in story.attempts]
    for row in story.deliveries:
        match row.status:
            case "succeeded":
                found.append((row.updated_at - _run_of(row), row.updated_at))
            case "aborted":
                found.append((row.updated_at, row.updated_at))
            case "sending":
                found.append((row.claimed_at or row.updated_at, now))
            case _:
                pass
    merged: list[tuple[datetime, datetime]] = []
    for start, end in sorted((max(start, end - _LONGEST_WINDOW) - _SLACK, end + _SLACK) for start, end in found):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged[-_MOST_WINDOWS:]


def _followers(story: Story, found: Iterable[Follower], decoded: dict[str, str]) -> tuple[TimelineFollower, ...]:
    own = str(story.message.id)
    threads = tuple(_threads(decoded))
    kinds = {each.id: (_follower_kind(each, own, threads), each) for each in found}
    items = {
        id: TimelineFollower(kind=kind, message_id=id, at=each.created_at, topic=each.topic, key=each.key)
        for id, (kind, each) in kinds.items()
        if kind is not None
    }
    return tuple(sorted(items.values(), key=lambda item: item.at))


def _follower_kind(each: Follower, own: str, threads: tuple[str, ...]) -> FollowerKind | None:
    """How a message follows; None: its texts only look as if it did."""
    if each.topic.startswith(OWN):
        return "hook"
    labels: list[str] = [] if each.labels is None else msgspec.json.decode(each.labels, type=list[str])
    if f"{AGAIN_OF}{own}" in labels:
        return "again"
    if f"{EDITED_OF}{own}" in labels:
        return "edited"
    if each.topic == CALLBACK_TOPIC and _source(each.headers) == own:
        return "callback"
    return "child" if set(threads) & set(_threads(decode_headers(each.headers))) else None


def _source(headers: str | None) -> str | None:
    try:
        request = request_of(headers)
    except InvalidMessage:
        return None
    return None if request is None else request.source


# ------------------------------------------------------------
# Building: pure.


def build_timeline(
    story: Story,
    now: datetime,
    *,
    followers: tuple[TimelineFollower, ...] = (),
    complete: bool = True,
    entries: Sequence[tuple[int, Entry]] = (),
    batch: BatchStatus | None = None,
) -> Timeline:
    """Builds the timeline of a message from what is known about it."""
    created = story.message.created_at
    spans = [TimelineSpan(kind="published", delivery_id=None, start=created, end=created)]
    times = []
    for row in story.deliveries:
        own = list(_delivery_spans(story, row, now))
        spans += own
        times.append(_times(row, own, now))
    spans += map(_act_span, story.audit)
    for id, entry in entries:
        at, text = entry.updated_at, entry.state
        spans.append(TimelineSpan(kind="effect", delivery_id=id, start=at, end=at, text=text))
    ordered = sorted(spans, key=lambda span: (span.start, span.end or now))
    return Timeline(
        now=now,
        spans=tuple(ordered),
        times=tuple(times),
        followers=followers,
        complete=complete,
        parent=_parent(story),
        batch=batch,
    )


def _parent(story: Story) -> UUID | None:
    """The message that this one repeats, or reports the end of."""
    labels: list[str] = [] if story.message.labels is None else msgspec.json.decode(story.message.labels)
    named = [label.removeprefix(mark) for label in labels for mark in (AGAIN_OF, EDITED_OF) if label.startswith(mark)]
    if (source := _source(story.message.headers)) is not None:
        named.append(source)
    if story.message.topic.startswith(OWN) and story.message.payload is not None:
        named.append(str(msgspec.json.decode(story.message.payload).get("message_id")))
    for text in named:
        try:
            return UUID(text)
        except ValueError:
            continue  # a label that a caller wrote
    return None


def _delivery_spans(story: Story, row: Delivery, now: datetime) -> Iterator[TimelineSpan]:
    """The waits and runs of one delivery, one after the other."""
    at = story.message.created_at
    wait: SpanKind = "queue"
    attempts = [each for each in story.attempts if each.delivery_id == row.id]
    replays = [act for act in story.audit if act.target == f"delivery:{row.id}" and act.action in _REOPENED]
    moments: list[Attempt | AuditRow] = [*attempts, *replays]
    for moment in sorted(moments, key=_ended):
        if isinstance(moment, AuditRow):
            yield _wait(row, "dead", at, moment.at)
            at, wait = moment.at, "queue"
            continue
        started = max(at, _start_of(moment))
        yield _wait(row, wait, at, started)
        yield TimelineSpan(
            kind="attempt", delivery_id=row.id, start=started, end=moment.ended_at, attempt=moment.number,
            epoch=moment.epoch, text=moment.reason + (f": {moment.error}" if moment.error else ""),
        )  # fmt: skip
        at, wait = moment.ended_at, "dead" if moment.final else "backoff"
    yield from _last_spans(row, at, wait, now)


_REOPENED: Final = frozenset({"replay", "reopen"})


def _ended(moment: Attempt | AuditRow) -> datetime:
    return moment.at if isinstance(moment, AuditRow) else moment.ended_at


def _last_spans(row: Delivery, at: datetime, wait: SpanKind, now: datetime) -> Iterator[TimelineSpan]:
    """From the last failed attempt (or the publish) to the end, or to now."""
    match row.status:
        case "succeeded":
            started = max(at, row.updated_at - _run_of(row))
            yield _wait(row, wait, at, started)
            yield TimelineSpan(
                kind="succeeded", delivery_id=row.id, start=started, end=row.updated_at, attempt=row.attempts,
                epoch=row.epoch,
            )  # fmt: skip
        case "sending":
            started = max(at, row.claimed_at or row.updated_at)
            yield _wait(row, wait, at, started)
            yield TimelineSpan(
                kind="running", delivery_id=row.id, start=started, end=None, attempt=row.attempts, epoch=row.epoch
            )  # fmt: skip
        case "aborted":
            if row.updated_at > at and wait != "dead":
                yield _wait(row, wait, at, row.updated_at)
                at = row.updated_at
            yield TimelineSpan(kind="dead", delivery_id=row.id, start=at, end=None, text=row.reason)
        case _:
            due = max(at, row.next_run_at)
            if due > at:
                yield _wait(row, "backoff" if wait == "backoff" else "scheduled", at, due if due <= now else None)
            if due <= now:
                yield _wait(row, "queue" if row.lane is None else "lane", due, None)


def _wait(row: Delivery, kind: SpanKind, start: datetime, end: datetime | None) -> TimelineSpan:
    return TimelineSpan(kind=kind, delivery_id=row.id, start=start, end=end)


def _start_of(attempt: Attempt) -> datetime:
    """When the handler was called. What an old version stored does not say: then, when its worker claimed it."""
    if attempt.run_ms is not None:
        return attempt.ended_at - timedelta(milliseconds=attempt.run_ms)
    return attempt.started_at or attempt.ended_at


def _run_of(row: Delivery) -> timedelta:
    """How long the successful attempt ran; zero: that was not kept."""
    return timedelta(milliseconds=row.run_ms or 0)


def _times(row: Delivery, spans: Iterable[TimelineSpan], now: datetime) -> DeliveryTimes:
    waited = run = 0.0
    for span in spans:
        seconds = ((span.end or now) - span.start).total_seconds()
        waited += seconds if span.kind in _WAITS else 0.0
        run += seconds if span.kind in _RUNS else 0.0
    unknown = row.status == "succeeded" and row.run_ms is None
    return DeliveryTimes(delivery_id=row.id, waited=round(waited, 6), run=None if unknown else round(run, 6))


def _act_span(act: AuditRow) -> TimelineSpan:
    kind, _, number = act.target.partition(":")
    return TimelineSpan(
        kind="act",
        delivery_id=int(number) if kind == "delivery" else None,
        start=act.at,
        end=act.at,
        text=f"{act.action}, {act.by}: {act.why}",
    )

"""Deliveries as people look at them: filtered, in pages, one by one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.store.columns import EPOCH, build, moment, moment_or_none, uuid_or_none
from todoku.store.database import Database, Tx

# ------------------------------------------------------------
# Which deliveries: the one filter of listings and acts, answered by SQL (the fragment `matching`).


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries: all that match every field that is set. A field with several values matches any of them.

    `since` and `until` are of the last change, `published_since` and `published_until` of the message. The fields from
    `urls` on are about HTTP requests: with one of them, only requests match.
    """

    ids: tuple[int, ...] | None = None
    message_id: UUID | None = None
    status: str | None = None
    topic: str | None = None
    destination: str | None = None
    queue: str | None = None
    reason: str | None = None
    fingerprint: str | None = None
    """Of the traceback; empty: of deliveries without one."""
    key: str | None = None
    label: str | None = None
    """A label of the message, whatever it is; `labels` are those of HTTP requests."""
    since: datetime | None = None
    until: datetime | None = None
    due: bool = False
    message_ids: tuple[UUID, ...] = ()
    published_since: datetime | None = None
    published_until: datetime | None = None
    urls: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Names of hosts in any case, or `host:port` as the URL has it."""
    paths: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    request_queues: tuple[str, ...] = ()
    url_groups: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    caller_ips: tuple[str, ...] = ()
    flow_keys: tuple[str, ...] = ()
    run_ids: tuple[str, ...] = ()
    """Workflow runs over HTTP that the request belongs to."""
    run_parts: tuple[str, ...] = ()
    """Its parts in the run, as `RunPart` has them."""
    run_starts: tuple[int, ...] = ()
    """When the run was started, in unix milliseconds."""
    sources: tuple[str, ...] = ()
    """The messages whose end the request reports."""
    response_statuses: tuple[int, ...] = ()
    """The HTTP status of the response to the last failed attempt; 0: there was no response."""


_OF_REQUESTS: Final = (
    "urls", "hosts", "paths", "labels", "request_queues", "url_groups", "schedules", "caller_ips", "flow_keys",
    "run_ids", "run_parts", "run_starts", "sources",
)  # fmt: skip


def request_parameters(which: Filter) -> dict[str, Any]:
    """The parameters of the fragment `request_matching`."""
    values = {name: list(getattr(which, name)) or None for name in _OF_REQUESTS}
    hosts = [host.lower() for host in which.hosts]
    return {
        **values,
        "hosts": hosts or None,
        "with_port": any(":" in host for host in hosts),
        "by_request": any(values.values()),
    }


def parameters(which: Filter) -> dict[str, Any]:
    """The parameters of the fragment `matching`, which includes `request_matching`."""
    return {
        **msgspec.structs.asdict(which),
        **request_parameters(which),
        "message_ids": [str(id) for id in which.message_ids] or None,
        "response_statuses": list(which.response_statuses) or None,
    }


_OF_CAUSE: Final = ("reason", "destination", "fingerprint", "since", "until")
"""The fields of a filter that the index of dead letters by cause answers."""

LOOKED_AT: Final = 20_000
"""Rows that one page of requests looks at: a filter that few of them match gives a short page, and a cursor."""


class Delivery(msgspec.Struct, frozen=True):
    """A delivery: one message on its way to one destination."""

    id: int
    message_id: UUID | None
    topic: str | None
    key: str | None
    destination: str
    queue: str
    lane: int | None
    priority: int
    status: str
    attempts: int
    max_attempts: int | None
    """None: it succeeded, and how many attempts it was allowed is not stored."""
    lost: int
    snoozes: int
    replay_count: int
    epoch: int
    worker: UUID | None
    cancel_requested: bool
    next_run_at: datetime
    created_at: datetime | None
    updated_at: datetime
    reason: str | None
    error: str | None
    claimed_at: datetime | None = None
    fingerprint: str | None = None
    """Of the traceback of its last failed attempt."""
    run_ms: int | None = None
    """How long the attempt that succeeded took, in milliseconds; None: unknown, or it has not succeeded."""

    @property
    def tries(self) -> str:
        """The attempts for people: `2/6`, or `2` of a delivery that succeeded."""
        return str(self.attempts) if self.max_attempts is None else f"{self.attempts}/{self.max_attempts}"


class Standing(msgspec.Struct, frozen=True):
    """The state of a delivery now, and the JSON text of its result if one was stored."""

    id: int
    status: str
    reason: str | None
    error: str | None
    result: str | None
    destination: str = ""


class Page(msgspec.Struct, frozen=True):
    """Deliveries, newest first, and the cursor of the next page (None: this is the last)."""

    items: tuple[Delivery, ...]
    next: str | None


class DeliveryStore:
    """The deliveries of one database. Only reads: workers change them by claims, operators by acts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One page, newest first. `status="succeeded"` reads the history, anything else the unfinished deliveries."""
        return self._database.read(lambda tx: find(tx, which, cursor, limit))

    def get(self, id: int) -> Delivery | None:
        """One delivery by its number, finished or not; None: there is none, or its retention has passed."""
        return self._database.read(lambda tx: _get(tx, id))

    def newest_dead(self, limit: int) -> tuple[Delivery, ...]:
        """The newest dead letters, by id downwards."""
        return tuple(map(delivery, self._database.read(lambda tx: tx.rows("newest_dead", most=limit))))

    def count(self, which: Filter, *, most: int) -> int:
        """How many unfinished deliveries match, counted up to `most`. Dead letters by their cause: from an index."""
        cause = {name: getattr(which, name) for name in _OF_CAUSE}
        if which == Filter(status="aborted", **cause):
            rows = self._database.read(lambda tx: tx.rows("count_dead_matching", **cause, most=most))
        else:
            rows = self._database.read(lambda tx: tx.rows("count_matching", **parameters(which), most=most))
        return int(rows[0][0])

    def of_message(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One page of the deliveries of `which.message_id`, newest first, those that succeeded among them."""
        before = None if cursor is None else parse_cursor(cursor, 1)[0]
        values = parameters(msgspec.structs.replace(which, status=None))
        rows = self._database.read(lambda tx: tx.rows("find_of_message", **values, before=before, most=limit + 1))
        items = tuple(map(delivery, rows[:limit]))
        return Page(items, str(items[-1].id) if len(rows) > limit else None)

    def of_requests(self, message_ids: Sequence[UUID]) -> tuple[Delivery, ...]:
        """The deliveries of these messages, finished or not, by id, as far as the messages are HTTP requests."""
        ids = [str(id) for id in message_ids]
        rows = self._database.read(lambda tx: tx.rows("requests_of", ids=ids)) if ids else []
        return tuple(map(delivery, rows))

    def dead_requests(self, ids: Sequence[int]) -> tuple[Delivery, ...]:
        """Those of these deliveries that are dead letters of HTTP requests, the last to die first."""
        rows = self._database.read(lambda tx: tx.rows("dead_requests_of", ids=list(ids))) if ids else []
        return tuple(map(delivery, rows))

    def find_dead_requests(self, which: Filter, *, cursor: str | None = None, limit: int = 100) -> Page:
        """One page of dead letters of HTTP requests, the last to die first, without cancelled ones.

        Looks at a bounded number of rows: a filter that few match gives a short page, and a cursor to go on.
        """
        at, id = _LAST if cursor is None else parse_cursor(cursor, 2, most=_LAST)
        if which.until is not None:
            at, id = min((at, id), (round(which.until.timestamp() * 1e6), 0))
        position: dict[str, Any] = {"before": moment(at / 1e6), "before_id": id, "since": which.since or EPOCH}

        def work(tx: Tx) -> Page:
            values = {**parameters(which), **position}
            rows = tx.rows("find_dead_requests", **values, look=LOOKED_AT, most=limit + 1)
            found = tuple(map(delivery, rows[:limit]))
            if len(rows) > limit:
                return Page(found, f"{round(found[-1].updated_at.timestamp() * 1e6)}.{found[-1].id}")
            for last, last_id in tx.rows("dead_request_position", **position, skip=LOOKED_AT - 1):
                return Page(found, f"{round(last * 1e6)}.{last_id}")
            return Page(found, None)

        return self._database.read(work)

    def find_waiting_requests(
        self, which: Filter, *, after: int = 0, limit: int = 500
    ) -> tuple[tuple[Delivery, ...], int | None]:
        """HTTP requests that wait or run and were not asked to stop, oldest first, with ids greater than `after`.

        Also returns the id to go on after; None: there are no more. Looks at a bounded number of rows.
        """

        def work(tx: Tx) -> tuple[tuple[Delivery, ...], int | None]:
            rows = tx.rows("find_waiting_requests", **parameters(which), after=after, look=LOOKED_AT, most=limit)
            found = tuple(map(delivery, rows))
            if len(rows) == limit:
                return found, found[-1].id
            for (last,) in tx.rows("waiting_request_position", after=after, skip=LOOKED_AT - 1):
                return found, last
            return found, None

        return self._database.read(work)

    def standing(self, message_id: UUID, destinations: Sequence[str]) -> Standing | None:
        """The state of one delivery of a message, to one of these names of its destination; None: there is no such.

        With its result, if one was stored.
        """
        names = list(destinations)
        rows = self._database.read(lambda tx: tx.rows("standing", message_id=message_id, destinations=names))
        return Standing(*rows[0]) if rows else None

    def result(self, delivery_id: int) -> str | None:
        """The JSON text of a delivery's result, if one was stored."""
        rows = self._database.read(lambda tx: tx.rows("result", id=delivery_id))
        return rows[0][0] if rows else None


def find(tx: Tx, which: Filter, cursor: str | None, limit: int) -> Page:
    """As `DeliveryStore.find`, in an open transaction."""
    if which.status == "succeeded":
        return find_history(tx, which, cursor, limit)
    before = None if cursor is None else parse_cursor(cursor, 1)[0]
    rows = tx.rows("find", **parameters(which), before=before, most=limit + 1)
    items = tuple(delivery(row) for row in rows[:limit])
    return Page(items, str(items[-1].id) if len(rows) > limit else None)


def _get(tx: Tx, id: int) -> Delivery | None:
    rows = tx.rows("delivery", id=id) or _finished(tx, id)
    return delivery(rows[0]) if rows else None


_NEIGHBOURS: Final = (2048, 1 << 17)
"""Messages on both sides of the place where a delivery is expected: publishers that run at once mix their numbers, the
more so the larger their transactions are. First few are looked at, then many."""


def _finished(tx: Tx, id: int) -> list[Any]:
    """The row of a delivery that succeeded, by bisection: the history has no index of deliveries, which every settle
    would have to write, but messages and deliveries are numbered in almost the same order."""
    for (seq,) in tx.rows("known_message", id=id):
        if rows := tx.rows("finished_delivery", id=id, low=seq, high=seq):
            return rows
    ((low, high),) = tx.rows("history_ends")
    if low is None:
        return []
    while high - low > _NEIGHBOURS[0]:
        middle = (low + high) // 2
        ((seq, number),) = tx.rows("history_from", seq=middle)  # never none: `high` is at most the last
        if number > id:
            high = middle
        else:
            low = seq
    for many in _NEIGHBOURS:
        if rows := tx.rows("finished_delivery", id=id, low=low - many, high=high + many):
            return rows
    return []


_UNFINISHED: Final = frozenset({"status", "reason", "fingerprint", "due", "response_statuses"})


def finished_parameters(which: Filter) -> dict[str, Any]:
    """The parameters of the fragment `finished_matching`."""
    return {name: value for name, value in parameters(which).items() if name not in _UNFINISHED}


def find_history(tx: Tx, which: Filter, cursor: str | None, limit: int) -> Page:
    """As `find`, among deliveries that succeeded."""
    filters = finished_parameters(which)
    seq, before = (None, None) if cursor is None else parse_cursor(cursor, 2)
    if which.reason is not None or which.fingerprint is not None or which.due or which.response_statuses:
        return Page((), None)  # a succeeded delivery did not fail, is not due, and its response is not stored
    rows = tx.rows("find_history", **filters, before=before, before_seq=seq, most=limit + 1)
    items = tuple(delivery(row[:-1]) for row in rows[:limit])
    return Page(items, f"{rows[limit - 1][-1]}.{items[-1].id}" if len(rows) > limit else None)


_LAST: Final = (round(datetime(9999, 12, 31, tzinfo=UTC).timestamp() * 1e6), (1 << 63) - 1)
"""A position behind every dead letter, in microseconds: pages go from here downwards."""

_NUMBER: Final = re.compile("[0-9]{1,18}")  # more digits fit no id


def parse_cursor(text: str, parts: int, *, most: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """The numbers of a cursor, or InvalidMessage."""
    numbers = text.split(".")
    if len(numbers) == parts and all(_NUMBER.fullmatch(number) for number in numbers):
        found = tuple(int(number) for number in numbers)
        if most is None or found <= most:
            return found
    raise InvalidMessage(f"{text[:64]!r} is no cursor of this listing", hint="pass back the cursor of the page before")


def delivery(row: tuple[Any, ...]) -> Delivery:
    """A row of `find` as a value."""
    (
        id,
        message_id,
        *middle,
        worker,
        cancel_requested,
        next_run_at,
        created_at,
        updated_at,
        reason,
        error,
        claimed_at,
        fingerprint,
        run_ms,
    ) = row
    times: tuple[datetime, datetime | None, datetime] = (
        moment(next_run_at), moment_or_none(created_at), moment(updated_at),
    )  # fmt: skip
    return build(
        Delivery,
        id,
        uuid_or_none(message_id),
        *middle,
        uuid_or_none(worker),
        bool(cancel_requested),
        *times,
        reason,
        error,
        moment_or_none(claimed_at),
        fingerprint,
        run_ms,
    )

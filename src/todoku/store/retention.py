"""Retention: aborts deliveries that waited too long and removes rows past their time to live, in small transactions."""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec

from todoku.core.flow import ChildBatch, ChildSuccess
from todoku.core.http_request import served_as
from todoku.core.status import Status
from todoku.store import gates, lanes
from todoku.store.claims import read_waiting
from todoku.store.database import Database, Tx
from todoku.store.endings import FORGOTTEN_AFTER, Endings

_INBOX_TTL: Final = 90 * 86_400.0
_QUEUE_TTL: Final = 7 * 86_400.0
_DAYS_AHEAD: Final = 7


class Pruned(msgspec.Struct, frozen=True):
    """How many rows prune removed of each kind; `stray`: history rows outside every partition (an alarm)."""

    messages: int = 0
    ledger: int = 0
    attempts: int = 0
    results: int = 0
    inbox: int = 0
    history: int = 0
    stray: int = 0
    batches: int = 0
    secrets: int = 0
    queues: int = 0
    cancelled: int = 0
    sessions: int = 0
    http_runs: int = 0


class Retention:
    """Expires and prunes rows of one database."""

    def __init__(self, database: Database, endings: Endings) -> None:
        self._database = database
        self._endings = endings

    def expire(self, *, unknown_after: float, limit: int = 5000) -> tuple[int, int]:
        """Aborts deliveries past `expires_at`, and those for destinations no worker announced for
        `unknown_after` seconds. Returns both numbers.
        """
        expired = self._endings.write("expire", lambda tx: self._end(tx, tx.rows("expire", most=limit)))
        unknown = self._abort_unknown(after=unknown_after, limit=limit)
        self._endings.catch_up()
        return expired, unknown

    def _abort_unknown(self, *, after: float, limit: int) -> int:
        def unknown_places(tx: Tx) -> set[tuple[str, str]]:
            known = {name for (name,) in tx.rows("announced", after=after)}
            waiting = read_waiting(tx, None)
            places = {place[:2] for place in waiting.groups} | {place[:2] for place in waiting.gates}
            places |= {*waiting.suspects, *waiting.lanes}
            return {(queue, name) for queue, name in places if not {name, served_as(name)} & known}

        def abort(tx: Tx, queue: str, destination: str) -> int:
            rows = tx.rows("abort_unknown", queue=queue, destination=destination, after=after, most=limit)
            return self._end(tx, rows)

        places = sorted(self._database.read(unknown_places))
        return sum(self._database.write("expire", lambda tx: abort(tx, *place)) for place in places)  # noqa: B023 - runs at once

    def _end(self, tx: Tx, rows: list[tuple[int, int | None, int | None]]) -> int:
        """Refreshes the lanes and gates of new dead letters (id, lane, gate), then publishes the consequences."""
        lanes.refresh(tx, (lane for _, lane, _ in rows))
        gates.refresh(tx, (gate for _, _, gate in rows))
        self._endings.after_abort(tx, sorted(id for id, _, _ in rows))
        return len(rows)

    def prune(self, *, history_ttl: float, limit: int = 5000) -> Pruned:
        """Removes rows past their retention: never a message with a delivery, never a ledger entry in use, never the
        result of a child for which a run waits.

        Creates history partitions for the coming days.
        """
        database = self._database
        database.write("prune", lambda tx: tx.rows("prepare_history", days=_DAYS_AHEAD))
        _keep_results_of_children(database, history_ttl)
        pruned = Pruned(
            cancelled=_prune_in_rounds(database, "prune_cancelled", limit, ttl=history_ttl),
            messages=_messages(database, history_ttl, limit),
            ledger=_prune_in_rounds(database, "prune_ledger", limit),
            attempts=_prune_in_rounds(database, "prune_attempts", limit, ttl=history_ttl),
            results=_prune_in_rounds(database, "prune_results", limit, ttl=history_ttl),
            inbox=_prune_in_rounds(database, "prune_inbox", limit, ttl=_INBOX_TTL),
            batches=_prune_in_rounds(database, "prune_batches", limit, ttl=history_ttl),
            secrets=_prune_in_rounds(database, "prune_secrets", limit),
            sessions=_prune_in_rounds(database, "prune_sessions", limit),
            http_runs=_prune_in_rounds(database, "prune_http_runs", limit, ttl=history_ttl),
            queues=_prune_in_rounds(database, "prune_queues", limit, ttl=_QUEUE_TTL),
            history=database.write("prune", lambda tx: int(tx.rows("prune_history", ttl=history_ttl)[0][0])),
            stray=database.read(lambda tx: int(tx.rows("stray_history")[0][0])),
        )
        database.write("prune", lambda tx: tx.rows("prune_hooks", forgotten_after=FORGOTTEN_AFTER))
        return pruned


def _keep_results_of_children(database: Database, ttl: float) -> None:
    """Copies results of children into the steps of runs that wait for other children, before they are removed (R11)."""
    for seq, key in database.read(lambda tx: tx.rows("old_children_steps", ttl=ttl)):
        database.write("prune", lambda tx: _keep_successes(tx, seq, key))  # noqa: B023 - runs at once


def _keep_successes(tx: Tx, message_seq: int, step_key: str) -> None:
    for (text,) in tx.rows("lock_children", message_seq=message_seq, step_key=step_key):
        known = msgspec.json.decode(text, type=ChildBatch)
        children = zip(known.messages, known.jobs, known.succeeded or (None,) * len(known.jobs), strict=True)
        found = tuple(success or _success(tx, UUID(id), job) for id, job, success in children)
        if any(found) and found != known.succeeded:
            kept = msgspec.json.encode(msgspec.structs.replace(known, succeeded=found)).decode()
            tx.rows("keep_children", message_seq=message_seq, step_key=step_key, arguments=kept)


def _success(tx: Tx, message_id: UUID, job: str) -> ChildSuccess | None:
    """What a child has succeeded with. None: it has not, and a dead letter has no retention."""
    for _, status, _, _, result, destination in tx.rows("standing", message_id=message_id, destinations=[job]):
        if status == Status.SUCCEEDED:
            return ChildSuccess(destination, result)
    return None


def _messages(database: Database, ttl: float, limit: int) -> int:
    removed, after, more = 0, 0, True
    while more:
        position = after
        ((number, last, more),) = database.write(
            "prune",
            lambda tx: tx.rows("prune_messages", ttl=ttl, after=position, most=limit),  # noqa: B023 - runs at once
        )
        removed += number
        after = last if last is not None else after
    return removed


def _prune_in_rounds(database: Database, query: str, limit: int, **values: float) -> int:
    removed = 0
    while True:
        number = len(database.write("prune", lambda tx: tx.rows(query, most=limit, **values)))
        removed += number
        if number < limit:
            return removed

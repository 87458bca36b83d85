"""Removing what nobody needs any more, in small transactions: a long one would hold everybody else up."""

from __future__ import annotations

from typing import Final

from todoku.core.http_request import served_as
from todoku.store import deliveries, gates
from todoku.store.database import Database, Tx
from todoku.store.ending import FORGOTTEN_AFTER, Endings
from todoku.store.values import Pruned

_INBOX_TTL: Final = 90 * 86_400.0
_QUEUE_TTL: Final = 7 * 86_400.0
_DAYS_AHEAD: Final = 7


def prune(database: Database, *, history_ttl: float, limit: int) -> Pruned:
    """Everything whose retention has passed; and partitions for the days to come."""
    database.write("prune", lambda tx: tx.rows("prepare_history", days=_DAYS_AHEAD))
    pruned = Pruned(
        cancelled=_repeated(database, "prune_cancelled", limit, ttl=history_ttl),
        messages=_messages(database, history_ttl, limit),
        ledger=_repeated(database, "prune_ledger", limit),
        attempts=_repeated(database, "prune_attempts", limit, ttl=history_ttl),
        results=_repeated(database, "prune_results", limit, ttl=history_ttl),
        inbox=_repeated(database, "prune_inbox", limit, ttl=_INBOX_TTL),
        batches=_repeated(database, "prune_batches", limit, ttl=history_ttl),
        secrets=_repeated(database, "prune_secrets", limit),
        queues=_repeated(database, "prune_queues", limit, ttl=_QUEUE_TTL),
        history=database.write("prune", lambda tx: int(tx.rows("prune_history", ttl=history_ttl)[0][0])),
        stray=database.read(lambda tx: int(tx.rows("stray_history")[0][0])),
    )
    database.write("prune", lambda tx: tx.rows("prune_hooks", forgotten_after=FORGOTTEN_AFTER))
    return pruned


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


def _repeated(database: Database, query: str, limit: int, **values: float) -> int:
    removed = 0
    while True:
        number = len(database.write("prune", lambda tx: tx.rows(query, most=limit, **values)))
        removed += number
        if number < limit:
            return removed


def expire(tx: Tx, *, limit: int, endings: Endings) -> int:
    """Abort what waited past its expiry."""
    return _over(tx, tx.rows("expire", most=limit), endings)


def _over(tx: Tx, rows: list[tuple[int, int | None, int | None]], endings: Endings) -> int:
    """(id, lane, gate) of what became dead letters: their lanes and gates look anew, then what follows is published."""
    if lanes := sorted({lane for _, lane, _ in rows if lane is not None}):
        tx.rows("refresh_lanes", lanes=lanes, unpark=False)
    gates.refresh(tx, (gate for _, _, gate in rows))
    endings.aborted(tx, sorted(id for id, _, _ in rows))
    return len(rows)


def abort_unknown(database: Database, *, after: float, limit: int, endings: Endings) -> int:
    """Abort what has waited `after` seconds for a destination that no worker has announced in that time."""

    def strangers(tx: Tx) -> set[tuple[str, str]]:
        known = {name for (name,) in tx.rows("announced", after=after)}
        waiting = deliveries.waiting(tx, None)
        places = {(queue, name) for queue, name, _ in (*waiting.groups, *waiting.gates)}
        places |= {*waiting.suspects, *waiting.lanes}
        return {(queue, name) for queue, name in places if not {name, served_as(name)} & known}

    def abort(tx: Tx, queue: str, destination: str) -> int:
        rows = tx.rows("abort_unknown", queue=queue, destination=destination, after=after, most=limit)
        return _over(tx, rows, endings)

    places = sorted(database.read(strangers))
    return sum(database.write("expire", lambda tx: abort(tx, *place)) for place in places)  # noqa: B023 - runs at once

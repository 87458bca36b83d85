"""What a person does to deliveries, in batches: the one module behind the command line, the HTTP API and the web.

Each act is signed and leaves an audit row; with `dry_run` it says what it would do. `progress` is called with the
number of deliveries changed so far, after each batch; `stop` ends an act between batches. Deliveries that another
transaction is changing are passed over and counted.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, Literal, Protocol
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct
from todoku.core.http_request import served_as
from todoku.engine.outbox import Outbox
from todoku.engine.repetition import RouteTo, again_drafts
from todoku.store.acts import MISSING, Acted
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.deliveries import Filter
from todoku.store.store import Store

BATCH: Final = 500
"""Deliveries changed by one transaction: a larger one would hold everybody else up."""

Progress = Callable[[int], None]
Kind = Literal["queue", "destination"]
Clearable = Literal["pending", "failed", "aborted", "succeeded"]


def _silent(_number: int) -> None: ...


class ActResult(msgspec.Struct, frozen=True):
    """What an act came to: how many deliveries matched, how many changed, and why others were passed over."""

    matched: int
    changed: int
    skipped: dict[str, int]


class Replayed(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a replay came to. `messages`: the new messages, where successes were run again."""

    matched: int
    replayed: int
    skipped: dict[str, int]
    messages: tuple[UUID, ...] = ()


class _Batch(Protocol):
    def __call__(self, *, limit: int, after: int) -> Acted: ...


def sign(by: str, why: str) -> Signed:
    """Returns the signature of an act. InvalidAct: `by` or `why` is empty, and the audit records nothing else."""
    if not (by and by.strip() and why and why.strip()):
        raise InvalidAct(f"by={by!r}, why={why!r} does not say who and why", hint='by="ada", why="sent by mistake"')
    return Signed(by, why)


_COUNTED: Final = 200_000
"""An act on more deliveries than this shows no total: counting them would take too long."""


def count_matching(store: Store, which: Filter, statuses: Sequence[str]) -> int | None:
    """How many deliveries in these statuses an act will take, for a progress bar; None: too many to count."""
    numbers = [store.deliveries.count(_with_status(which, status), most=_COUNTED) for status in statuses]
    return None if _COUNTED in numbers else sum(numbers)


def replay(
    store: Store,
    which: Filter,
    signed: Signed,
    *,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Progress = _silent,
    stop: threading.Event | None = None,
) -> Replayed:
    """Dead letters → pending, oldest first (I9); at most `limit` of them, and at most `rate` a second.

    Of deliveries given by their numbers, those that succeeded are counted as skipped: `repeat` is for them.
    """
    only_dead = which if which.ids is not None or which.status is not None else _with_status(which, "aborted")

    def batch(*, limit: int, after: int) -> Acted:
        return store.acts.replay(only_dead, signed, limit=limit, after=after, dry_run=dry_run)

    pace = None if dry_run else rate
    done = _batches(store, which, batch, limit=limit, progress=progress, rate=pace, stop=stop)
    return Replayed(done.matched, done.changed, done.skipped)


def refuse_successes(done: Replayed) -> Replayed:
    """Returns the result of a replay. InvalidAct: everything it was to replay has succeeded."""
    if done.skipped.keys() == {SUCCEEDED} and not done.replayed:
        number = done.skipped[SUCCEEDED]
        raise InvalidAct(
            "the delivery has succeeded" if number == 1 else f"all {number} deliveries have succeeded",
            hint="to run a success again, as a new message, use --again (again=True)",
        )
    return done


def repeat(
    outbox: Outbox,
    which: Filter,
    signed: Signed,
    *,
    route_to: RouteTo,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Progress = _silent,
    stop: threading.Event | None = None,
) -> Replayed:
    """Runs succeeded deliveries again, oldest first: each as a new message to its destination alone (`repetition`)."""
    if which.status not in (None, "succeeded") or which.reason is not None:
        raise InvalidAct("only what succeeded runs again, and that has no reason", hint="replay it without --again")
    store, after, matched = outbox.store, (0, 0), 0
    last = store.messages.last_seq()
    messages: list[UUID] = []
    skipped: Counter[str] = Counter()
    for most in _sizes(None if dry_run else rate, stop):
        size = most if limit is None else min(most, limit - matched)
        rows = store.messages.find_repeatable(which, last=last, after=after, limit=size)
        matched += len(rows)
        if rows and not dry_run:
            drafts, refused = again_drafts(outbox, rows, route_to)
            messages += store.acts.repeat(drafts, signed)
            skipped.update(refused)
        progress(matched if dry_run else len(messages))
        if len(rows) < size or matched == limit:
            break
        after = (rows[-1].message.seq, rows[-1].delivery.id)
    if which.ids is not None and matched < len(which.ids):
        others = store.deliveries.find(Filter(ids=which.ids), limit=len(which.ids)).items
        skipped.update(f"is {each.status}" for each in others)
        skipped[MISSING] += len(which.ids) - matched - len(others)
    return Replayed(matched, matched if dry_run else len(messages), dict(+skipped), tuple(messages))


def cancel(
    store: Store,
    which: Filter,
    signed: Signed,
    *,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Progress = _silent,
    stop: threading.Event | None = None,
) -> ActResult:
    """What waits → aborted with CANCELLED. What runs is asked to stop. `limit`, `rate`: as of `replay`."""

    def batch(*, limit: int, after: int) -> Acted:
        return store.acts.cancel(which, signed, limit=limit, after=after, dry_run=dry_run)

    pace = None if dry_run else rate
    return _batches(store, which, batch, limit=limit, progress=progress, rate=pace, stop=stop)


def settle(
    store: Store,
    which: Filter,
    signed: Signed,
    *,
    succeeded: bool,
    result: str | None = None,
    dry_run: bool = False,
    progress: Progress = _silent,
) -> ActResult:
    """Say of deliveries that they succeeded, with this result (JSON text), or never will. Never of what runs."""
    if result is not None and not succeeded:
        raise InvalidAct("only a success has a result", hint="leave the result out, or settle as succeeded")

    def batch(*, limit: int, after: int) -> Acted:
        return store.acts.settle_by_hand(
            which, signed, succeeded=succeeded, result=result, limit=limit, after=after, dry_run=dry_run
        )

    return _batches(store, which, batch, progress=progress)


def purge(
    store: Store,
    which: Filter,
    signed: Signed,
    *,
    limit: int | None = None,
    rate: float | None = None,
    dry_run: bool = False,
    progress: Progress = _silent,
    stop: threading.Event | None = None,
) -> ActResult:
    """Removes dead letters for good. `limit`, `rate`: as of `replay`."""

    def batch(*, limit: int, after: int) -> Acted:
        return store.acts.purge(which, signed, limit=limit, after=after, dry_run=dry_run)

    pace = None if dry_run else rate
    return _batches(store, which, batch, limit=limit, progress=progress, rate=pace, stop=stop)


def clear(
    store: Store,
    status: Clearable,
    signed: Signed,
    *,
    older_than: float | None = None,
    topic: str | None = None,
    dry_run: bool = False,
    progress: Progress = _silent,
) -> ActResult:
    """Remove what is in `status` and has not changed for `older_than` seconds.

    What succeeded is pruned early; what waits is cancelled, with its audit row, and then removed; dead letters are
    purged. What runs cannot be cleared.
    """
    until = None if older_than is None else moment(store.ping() - older_than)
    if status == "succeeded":
        return _clear_history(store, signed, topic, until, dry_run=dry_run, progress=progress)
    which = Filter(status=status, topic=topic, until=until)
    if status == "aborted":
        return purge(store, which, signed, dry_run=dry_run, progress=progress)

    def batch(*, limit: int, after: int) -> Acted:
        acted = store.acts.cancel(which, signed, limit=limit, after=after, dry_run=dry_run)
        if acted.changed and not dry_run:
            removed = store.acts.purge(Filter(ids=acted.changed), signed, limit=limit)
            return msgspec.structs.replace(acted, changed=removed.changed, skipped=acted.skipped | removed.skipped)
        return acted

    return _batches(store, which, batch, progress=progress)


def _clear_history(
    store: Store, signed: Signed, topic: str | None, until: datetime | None, *, dry_run: bool, progress: Progress
) -> ActResult:
    number, after = 0, (0, 0)
    while True:
        done = store.acts.clear_history(signed, topic=topic, until=until, after=after, limit=BATCH, dry_run=dry_run)
        number += done.number
        progress(number)
        if done.next is None:
            return ActResult(number, number, {})
        after = done.next


def pause(store: Store, queue: str, signed: Signed, *, dry_run: bool = False) -> None:
    """Claims of the queue stop at the commit; what runs goes on."""
    if not dry_run:
        store.queues.pause(queue, signed, paused=True)


def resume(store: Store, queue: str, signed: Signed, *, dry_run: bool = False) -> None:
    """The queue is claimed from again."""
    if not dry_run:
        store.queues.pause(queue, signed, paused=False)


def limit(
    store: Store,
    name: str,
    signed: Signed,
    *,
    of: Kind | None = None,
    concurrency: int | None = None,
    rate: float | None = None,
    lasts: float | None = None,
    dry_run: bool = False,
) -> Kind:
    """All workers together: so many at once, so many a second, for so long. Neither of them: no limit any more.

    Says whether it took `name` for a queue or for a destination.
    """
    if (concurrency is not None and concurrency < 1) or (rate is not None and rate <= 0):
        raise InvalidAct("a limit is at least one", hint="to stop a queue, pause it")
    kind = of or _kind(store, name)
    if not dry_run:
        store.limits.set(name, signed, of=kind, concurrency=concurrency, rate=rate, lasts=lasts)
    return kind


def _kind(store: Store, name: str) -> Kind:
    """A queue, unless only a destination is called so: workers announce theirs, queues may be yet to come."""
    known, waiting = store.destinations.known(), store.claims.waiting(None)
    queues = {*known.queues, *(queue for queue, *_ in waiting.groups)}
    queues.update(queue for queue, _ in (*waiting.suspects, *waiting.lanes))
    return "destination" if {name, served_as(name)} & known.destinations.keys() and name not in queues else "queue"


def release_expired(store: Store, signed: Signed, *, max_lost: int, dry_run: bool = False) -> ActResult:
    """End the leases that ran out and free what they held, now instead of at the next reclaim of a worker."""
    now = store.ping()
    ended = [worker for worker in store.leases.workers() if worker.expires_at.timestamp() <= now]
    if dry_run:
        return ActResult(len(ended), sum(worker.held for worker in ended), {})
    freed = store.leases.reclaim(max_lost=max_lost, signed=signed)
    given_up = {"given up, because too many owners died": freed.aborted} if freed.aborted else {}
    return ActResult(freed.workers, freed.freed, given_up)


def _with_status(which: Filter, status: str) -> Filter:
    return msgspec.structs.replace(which, status=status)


SUCCEEDED: Final = "is succeeded"


def _batches(
    store: Store,
    which: Filter,
    batch: _Batch,
    *,
    limit: int | None = None,
    rate: float | None = None,
    progress: Progress = _silent,
    stop: threading.Event | None = None,
) -> ActResult:
    """Batch after batch by rising id: each delivery is looked at once, however it ends."""
    matched, changed, after = 0, 0, 0
    skipped: Counter[str] = Counter()
    for most in _sizes(rate, stop):
        size = most if limit is None else min(most, limit - changed)
        acted = batch(limit=size, after=after)
        matched += acted.matched
        changed += len(acted.changed)
        skipped.update(acted.skipped)
        progress(changed)
        if acted.last is None or acted.matched < size or changed == limit:
            break
        after = acted.last
    if which.ids is not None and MISSING in skipped:  # read here, where no act holds a lock: the history may be long
        done = len(store.deliveries.find(Filter(ids=which.ids, status="succeeded"), limit=len(which.ids)).items)
        skipped[MISSING] -= done
        skipped[SUCCEEDED] += done
    return ActResult(matched, changed, {why: number for why, number in skipped.items() if number > 0})


def _sizes(rate: float | None, stop: threading.Event | None) -> Iterator[int]:
    """The size of each batch, when its time has come: at most `rate` a second, in steps of about a second.

    Ends when `stop` is set, also while it waits.
    """
    stopped = stop or threading.Event()
    size = BATCH if rate is None else max(1, min(BATCH, int(rate)))
    start, number = time.monotonic(), 0
    while not stopped.is_set():
        yield size
        number += size
        if rate is not None and (wait := start + number / rate - time.monotonic()) > 0:
            stopped.wait(wait)

"""The consequences of a delivery's end: messages to hooks, batch counts, callbacks, and the next batch.

Every write that ends deliveries calls this at the end of the same transaction: the consequences commit if and only if
the end does (I1, I2), and once, because a claim works once (I3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.decision import Settlement
from todoku.core.ending import BATCH, OWN, EndedRequest, Ending, Hook, batch_of, callback_draft, callback_of
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, InvalidMessage
from todoku.core.flow import RACING, RUN, awaited_race
from todoku.core.http_request import TOPIC, HttpRequest, request_of
from todoku.core.identity import uuid7
from todoku.core.message import Claimed, Draft, Leg
from todoku.core.sealed import kind_of
from todoku.core.status import Status
from todoku.store import batches, ended_delivery, undos
from todoku.store.columns import moment, read_response
from todoku.store.database import Database, Tx, run_steps
from todoku.store.ended_delivery import CANCELLED, EndedDelivery, trace_of
from todoku.store.http_runs import fail_invoker, read_initial_body
from todoku.store.publish import Publishing, publish
from todoku.store.waiters import Waiters

T = TypeVar("T")

GONE: Final = "HTTP_GONE"
"""The reason of a 410 response: the URL is gone."""


def has_followers(topic: str, headers: str | None, reason: str | None) -> bool:
    """Whether an endpoint or a callback may follow the end of this message. Cheap: called for every settlement."""
    return topic == TOPIC and headers is not None and (reason == GONE or "callback" in headers)


def _follow_requests(tx: Tx, ended: Sequence[EndedDelivery]) -> list[Draft]:
    """Disables endpoints that are gone. Returns the callbacks, to be published in this transaction."""
    requests = list(_requests(each for each in ended if has_followers(each.topic, each.headers, each.reason)))
    gone = {(request.url, request.group) for each, request in requests if each.reason == GONE}
    for url, group in sorted(gone, key=repr):  # sorted locks (H11)
        if tx.rows("set_endpoint", url=url, group=group, state="disabled", reason=GONE):
            why = "the receiver answered 410 Gone"
            tx.rows("audit", by="todoku", why=why, action="disable", targets=[f"endpoint:{url}"])
    for id in sorted(_failed_runs(requests)):  # sorted locks (H11)
        fail_invoker(tx, id)
    wanted = [
        (each, request)
        for each, request in requests
        if callback_of(request, succeeded=each.status is Status.SUCCEEDED) is not None
        and not (request.run is not None and each.reason == CANCELLED[0])  # a cancelled run has not failed
    ]
    return list(_callbacks(tx, wanted)) if wanted else []


def _failed_runs(requests: Sequence[tuple[EndedDelivery, HttpRequest]]) -> set[str]:
    """The workflow runs of which a call has failed for good."""
    return {
        request.run.id
        for each, request in requests
        if request.run is not None and request.run.part == "step"
        if each.status is Status.ABORTED and each.reason != CANCELLED[0]
    }


def _requests(ended: Iterator[EndedDelivery]) -> Iterator[tuple[EndedDelivery, HttpRequest]]:
    for each in ended:
        try:
            request = request_of(each.headers)
        except InvalidMessage:  # not a header that todoku wrote; the delivery must still end
            continue
        if request is not None:
            yield each, request


def _callbacks(tx: Tx, wanted: Sequence[tuple[EndedDelivery, HttpRequest]]) -> Iterator[Draft]:
    """Yields one message for each request. Reads the body and the last response of each."""
    rows = [{"message": each.message_id, "delivery": each.delivery_id} for each, _ in wanted]
    found = {row[0]: row[1:] for row in tx.rows("callback_sources", rows=rows)}
    for each, request in wanted:
        payload, raw, content_type, created_at, answered = found[each.delivery_id]
        succeeded = each.status is Status.SUCCEEDED
        to = callback_of(request, succeeded=succeeded)
        if to is None:
            continue
        body = None if kind_of(content_type) is not None else (raw if payload is None else payload.encode()) or b""
        if request.run is not None and request.run.part == "step":
            body = read_initial_body(tx, request.run.id)
        ended = EndedRequest(
            message_id=each.message_id, delivery_id=each.delivery_id, replay_count=each.replay_count, request=request,
            succeeded=succeeded, attempts=each.attempts, created_at=created_at,
            body=body,
            response=each.response or (None if succeeded else read_response(answered)),
        )  # fmt: skip
        yield callback_draft(uuid7(time.time_ns() // 1_000_000, os.urandom(10)), ended, to, trace_of(each.headers))


FORGOTTEN_AFTER: Final = 86_400.0
"""Seconds after which a hook that no worker has announced is dropped."""

_HOOKS_TTL: Final = 1.0
"""Seconds that the hooks are cached: every settle needs them."""

_CATCH_UP_LIMIT: Final = 100


class Endings:
    """Publishes the consequences of ends in one database. Its methods may be called from any thread."""

    def __init__(self, database: Database, waiters: Waiters, *, notify: bool) -> None:
        self._database = database
        self._waiters = waiters
        self._notify = notify
        self._hooks: tuple[Hook, ...] = ()
        self._hooks_until = 0.0
        self._late: set[str] = set()

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        """Runs a write that may end deliveries, then does what had to wait for its commit."""
        result = self._database.write(operation, work)
        self.after_commit()
        return result

    def after_commit(self) -> None:
        """Wakes the callers that wait for an end, and publishes the next batches. `write` does this by itself."""
        self._waiters.wake()
        self.catch_up()

    # ------------------------------------------------------------------------------------ after the end

    def after_settle(
        self, tx: Tx, pairs: Sequence[tuple[Claimed, Settlement]], cancelled: Collection[int] = ()
    ) -> None:
        """Call this after attempts were settled. `cancelled`: ids that ended because an operator cancelled them.

        Without hooks, batches, callbacks and waiting callers this only checks each claim's headers, without a query.
        """
        known = self._known(tx)
        if known or self._waiters or [pair for pair in pairs if pair[0].headers is not None and _is_followed(*pair)]:
            self.after_end(tx, ended_delivery.select_ended(pairs, cancelled))

    def after_abort(self, tx: Tx, ids: Sequence[int]) -> None:
        """Call this after deliveries became dead letters."""
        if ids:
            self.after_end(tx, ended_delivery.load_ended(tx, ids))

    def after_end(self, tx: Tx, ended: Sequence[EndedDelivery]) -> None:
        """Publishes the consequences of these ends."""
        if ended:
            self._publish_to_hooks(tx, ended)
            if calls := _follow_requests(tx, ended):
                run_steps(tx, publish(self.publishing(), calls))
            undos.begin(tx, self.publishing(), ended)
            self._publish_next(tx, batches.count(tx, ended))
            _call_parents(tx, ended)
            if self._waiters:
                self._waiters.note(tx, {each.message_id for each in ended})

    def after_purge(self, tx: Tx, removed: Iterable[EndedDelivery]) -> None:
        """Call this before dead letters are removed: gives up the batches that need them to succeed."""
        if ids := sorted({str(id) for each in removed if (id := batch_of(each.headers)) is not None}):
            tx.rows("lock_batches", ids=ids)
            tx.rows("give_up_batches", ids=ids)

    # --------------------------------------------------------------------------------------------- hooks

    def announce(self, hooks: Sequence[Hook]) -> None:
        """Records that a worker serves these hooks: from now on each gets a message for every end that it matches.

        The message commits with the end itself, so it is neither lost nor doubled. A hook that no worker announces for
        a day is dropped. Other processes notice a new hook within a second.
        """
        if hooks:
            rows = [msgspec.structs.asdict(hook) for hook in hooks]
            self._database.write("announce", lambda tx: tx.rows("announce_hooks", hooks=rows))
            self._hooks_until = 0.0

    def _known(self, tx: Tx) -> tuple[Hook, ...]:
        if (now := time.monotonic()) >= self._hooks_until:
            self._hooks = read_hooks(tx)
            self._hooks_until = now + _HOOKS_TTL
        return self._hooks

    def _publish_to_hooks(self, tx: Tx, ended: Sequence[EndedDelivery]) -> None:
        """Publishes one message for each end that hooks match, with a delivery to each of these hooks."""
        known = self._known(tx)
        matched = [
            (each, hooks)
            for each in ended
            if (hooks := [h for h in known if h.fires_for(each.status, each.topic, each.destination, each.queue)])
        ]
        if matched:
            ((now,),) = tx.rows("clock")
            run_steps(tx, publish(self.publishing(), [_ending_draft(each, hooks, now) for each, hooks in matched]))

    # ------------------------------------------------------------------------------------------- batches

    def _publish_next(self, tx: Tx, complete: Sequence[batches.Complete]) -> None:
        """Publishes the batches that follow complete ones, and marks those as finished."""
        done = [each for each in complete if not self._must_wait(each)]
        self._late.update(each.id for each in complete if self._must_wait(each))
        if done:
            run_steps(tx, batches.begin(self.publishing(), [each.next for each in done if each.next is not None]))
            ids = [each.id for each in done]
            tx.rows("finish_batches", ids=ids)
            tx.rows("call_runs", awaits=ids)

    def _must_wait(self, complete: batches.Complete) -> bool:
        """Whether the next batch publishes into a lane. It may wait long for other publishers of the lane, or deadlock
        with this settle, so it gets its own transaction after this one."""
        return (
            self._database.dialect == "postgresql"
            and complete.next is not None
            and any(leg.lane is not None for draft in complete.next.drafts for leg in draft.legs)
        )

    def catch_up(self, *, all: bool = False) -> int:
        """Publishes next batches that could not commit with the end of their predecessor: those this process postponed,
        or all. Skips locked ones until the next call. Returns how many it published."""
        if not all and not self._late:
            return 0
        database = self._database
        late, self._late = self._late, set()
        if all:
            late = {id for (id,) in database.read(lambda tx: tx.rows("due_batches", most=_CATCH_UP_LIMIT))}
        number = 0
        for id in sorted(late):
            try:
                number += database.write("follow", lambda tx: self._take(tx, id))  # noqa: B023 - runs at once
            except (DatabaseBusy, DatabaseUnavailable):
                continue  # it is stored as due: a later call finds it
        return number

    def _take(self, tx: Tx, id: str) -> int:
        rows = tx.rows("take_batch", id=id)
        if following := [each for (next,) in rows if (each := batches.read(next)) is not None]:
            run_steps(tx, batches.begin(self.publishing(), following))
        tx.rows("finish_batches", ids=[id])
        tx.rows("call_runs", awaits=[id])
        return len(rows)

    def publishing(self) -> Publishing:
        """The facts about the database that a publish is built from, as of now."""
        database = self._database
        return Publishing(database.dialect, database.queries, database.now(), self._notify)


def _call_parents(tx: Tx, ended: Sequence[EndedDelivery]) -> None:
    """Calls the runs for which the end of one child counts, and not that of its batch.

    A race goes on with the first. A child that was replayed ends once more, when its batch may be over already: the
    run has looked meanwhile, and found it open (R2).
    """
    awaited: set[str] = set()
    for each in ended:
        if each.headers is not None and RACING in each.headers:
            awaited.add(awaited_race(str(batch_of(each.headers))))
        elif each.ended_before and (batch := batch_of(each.headers)) is not None:
            awaited.add(str(batch))
    if awaited:
        tx.rows("call_runs", awaits=sorted(awaited))


def read_hooks(tx: Tx) -> tuple[Hook, ...]:
    """The hooks that workers serve."""
    rows = tx.rows("hooks", forgotten_after=FORGOTTEN_AFTER)
    return tuple(Hook(**dict(zip(Hook.__struct_fields__, row, strict=True))) for row in rows)


def _ending_draft(each: EndedDelivery, hooks: Sequence[Hook], now: float) -> Draft:
    ending = Ending(
        message_id=UUID(each.message_id), delivery_id=each.delivery_id, topic=each.topic, key=each.key,
        destination=each.destination, queue=each.queue, status=each.status, reason=each.reason, error=each.error,
        attempts=each.attempts, replay_count=each.replay_count, ended_at=moment(now),
    )  # fmt: skip
    topic = f"{OWN}{each.status}"
    return Draft(
        id=uuid7(time.time_ns() // 1_000_000, os.urandom(10)),
        topic=topic,
        type=topic,
        key=each.key,
        payload=msgspec.json.encode(ending).decode(),
        headers=msgspec.json.encode(trace).decode() if (trace := trace_of(each.headers)) else None,
        legs=tuple(
            Leg(destination=hook.name, queue=hook.queue, max_attempts=hook.max_attempts, timeout=hook.timeout)
            for hook in hooks
        ),
    )


def _is_followed(claim: Claimed, settlement: Settlement) -> bool:
    headers = claim.headers or ""
    return BATCH in headers or RUN in headers or has_followers(claim.topic, headers, settlement.reason)

"""What follows the end of a delivery: hooks are told, batches are counted, and what waited for them is published.

Whoever makes deliveries terminal calls this at the end of the same transaction: so what follows is there if, and only
if, the end is (I1, I2), and once, because a token works once (I3).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.callback import EndedRequest, callback_draft, callback_of
from todoku.core.decision import Settlement
from todoku.core.ending import BATCH, OWN, Ending, Hook, batch_of
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, InvalidMessage
from todoku.core.http_request import TOPIC, TRACE, HttpRequest, request_of
from todoku.core.identity import uuid7
from todoku.core.message import Claimed, Draft, Leg
from todoku.core.sealed import kind_of
from todoku.core.status import Status
from todoku.store import batch, ended_delivery
from todoku.store.database import Database, Tx
from todoku.store.ended_delivery import Over
from todoku.store.publish import Publishing, publish
from todoku.store.reading import response
from todoku.store.steps import taken
from todoku.store.values import moment

GONE = "HTTP_GONE"
"""The receiver says that there is nothing at this URL any more."""


def concerns(topic: str, headers: str | None, reason: str | None) -> bool:
    """Whether something may follow the end of this message. Cheap: it is asked of everything that is settled."""
    return topic == TOPIC and headers is not None and (reason == GONE or "callback" in headers)


def follow(tx: Tx, ended: Sequence[Over]) -> list[Draft]:
    """Disable endpoints that are gone. Returns the callbacks, to be published in this transaction."""
    requests = list(_requests(each for each in ended if concerns(each.topic, each.headers, each.reason)))
    gone = {(request.url, request.group) for each, request in requests if each.reason == GONE}
    for url, group in sorted(gone, key=repr):  # in one order, whoever else does the same (H11)
        if tx.rows("set_endpoint", url=url, group=group, state="disabled", reason=GONE):
            why = "the receiver says that it is gone (410)"
            tx.rows("audit", by="todoku", why=why, action="disable", targets=[f"endpoint:{url}"])
    wanted = [
        (each, request)
        for each, request in requests
        if callback_of(request, succeeded=each.status is Status.SUCCEEDED) is not None
    ]
    return list(_callbacks(tx, wanted)) if wanted else []


def _requests(ended: Iterator[Over]) -> Iterator[tuple[Over, HttpRequest]]:
    for each in ended:
        try:
            request = request_of(each.headers)
        except InvalidMessage:  # somebody else wrote this header: an end does not fail by it
            continue
        if request is not None:
            yield each, request


def _callbacks(tx: Tx, wanted: Sequence[tuple[Over, HttpRequest]]) -> Iterator[Draft]:
    """One message for each. Its body and the last answer are looked up only now."""
    rows = [{"message": each.message_id, "delivery": each.delivery_id} for each, _ in wanted]
    found = {row[0]: row[1:] for row in tx.rows("callback_sources", rows=rows)}
    for each, request in wanted:
        payload, raw, content_type, created_at, answered = found[each.delivery_id]
        succeeded = each.status is Status.SUCCEEDED
        to = callback_of(request, succeeded=succeeded)
        if to is None:
            continue
        ended = EndedRequest(
            message_id=each.message_id, delivery_id=each.delivery_id, replay_count=each.replay_count, request=request,
            succeeded=succeeded, attempts=each.attempts, created_at=created_at,
            body=None if kind_of(content_type) is not None else (raw if payload is None else payload.encode()) or b"",
            response=each.response or (None if succeeded else response(answered)),
        )  # fmt: skip
        yield callback_draft(uuid7(time.time_ns() // 1_000_000, os.urandom(10)), ended, to, trace_of(each.headers))


def trace_of(headers: str | None) -> dict[str, str]:
    """Of a message's headers those that say which trace it belongs to: what follows belongs to the same."""
    found: dict[str, str] = {} if headers is None else msgspec.json.decode(headers)
    return {name: value for name, value in found.items() if name.lower() in TRACE}


FORGOTTEN_AFTER: Final = 86_400.0
"""A hook that nobody has announced for so long, while other things were, is nobody's any more."""

_REMEMBERED: Final = 1.0
"""Seconds that the hooks are kept in memory: a settle asks for them, and almost never has to ask the database."""

_AT_ONCE: Final = 100


class Endings:
    """What follows ends, on one store's database. Its methods may be called from any thread."""

    def __init__(self, database: Callable[[], Database], *, notify: bool) -> None:
        self._database = database
        self._notify = notify
        self._hooks: tuple[Hook, ...] = ()
        self._hooks_until = 0.0
        self._late: set[str] = set()

    # ------------------------------------------------------------------------------- who ends deliveries

    def settled(self, tx: Tx, pairs: Sequence[tuple[Claimed, Settlement]], cancelled: Collection[int] = ()) -> None:
        """These were settled; `cancelled`: those of them that are over because somebody cancelled them.

        Without hooks, batches and callbacks this costs a look at each claim's headers, and no query.
        """
        known = self._known(tx)
        if known or [pair for pair in pairs if pair[0].headers is not None and _is_followed(*pair)]:
            self.follow(tx, ended_delivery.settled(pairs, cancelled))

    def aborted(self, tx: Tx, ids: Sequence[int]) -> None:
        """These became dead letters."""
        if ids:
            self.follow(tx, ended_delivery.loaded(tx, ids))

    def follow(self, tx: Tx, ended: Sequence[Over]) -> None:
        """Publish what follows these ends."""
        if ended:
            self._tell(tx, ended)
            if calls := follow(tx, ended):
                taken(tx, publish(self._publishing(), calls))
            self._go_on(tx, batch.count(tx, ended))

    def purged(self, tx: Tx, removed: Iterable[Over]) -> None:
        """These dead letters are about to be removed for good: a batch that needs them to succeed never will."""
        if ids := sorted({str(id) for each in removed if (id := batch_of(each.headers)) is not None}):
            tx.rows("lock_batches", ids=ids)
            tx.rows("give_up_batches", ids=ids)

    # --------------------------------------------------------------------------------------------- hooks

    def announce(self, hooks: Sequence[Hook]) -> None:
        """Say that somebody here serves these hooks. They hear of what ends from now on."""
        if hooks:
            rows = [msgspec.structs.asdict(hook) for hook in hooks]
            self._database().write("announce", lambda tx: tx.rows("announce_hooks", hooks=rows))
            self._hooks_until = 0.0

    def _known(self, tx: Tx) -> tuple[Hook, ...]:
        if (now := time.monotonic()) >= self._hooks_until:
            self._hooks = known_hooks(tx)
            self._hooks_until = now + _REMEMBERED
        return self._hooks

    def _tell(self, tx: Tx, ended: Sequence[Over]) -> None:
        """One message for each end that somebody hears of, with a delivery to each of them."""
        known = self._known(tx)
        heard = [
            (each, told)
            for each in ended
            if (told := [h for h in known if h.hears(each.status, each.topic, each.destination, each.queue)])
        ]
        if heard:
            ((now,),) = tx.rows("clock")
            taken(tx, publish(self._publishing(), [_told(each, hooks, now) for each, hooks in heard]))

    # ------------------------------------------------------------------------------------------- batches

    def _go_on(self, tx: Tx, complete: Sequence[batch.Complete]) -> None:
        """Publish what follows complete batches, and note that it was."""
        done = [each for each in complete if not self._must_wait(each)]
        self._late.update(each.id for each in complete if self._must_wait(each))
        if done:
            taken(tx, batch.begin(self._publishing(), [each.next for each in done if each.next is not None]))
            tx.rows("finish_batches", ids=[each.id for each in done])

    def _must_wait(self, complete: batch.Complete) -> bool:
        """A publish into a lane waits for other publishers of the lane, who may hold it for long; nobody may hold up a
        settle that long, nor deadlock with it. It gets a transaction of its own, right after this one."""
        return (
            self._database().dialect == "postgresql"
            and complete.next is not None
            and any(leg.lane is not None for draft in complete.next.drafts for leg in draft.legs)
        )

    def catch_up(self, *, all: bool = False) -> int:
        """Publish what follows complete batches and could not be published with the end itself: of those that this
        store has left behind, or of all. What somebody holds up is left to the next time. Returns how many it was."""
        if not all and not self._late:
            return 0
        database = self._database()
        late, self._late = self._late, set()
        if all:
            late = {id for (id,) in database.read(lambda tx: tx.rows("due_batches", most=_AT_ONCE))}
        number = 0
        for id in sorted(late):
            try:
                number += database.write("follow", lambda tx: self._take(tx, id))  # noqa: B023 - runs at once
            except (DatabaseBusy, DatabaseUnavailable):
                continue  # it is due in the database, where everybody finds it
        return number

    def _take(self, tx: Tx, id: str) -> int:
        rows = tx.rows("take_batch", id=id)
        if following := [each for (next,) in rows if (each := batch.read(next)) is not None]:
            taken(tx, batch.begin(self._publishing(), following))
        tx.rows("finish_batches", ids=[id])
        return len(rows)

    def _publishing(self) -> Publishing:
        database = self._database()
        return Publishing(database.dialect, database.queries, database.now(), self._notify)


def known_hooks(tx: Tx) -> tuple[Hook, ...]:
    """The hooks that somebody serves."""
    rows = tx.rows("hooks", forgotten_after=FORGOTTEN_AFTER)
    return tuple(Hook(**dict(zip(Hook.__struct_fields__, row, strict=True))) for row in rows)


def _told(each: Over, hooks: Sequence[Hook], now: float) -> Draft:
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
    return BATCH in headers or concerns(claim.topic, headers, settlement.reason)

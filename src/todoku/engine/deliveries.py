"""The deliveries of an App's database, `box.deliveries`: finding them, and what a person does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NoSuchMessage, NotThere
from todoku.engine import operations
from todoku.engine.bulk_acts import BulkActs
from todoku.engine.operations import ActResult, Replayed
from todoku.engine.outbox import Outbox
from todoku.engine.publish import encode
from todoku.engine.repetition import RouteTo
from todoku.engine.search import Searcher, SearchResult
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter, Page
from todoku.store.store import Store

R = TypeVar("R")

Id = UUID | int | str
"""A delivery's number, or a message's id, which stands for its unfinished deliveries."""


Of = Literal["unfinished", "succeeded"]
"""The deliveries of a message that its id stands for; if it has none of those, it stands for all."""


def resolve(store: Store, ids: Iterable[Id], *, of: Of = "unfinished") -> tuple[int, ...]:
    """Delivery numbers of what people write: a number, or a message's id, which stands for its unfinished deliveries.

    `of`: or for others of its deliveries. NoSuchMessage: there is none. InvalidAct: neither a number nor an id.
    """
    found: list[int] = []
    for id in map(parse_id, ids):
        if isinstance(id, int):
            found.append(id)
            continue
        if (story := store.messages.story(id)) is None:
            raise NoSuchMessage(f"there is no message {id}", hint="`todoku list` shows the newest; old ones are pruned")
        succeeded = [delivery.id for delivery in story.deliveries if delivery.status == "succeeded"]
        waiting = [delivery.id for delivery in story.deliveries if delivery.status != "succeeded"]
        found += (succeeded or waiting) if of == "succeeded" else (waiting or succeeded)
    return tuple(dict.fromkeys(found))


def parse_id(id: Id) -> UUID | int:
    """Returns a delivery's number, or a message's id. InvalidAct: it is neither."""
    if isinstance(id, UUID):
        return id
    if isinstance(id, str) and not id.isdecimal():
        return parse_message_id(id)
    if not 0 < (number := int(id)) < 1 << 63:
        raise InvalidAct(f"{id} is no delivery number", hint="`todoku list` shows them")
    return number


def parse_message_id(text: str) -> UUID:
    """Returns a message's id. InvalidAct: the text is none."""
    try:
        return UUID(text)
    except ValueError:
        hint = "give a delivery's number or a message's id; `todoku list` shows both"
        raise InvalidAct(f"{text!r} is no id", hint=hint) from None


class DeliveryFilter(TypedDict, total=False):
    """Selects the deliveries that match every keyword. Names are exact: `topic` is no pattern."""

    status: str | None
    topic: str | None
    destination: str | None
    queue: str | None
    reason: str | None
    fingerprint: str | None
    key: str | None
    label: str | None
    message_id: UUID | None
    since: datetime | None
    until: datetime | None


class Deliveries:
    """The deliveries of an App's database. Every call has an async form, `a…`.

    An act needs ids or keywords of DeliveryFilter; without both it raises InvalidAct. It is audited with `by` and
    `why`. With `dry_run` it changes nothing and returns what it would do.
    """

    def __init__(self, outbox: Outbox, route_to: RouteTo) -> None:
        self._outbox = outbox
        self._route_to = route_to
        self.bulk_acts = BulkActs(outbox, route_to)

    @blocking("box.deliveries")
    async def get(self, id: int) -> Delivery:
        """Returns one delivery by its number. NotThere: there is none, or its retention has passed."""
        return await in_thread(self._get, id)

    aget = asynchronous(get)

    @blocking("box.deliveries")
    async def find(self, *, cursor: str | None = None, limit: int = 100, **which: Unpack[DeliveryFilter]) -> Page:
        """Returns a page of deliveries, newest first: its `items`, and `next`, the cursor of the next page.

        Succeeded deliveries are found only by `status="succeeded"`, or by the `message_id` that they are of.
        """
        deliveries, wanted = self._outbox.store.deliveries, Filter(**which)
        find = deliveries.find if wanted.message_id is None or wanted.status is not None else deliveries.of_message
        return await in_thread(find, wanted, cursor=cursor, limit=limit)

    afind = asynchronous(find)

    @blocking("box.deliveries")
    async def search(self, text: str, *, cursor: str | None = None, limit: int = 50) -> SearchResult:
        """Searches deliveries, finished or not, newest first: `status:failed topic:order.* payload.order_id:42`.

        Each of its `items` has a `delivery`, and `why` it waits. InvalidAct: a word is wrong.
        """
        searcher = Searcher(self._outbox.store, self._outbox.settings)
        return await in_thread(lambda: searcher.search(text, reader="admin", cursor=cursor, limit=limit))

    asearch = asynchronous(search)

    @blocking("box.deliveries")
    async def replay(
        self,
        *ids: Id,
        by: str,
        why: str,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        again: bool = False,
        **which: Unpack[DeliveryFilter],
    ) -> Replayed:
        """Runs dead letters again, from attempt 0, oldest first: at most `limit`, at most `rate` a second.

        With `again`, runs successes again: each as a new message to its destination alone, without its idempotency key
        and with the label `todoku.again_of:<id>`. Without it, InvalidAct if everything with these ids has succeeded.
        """

        def replay(store: Store, wanted: Filter, signed: Signed, **options: Any) -> Replayed:
            if again:
                return operations.repeat(self._outbox, wanted, signed, route_to=self._route_to, **options)
            return operations.refuse_successes(operations.replay(store, wanted, signed, **options))

        of: Of = "succeeded" if again else "unfinished"
        done = await in_thread(self._act(replay, ids, which, by, why, of=of, limit=limit, rate=rate, dry_run=dry_run))
        if not dry_run:
            self._outbox.wake()
        return done

    areplay = asynchronous(replay)

    @blocking("box.deliveries")
    async def cancel(
        self, *ids: Id, by: str, why: str, dry_run: bool = False, **which: Unpack[DeliveryFilter]
    ) -> ActResult:
        """Aborts waiting deliveries, with the reason CANCELLED. The worker of a running one is asked to stop it."""
        return await in_thread(self._act(operations.cancel, ids, which, by, why, dry_run=dry_run))

    acancel = asynchronous(cancel)

    @blocking("box.deliveries")
    async def settle(
        self,
        *ids: Id,
        succeeded: bool,
        result: object = msgspec.UNSET,
        by: str,
        why: str,
        dry_run: bool = False,
        **which: Unpack[DeliveryFilter],
    ) -> ActResult:
        """Settles deliveries that are not running: as succeeded, with this result, or as dead letters."""
        text = None if result is msgspec.UNSET else encode(result)
        act = self._act(operations.settle, ids, which, by, why, succeeded=succeeded, result=text, dry_run=dry_run)
        return await in_thread(act)

    asettle = asynchronous(settle)

    @blocking("box.deliveries")
    async def purge(
        self, *ids: Id, by: str, why: str, dry_run: bool = False, **which: Unpack[DeliveryFilter]
    ) -> ActResult:
        """Removes dead letters for good."""
        return await in_thread(self._act(operations.purge, ids, which, by, why, dry_run=dry_run))

    apurge = asynchronous(purge)

    # ------------------------------------------------------------------------------------------- inside

    def _get(self, id: int) -> Delivery:
        if (found := self._outbox.store.deliveries.get(id)) is not None:
            return found
        raise NotThere(f"there is no delivery {id}", hint="box.deliveries.find(…) lists them; old ones are pruned")

    def _act(
        self,
        act: Callable[..., R],
        ids: tuple[Id, ...],
        which: DeliveryFilter,
        by: str,
        why: str,
        *,
        of: Of = "unfinished",
        **options: Any,
    ) -> Callable[[], R]:
        """The blocking call of an act. What is missing is refused before. `of`: as of `resolve`."""
        if not ids and all(value is None for value in which.values()):
            name = act.__name__
            hint = f"box.deliveries.{name}(topic='order.created', by=…, why=…)"
            raise InvalidAct(f"{name} needs ids, or a filter", hint=hint)
        signed, store = operations.sign(by, why), self._outbox.store

        def call() -> R:
            numbers = resolve(store, ids, of=of) if ids else None
            return act(store, Filter(ids=numbers, **which), signed, **options)

        return call

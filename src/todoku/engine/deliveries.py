"""The deliveries of an App's database, `box.deliveries`: finding them, and what a person does to them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, TypedDict, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere
from todoku.engine import operations
from todoku.engine.operations import ActResult, Replayed
from todoku.engine.outbox import Outbox
from todoku.engine.publish import encode
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.deliveries import Delivery, Filter, Page

R = TypeVar("R")

Id = UUID | int | str
"""A delivery's number, or a message's id, which stands for its unfinished deliveries."""


class DeliveryFilter(TypedDict, total=False):
    """Selects the deliveries that match every keyword. Names are exact: `topic` is no pattern."""

    status: str | None
    topic: str | None
    destination: str | None
    queue: str | None
    reason: str | None
    fingerprint: str | None
    key: str | None
    message_id: UUID | None
    since: datetime | None
    until: datetime | None


class Deliveries:
    """The deliveries of an App's database. Every call has an async form, `a…`.

    An act needs ids or keywords of DeliveryFilter; without both it raises InvalidAct. It is audited with `by` and
    `why`. With `dry_run` it changes nothing and returns what it would do.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    @blocking("box.deliveries")
    async def get(self, id: int) -> Delivery:
        """Returns one delivery by its number. NotThere: there is none, or its retention has passed."""
        return await in_thread(self._get, id)

    aget = asynchronous(get)

    @blocking("box.deliveries")
    async def find(self, *, cursor: str | None = None, limit: int = 100, **which: Unpack[DeliveryFilter]) -> Page:
        """Returns a page of deliveries, newest first: its `items`, and `next`, the cursor of the next page.

        Succeeded deliveries are found only by `status="succeeded"`.
        """
        return await in_thread(self._outbox.store.deliveries.find, Filter(**which), cursor=cursor, limit=limit)

    afind = asynchronous(find)

    @blocking("box.deliveries")
    async def replay(
        self,
        *ids: Id,
        by: str,
        why: str,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        **which: Unpack[DeliveryFilter],
    ) -> Replayed:
        """Runs dead letters again, from attempt 0, oldest first: at most `limit`, at most `rate` a second."""
        act = self._act(operations.replay, ids, which, by, why, limit=limit, rate=rate, dry_run=dry_run)
        done = await in_thread(act)
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
        for status in (None, "succeeded"):
            for found in self._outbox.store.deliveries.find(Filter(ids=(id,), status=status), limit=1).items:
                return found
        raise NotThere(f"there is no delivery {id}", hint="box.deliveries.find(…) lists them; old ones are pruned")

    def _act(
        self, act: Callable[..., R], ids: tuple[Id, ...], which: DeliveryFilter, by: str, why: str, **options: Any
    ) -> Callable[[], R]:
        """The blocking call of an act. What is missing is refused before."""
        if not ids and all(value is None for value in which.values()):
            name = act.__name__
            raise InvalidAct(
                f"{name} needs ids, or a filter", hint=f"box.deliveries.{name}(reason='TIMEOUT', by=…, why=…)"
            )
        signed, store = operations.sign(by, why), self._outbox.store

        def call() -> R:
            numbers = operations.resolve(store, ids) if ids else None
            return act(store, Filter(ids=numbers, **which), signed, **options)

        return call

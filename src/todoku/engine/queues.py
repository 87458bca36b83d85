"""The queues of an App's database, `box.queues`: pausing and limiting them at run time."""

from __future__ import annotations

from todoku.core.outcome import Duration, seconds
from todoku.engine import operations
from todoku.engine.operations import Kind
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.limits import Restriction
from todoku.store.store import Store


class Queues:
    """The queues of an App's database. Every call has an async form, `a…`.

    An act holds for all workers, which obey it within two seconds, and is audited with `by` and `why`. With `dry_run`
    it changes nothing.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @blocking("box.queues")
    async def list(self) -> tuple[Restriction, ...]:
        """Returns the queues that have a pause or a limit, by name."""
        return (await in_thread(self._store.limits.read)).queues

    alist = asynchronous(list)  # noqa: A003 - the method above

    @blocking("box.queues")
    async def pause(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Stops claims from a queue; running attempts go on."""
        await in_thread(operations.pause, self._store, name, operations.sign(by, why), dry_run=dry_run)

    apause = asynchronous(pause)

    @blocking("box.queues")
    async def resume(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Lets workers claim from a queue again."""
        await in_thread(operations.resume, self._store, name, operations.sign(by, why), dry_run=dry_run)

    aresume = asynchronous(resume)

    @blocking("box.queues")
    async def limit(
        self,
        name: str,
        *,
        concurrency: int | None = None,
        rate: float | None = None,
        lasts: Duration | None = None,
        of: Kind | None = None,
        by: str,
        why: str,
        dry_run: bool = False,
    ) -> Kind:
        """Lets all workers together run `concurrency` deliveries at once and start `rate` a second; neither: no limit.

        `lasts`: the limit ends after this time. `of`: whether `name` is a queue or a destination; without it, the
        database decides by what it knows. Returns which of the two it was.
        """
        span = None if lasts is None else seconds(lasts, what="lasts")
        signed = operations.sign(by, why)
        return await in_thread(
            operations.limit, self._store, name, signed,
            of=of, concurrency=concurrency, rate=rate, lasts=span, dry_run=dry_run,
        )  # fmt: skip

    alimit = asynchronous(limit)

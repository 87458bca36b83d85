"""`box.projection(…)`: one projection, and `box.projections`: those of a database."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypedDict, Unpack

import msgspec

from todoku.core.backoff import Backoff, exponential
from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidAct, InvalidSetting, NotThere
from todoku.core.outcome import Duration, Outcome, seconds
from todoku.core.projection import DocumentOf, DocumentSource, SearchServer, default_document
from todoku.core.topic_pattern import Route, pattern
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.operations import sign
from todoku.engine.projections.chronicle import Chronicle, entry_writer
from todoku.engine.projections.comparison import Verified
from todoku.engine.projections.rebuild import RebuildOptions, Rebuilt
from todoku.engine.projections.search_projection import SearchProjection
from todoku.engine.registry import Target
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.projections import IndexRow, ProjectionLag, ProjectionRow
from todoku.store.store import Store

_ATTEMPTS: Final = 10_000
"""A projection gives up on an event only if the event is at fault: a search server may be away for days."""

_BACKOFF: Final[Backoff] = exponential(1.0, cap=60.0)
_FLAG_AGE: Final = 1.0


class RebuildKeywords(TypedDict, total=False):
    """How a rebuild is done: the keywords of `Projection.rebuild`, as in `RebuildOptions`."""

    page: int
    sample: int | None
    switch: bool
    accept: bool
    patience: float


class ProjectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A projection and how far it is behind: unfinished events, and the age of the oldest in seconds."""

    row: ProjectionRow
    lag: ProjectionLag


class Projection:
    """A destination that keeps another store equal to the events of some topics, by key. `box.projection` creates it.

    Every call has an async form, `a…`. What an operator does is audited with `by` and `why`.
    """

    def __init__(self, store: Store, name: str, kind: str, search: SearchProjection | None) -> None:
        self.name = name
        self.kind = kind
        self._store = store
        self._search = search
        self._flag = (False, 0.0)

    def __repr__(self) -> str:
        return f"<Projection {self.name} ({self.kind})>"

    async def apply(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Applies a batch of events, and returns one outcome per event. Workers call it."""
        return await self._indexes("apply").send(batch)

    def declare(self) -> None:
        """Records the projection in the database, once. `box.migrate()` calls it."""
        if self._search is not None:
            self._search.declare()
        else:
            self._store.projections.declare(self.name, self.kind, None)

    @blocking("projection")
    async def flag(self) -> bool:
        """Returns whether readers are to use it: a feature flag that `todoku projection switch --readers` sets.

        It is read from the database at most once a second.
        """
        value, read_at = self._flag
        if time.monotonic() - read_at > _FLAG_AGE or not read_at:
            row = await in_thread(self._store.projections.get, self.name)
            value = row is not None and row.readable
            self._flag = (value, time.monotonic())
        return value

    aflag = asynchronous(flag)

    @blocking("projection")
    async def set_flag(self, on: bool, *, by: str, why: str) -> None:
        """Lets readers use it, or not."""
        await in_thread(self._store.projections.set_readable, self.name, sign(by, why), readable=on)
        self._flag = (on, time.monotonic())

    aset_flag = asynchronous(set_flag)

    @blocking("projection")
    async def lag(self) -> ProjectionLag:
        """Returns how many events are not applied yet, and the age of the oldest in seconds (its freshness)."""
        return await in_thread(self._store.projections.lag, self.name)

    alag = asynchronous(lag)

    @blocking("projection")
    async def status(self) -> ProjectionStatus:
        """Returns its state, its indexes and its lag. NotThere: the database does not have it yet."""
        return await in_thread(read_status, self._store, self.name)

    astatus = asynchronous(status)

    @blocking("projection")
    async def rebuild(
        self, source: DocumentSource | None = None, *, by: str, why: str,
        progress: Callable[[IndexRow], None] = lambda _index: None, **how: Unpack[RebuildKeywords],
    ) -> Rebuilt:  # fmt: skip
        """Builds a new index from the source while events arrive, compares it, and lets readers see it.

        One that was killed goes on where it was. The old index is kept, and written, for `switch(back=True)`.
        """
        options = RebuildOptions(**how)
        job = self._indexes("rebuild").rebuild(source, options, sign(by, why), progress)
        return await in_thread(asyncio.run, job)

    arebuild = asynchronous(rebuild)

    @blocking("projection")
    async def verify(
        self, sample: int | None = None, *, source: DocumentSource | None = None, index: str | None = None,
        progress: Callable[[int], None] = lambda _checked: None,
    ) -> Verified:  # fmt: skip
        """Compares all documents with the source, or about `sample` of them, also while events arrive."""
        return await in_thread(asyncio.run, self._indexes("verify").verify(source, sample, index, progress))

    averify = asynchronous(verify)

    @blocking("projection")
    async def switch(self, *, back: bool = False, by: str, why: str) -> ProjectionRow:
        """Lets readers see the index that a rebuild has made ready; `back`: the one they saw before."""
        return await in_thread(asyncio.run, self._indexes("switch").switch(sign(by, why), back=back))

    aswitch = asynchronous(switch)

    @blocking("projection")
    async def drop(self, index: str | None = None, *, by: str, why: str, patience: float = 60.0) -> tuple[str, ...]:
        """Deletes an index that readers do not see; without `index`, the whole projection. Returns what was deleted.

        It waits until no worker writes the index any more.
        """
        signed = sign(by, why)
        if self._search is None:
            await in_thread(self._store.projections.remove, self.name, signed)
            return ()
        return await in_thread(asyncio.run, self._search.drop(index, signed, patience))

    adrop = asynchronous(drop)

    @blocking("projection")
    async def purge(self, *, older_than: Duration = 7 * 86_400) -> int:
        """Removes documents that were deleted that long ago, unless an older event of their key may still come."""
        span = seconds(older_than, what="older_than")
        return await in_thread(asyncio.run, self._indexes("purge").purge(span))

    apurge = asynchronous(purge)

    def _indexes(self, act: str) -> SearchProjection:
        if self._search is None:
            raise InvalidAct(
                f"{self.name} is a chronicle: there is nothing to {act}",
                hint="its entries commit with their events; replay its dead letters: todoku replay",
            )
        return self._search


class ProjectionOptions(TypedDict, total=False):
    """How a projection is declared: the keywords of `box.projection`.

    `document`: a function that makes a document of a `Change`; if it returns None, the document is deleted. By default
    the payload is the document, and a topic that ends in `.deleted` deletes it. `source`: what a rebuild reads and
    `verify` compares with, a `DocumentSource`. `max_attempts`, `backoff`: of an event that cannot be applied for
    reasons that pass.
    """

    document: DocumentOf | None
    source: DocumentSource | None
    max_attempts: int | None
    backoff: Backoff | None


class Projections:
    """The projections of an App: `box.projections["documents"]`."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self._store = declarations.outbox.store
        self._declared: dict[str, Projection] = {}

    def __getitem__(self, name: str) -> Projection:
        try:
            return self._declared[name]
        except KeyError:
            known = ", ".join(sorted(self._declared)) or "none"
            raise NotThere(f"this App has no projection {name!r}", hint=f"it has: {known}") from None

    def __iter__(self) -> Iterator[Projection]:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    @blocking("box.projections")
    async def list(self) -> tuple[ProjectionStatus, ...]:
        """Returns the projections of the database, by name, with their lag."""
        return await in_thread(list_statuses, self._store)

    alist = asynchronous(list)  # noqa: A003 - the method above

    def announce(self) -> None:
        """Records every declared projection in the database. Blocks."""
        for projection in self:
            projection.declare()

    def declare(
        self, name: str, topics: str | Sequence[str], key: str, to: SearchServer | Chronicle,
        options: ProjectionOptions,
    ) -> Projection:  # fmt: skip
        """Declares a projection; the contract is that of `App.projection`."""
        patterns = (topics,) if isinstance(topics, str) else tuple(topics)
        if not patterns or not key:
            raise InvalidSetting("a projection needs topics and a key", hint='topics="document.*", key="id"')
        for one in patterns:
            pattern(one)
        backoff = options.get("backoff") or _BACKOFF
        if isinstance(to, Chronicle):
            made = self._declare_chronicle(name, to, backoff, options)
        else:
            made = self._declare_search(name, to, backoff, options)
        for one in patterns:
            self._declarations.add_route(Route(
                pattern=one, destination=name, queue=name, ordered=True, key=key,
                on_dead="park" if isinstance(to, Chronicle) else "skip",
                max_attempts=options.get("max_attempts") or _ATTEMPTS,
            ))  # fmt: skip
        self._declared[name] = made
        return made

    def _declare_search(self, name: str, to: Any, backoff: Backoff, options: ProjectionOptions) -> Projection:
        document = options.get("document") or default_document
        search = SearchProjection(self._store, name, to, document, options.get("source"))
        search.use_secrets(self._declarations.outbox.secrets.afilled)
        registry = self._declarations.registry
        registry.add(Target(name=name, queue=name, backoff=backoff, sender=search, batch=to.batch))
        registry.duties.append(search.acknowledge)
        return Projection(self._store, name, to.kind, search)

    def _declare_chronicle(self, name: str, to: Chronicle, backoff: Backoff, options: ProjectionOptions) -> Projection:
        for given in ("document", "source"):
            if options.get(given) is not None:
                raise InvalidSetting(f"a chronicle has no {given}", hint="todoku.chronicle(write) writes its entries")
        self._declarations.registry.add(
            Target(
                name=name, queue=name, backoff=backoff, run="thread", call=entry_writer(to, name),
                transactional=to.into is None,
                reference=f"{to.write.__module__}:{getattr(to.write, '__qualname__', name)}",
            )
        )  # fmt: skip
        return Projection(self._store, name, "chronicle", None)


def read_status(store: Store, name: str) -> ProjectionStatus:
    """Returns a projection of the database with its lag. NotThere: there is none of that name."""
    if (row := store.projections.get(name)) is None:
        raise NotThere(f"there is no projection {name!r} in this database", hint="`todoku projection list` names them")
    return ProjectionStatus(row=row, lag=store.projections.lag(name))


def list_statuses(store: Store) -> tuple[ProjectionStatus, ...]:
    """Returns the projections of the database, by name, with their lag."""
    rows = store.projections.list()
    return tuple(ProjectionStatus(row=row, lag=store.projections.lag(row.name)) for row in rows)

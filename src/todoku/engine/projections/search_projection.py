"""The search kind of a projection: the destination that workers send to, and what an operator does to its indexes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final
from weakref import WeakKeyDictionary

from todoku.core.destination import FillSecrets, Outgoing
from todoku.core.errors import InvalidAct, InvalidSetting, NotThere
from todoku.core.outcome import Outcome
from todoku.core.projection import DocumentOf, DocumentSource, SearchServer, SearchSession, version
from todoku.engine.projections.bulk import BulkSize
from todoku.engine.projections.comparison import PAGE, Comparison, Verified
from todoku.engine.projections.document_writer import DocumentWriter, create_first
from todoku.engine.projections.rebuild import Rebuild, RebuildOptions, Rebuilt, index_name
from todoku.store.audit import Signed
from todoku.store.projections import IndexRow, ProjectionRow
from todoku.store.store import Store

_POLL: Final = 0.1


class SearchProjection:
    """A projection into the indexes of a search server, as a destination and as an operator sees it."""

    def __init__(
        self, store: Store, name: str, server: SearchServer, document: DocumentOf, source: DocumentSource | None
    ) -> None:
        self.name = name
        self.batch = server.batch
        self.kind = server.kind
        self.source = source
        self._store = store
        self._server = server
        self._fill: FillSecrets = _no_secrets
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, SearchSession] = WeakKeyDictionary()
        self._size = BulkSize(server.batch)
        self._writer = DocumentWriter(store, name, document, self._size, self._session, self.declare)

    # ---------------------------------------------------------------------------------- as a destination

    def use_secrets(self, fill: FillSecrets) -> None:
        """Takes what reads the secrets that the server's options name."""
        self._fill = fill

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Applies a batch of events, and returns one outcome per event."""
        return await self._writer.apply(batch)

    async def ping(self) -> None:
        """Raises DeliveryError if the server does not answer."""
        await self._session().ping()

    async def aclose(self) -> None:
        """Closes the connections of this event loop."""
        if (session := self._sessions.pop(asyncio.get_running_loop(), None)) is not None:
            await session.close()

    def declare(self) -> ProjectionRow:
        """Records the projection in the database, once. Blocks."""
        return self._store.projections.declare(self.name, self.kind, index_name(self._server.alias, 1))

    def acknowledge(self) -> None:
        """Lets idle workers acknowledge a new index. Blocks."""
        self._writer.writers.acknowledge()

    # -------------------------------------------------------------------------------------- as an operator

    async def rebuild(
        self,
        source: DocumentSource | None,
        options: RebuildOptions,
        signed: Signed,
        progress: Callable[[IndexRow], None],
    ) -> Rebuilt:
        """Builds, fills and compares a new index, and lets readers see it."""
        found = self._source(source)
        row = await asyncio.to_thread(self.declare)
        async with self._open() as session:
            await create_first(self._store, session, row)
            rebuild = Rebuild(
                self._store, self.name, self._server.alias, source=found, session=session, size=BulkSize(self.batch),
                options=options, signed=signed, progress=progress,
            )  # fmt: skip
            return await rebuild.run()

    async def verify(
        self, source: DocumentSource | None, sample: int | None, index: str | None, progress: Callable[[int], None]
    ) -> Verified:
        """Compares an index, the live one unless another is named, with the source."""
        found = self._source(source)
        row = await self._row()
        one = row.of("live") if index is None else row.index(index)
        if one is None:
            raise NotThere(f"{self.name} has no index {index or 'yet'}", hint="`todoku projection show` names them")
        async with self._open() as session:
            problems = await self._problems(row, one, session)
            if not await session.exists(one.name):
                return Verified(checked=0, differences=(), in_flight=0, source=0, index=0, problems=tuple(problems))
            comparison = Comparison(self._store, self.name, found, session, one.name, progress)
            verified = await comparison.run(sample)
        return Verified(
            checked=verified.checked, differences=verified.differences, in_flight=verified.in_flight,
            source=verified.source, index=verified.index, problems=tuple(problems),
        )  # fmt: skip

    async def switch(self, signed: Signed, *, back: bool) -> ProjectionRow:
        """Lets readers see the index that a rebuild has made ready, or the one they saw before."""
        row = await self._row()
        index = row.of("kept") if back else row.of("building")
        if index is None or (not back and index.phase != "ready"):
            wanted = "kept" if back else "ready"
            raise InvalidAct(f"{self.name} has no {wanted} index", hint=f"see `todoku projection show {self.name}`")
        if not index.written:
            raise InvalidAct(f"{index.name} is not written any more", hint="rebuild: todoku projection rebuild")
        async with self._open() as session:
            if not await session.exists(index.name):
                raise InvalidAct(f"{index.name} is gone from the server", hint="rebuild: todoku projection rebuild")
            await session.point(index.name)
        return await asyncio.to_thread(self._store.projections.switch, self.name, index.name, signed)

    async def drop(self, index: str | None, signed: Signed, patience: float) -> tuple[str, ...]:
        """Deletes an index that readers do not see; None: all of them, and the projection. Returns their names."""
        row = await self._row()
        if index is not None and ((one := row.index(index)) is None or one.role == "live"):
            hint = "name the building or the kept one; `--all` drops the projection"
            raise InvalidAct(f"{self.name} has no index {index!r} that readers do not see", hint=hint)
        names = tuple(one.name for one in row.indexes) if index is None else (index,)
        for name in names:
            row = await asyncio.to_thread(self._store.projections.unwrite, self.name, name)
        await self._await_writers(row.revision, patience)
        async with self._open() as session:
            for name in names:
                await session.remove(name)
        for name in names:
            await asyncio.to_thread(self._store.projections.remove_index, self.name, name, signed)
        if index is None:
            await asyncio.to_thread(self._store.projections.remove, self.name, signed)
        return names

    async def purge(self, older_than: float) -> int:
        """Removes documents that were deleted that long ago, unless an older event of their key may come (R24)."""
        row, number, until = await self._row(), 0, time.time() - older_than
        async with self._open() as session:
            for index in row.written:
                await session.refresh(index.name)
                after: str | None = None
                while page := await session.page(index.name, after, PAGE, deleted=True):
                    after = page[-1].key
                    old = [one for one in page if one.at < until]
                    keys = [one.key for one in old]
                    unfinished = await asyncio.to_thread(self._store.projections.unfinished, self.name, keys)
                    dead = await asyncio.to_thread(self._store.projections.dead, self.name, keys)
                    number += await session.forget(index.name, [
                        one for one in old
                        if one.key not in unfinished
                        and not (one.key in dead and version(index.generation, dead[one.key].sequence) <= one.version)
                    ])  # fmt: skip
        return number

    # -------------------------------------------------------------------------------------------- inside

    def _source(self, given: DocumentSource | None) -> DocumentSource:
        if (found := given or self.source) is None:
            raise InvalidSetting(
                f"the projection {self.name!r} has no source",
                hint="box.projection(…, source=…), see docs/projections.md",
            )
        return found

    async def _row(self) -> ProjectionRow:
        if (row := await asyncio.to_thread(self._store.projections.get, self.name)) is None:
            raise NotThere(f"there is no projection {self.name!r} in this database", hint="run `todoku migrate`")
        return row

    async def _problems(self, row: ProjectionRow, index: IndexRow, session: SearchSession) -> list[str]:
        """Returns what is wrong with the projection as a whole."""
        problems = [f"it is stopped: {row.why}"] if row.state == "stopped" else []
        problems += [
            f"{one.name} cannot be written: it, or its write alias, was deleted by hand"
            for one in row.written
            if one.phase != "waiting" and not await session.exists(one.name)
        ]
        readers, live = await session.readers(), row.of("live")
        if live is not None and live.phase != "waiting" and readers != (live.name,):
            seen = ", ".join(readers) or "nothing"
            problems.append(f"the alias {self._server.alias} points to {seen}, not to {live.name}")
        if index.rejected:
            problems.append(f"{index.name} has rejected {index.rejected} documents that another index took")
        return problems

    async def _await_writers(self, revision: int, patience: float) -> None:
        deadline = time.monotonic() + patience
        while late := await asyncio.to_thread(self._store.projections.late_writers, self.name, revision):
            if time.monotonic() > deadline:
                raise InvalidAct(
                    f"these workers still write the index: {', '.join(late)}", hint="run the same command again later"
                )
            await asyncio.sleep(_POLL)

    def _session(self) -> SearchSession:
        loop = asyncio.get_running_loop()
        if (session := self._sessions.get(loop)) is None:
            session = self._sessions[loop] = self._server.connect(self._fill)
        return session

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[SearchSession]:
        session = self._server.connect(self._fill)
        try:
            yield session
        finally:
            await session.close()


async def _no_secrets(text: str) -> str:
    return text

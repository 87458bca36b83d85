"""A rebuild without a lost write: a new index that workers write from its first second, filled from the source.

Every step is stored, and every step may be repeated: a rebuild that was killed goes on where it was.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from todoku.core.errors import InvalidAct, InvalidMessage
from todoku.core.failure import DeliveryError
from todoku.core.outcome import Abort, Retry
from todoku.core.projection import (
    BACKFILL,
    Difference,
    Document,
    DocumentSource,
    SearchSession,
    Write,
    WriteAnswer,
    judge,
    version,
)
from todoku.engine.projections.bulk import BulkSize, write_all
from todoku.engine.projections.comparison import Comparison, normalize
from todoku.store.audit import Signed
from todoku.store.projections import IndexRow, Phase, ProjectionRow, RebuildProgress
from todoku.store.store import Store

_POLL: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
_LETTERS: Final = 500


class RebuildOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a rebuild is done. `sample`: documents that are compared before the switch; None: all of them.

    `accept`: readers see the new index even if it differs from the source. `patience`: the seconds to wait for workers,
    for the server, and for events that are behind.
    """

    page: int = 500
    sample: int | None = 1000
    switch: bool = True
    accept: bool = False
    patience: float = 300.0


class Rebuilt(msgspec.Struct, frozen=True, kw_only=True):
    """What a rebuild came to. `switched`: whether readers see the new index."""

    index: str
    copied: int
    rejected: int
    differences: tuple[Difference, ...]
    problems: tuple[str, ...]
    switched: bool
    seconds: float


class Rebuild:
    """One run of a rebuild, from its beginning or from where another run was killed."""

    def __init__(
        self, store: Store, name: str, alias: str, *, source: DocumentSource, session: SearchSession, size: BulkSize,
        options: RebuildOptions, signed: Signed, progress: Callable[[IndexRow], None],
    ) -> None:  # fmt: skip
        self._store = store
        self._name = name
        self._alias = alias
        self._source = source
        self._session = session
        self._size = size
        self._options = options
        self._signed = signed
        self._progress = progress

    async def run(self) -> Rebuilt:
        """Builds an index, fills and compares it, and lets readers see it."""
        began = time.monotonic()
        row, index = await self._begin()
        if index.phase == "waiting":
            await self._await_workers(row)
            expected = await asyncio.to_thread(self._source.count)
            index = await self._advance(index, "filling", expected=expected)
        if index.phase == "filling":
            index = await self._fill(index)
        if index.phase == "catching_up":
            await self._catch_up()
            index = await self._advance(index, "comparing")
        await self._session.finish(index.name)
        verified = await Comparison(self._store, self._name, self._source, self._session, index.name).run(
            self._options.sample
        )
        problems = _count_problems(verified.source, verified.index, index.rejected)
        equal = not problems and all(one.dead_letter is not None for one in verified.differences)
        ok = equal or self._options.accept
        if ok:
            index = await self._advance(index, "ready")
        if switched := ok and self._options.switch:
            await self._session.point(index.name)
            await asyncio.to_thread(self._store.projections.switch, self._name, index.name, self._signed)
        return Rebuilt(
            index=index.name, copied=index.copied, rejected=index.rejected, differences=verified.differences,
            problems=problems, switched=switched, seconds=time.monotonic() - began,
        )  # fmt: skip

    async def _begin(self) -> tuple[ProjectionRow, IndexRow]:
        """Returns the index that is being built. A new one exists before any worker hears of it."""
        row = await asyncio.to_thread(self._store.projections.get, self._name)
        if row is not None and (index := row.of("building")) is not None:
            return row, index
        generation = 1 + max((index.generation for index in row.indexes), default=0) if row is not None else 1
        name = index_name(self._alias, generation)
        await self._session.create(name, self._name)
        try:
            row = await asyncio.to_thread(
                self._store.projections.begin_rebuild, self._name, lambda _generation: name, self._signed
            )
        except InvalidAct:
            await self._session.remove(name)
            raise
        return row, next(index for index in row.indexes if index.name == name)

    async def _await_workers(self, row: ProjectionRow) -> None:
        """Waits until every worker writes the new index (R22)."""
        deadline = time.monotonic() + self._options.patience
        while late := await asyncio.to_thread(self._store.projections.late_writers, self._name, row.revision):
            if time.monotonic() > deadline:
                raise InvalidAct(
                    f"these workers do not write the new index of {self._name} yet: {', '.join(late)}",
                    hint="is one of them stopped, or in a long attempt? Run the same command again: it goes on",
                )
            await asyncio.sleep(_POLL)

    async def _fill(self, index: IndexRow) -> IndexRow:
        """Copies the source, page by page, with a version below that of any event (R23)."""
        while page := await asyncio.to_thread(self._source.page, index.position, self._options.page):
            at = time.time()
            writes = [Write(index.name, key, BACKFILL, _plain(key, document), at) for key, document in page]
            rejected = await self._write(index, writes)
            index = await self._advance(
                index, "filling", position=page[-1][0], copied=index.copied + len(page), rejected=rejected
            )
        await self._guard(index)
        return await self._advance(index, "catching_up")

    async def _guard(self, index: IndexRow) -> None:
        """Gives documents with dead letters the version of their last one, so that a replay cannot undo what the source
        says now: the new index does not have the later events that an old one would hold against it (R24)."""
        after = 0
        while letters := await asyncio.to_thread(self._store.projections.dead_letters, self._name, after, _LETTERS):
            last = {letter.key: letter.sequence for letter in sorted(letters, key=lambda one: one.sequence)}
            present, at = await asyncio.to_thread(self._source.get, list(last)), time.time()
            writes = [
                Write(
                    index.name, key, version(index.generation, sequence),
                    _plain(key, present[key]) if key in present else None, at,
                )
                for key, sequence in last.items()
            ]  # fmt: skip
            await self._write(index, writes)
            after = letters[-1].delivery

    async def _write(self, index: IndexRow, writes: Sequence[Write]) -> int:
        """Writes documents, however long the server takes. Returns how many of them were rejected."""
        left, rejected = list(writes), 0
        deadline, pause = time.monotonic() + self._options.patience, _POLL
        while left:
            answers = await write_all(self._session, left, self._size)
            outcomes = [(write, _judged(answer, index.name)) for write, answer in zip(left, answers, strict=True)]
            rejected += sum(isinstance(outcome, Abort) for _, outcome in outcomes)
            left = [write for write, outcome in outcomes if isinstance(outcome, Retry)]
            if left:
                why = next(outcome for _, outcome in outcomes if isinstance(outcome, Retry))
                if time.monotonic() > deadline:
                    raise DeliveryError(why.reason, f"{why.detail}; run the same command again: it goes on")
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)
        return rejected

    async def _catch_up(self) -> None:
        """Waits until every event that was published before the end of the back-fill has been applied."""
        until = await asyncio.to_thread(self._store.projections.newest)
        deadline = time.monotonic() + self._options.patience
        while True:
            lag = await asyncio.to_thread(self._store.projections.lag, self._name)
            if lag.complete and (lag.oldest is None or lag.oldest > until):
                return
            if time.monotonic() > deadline:
                raise InvalidAct(
                    f"{lag.events} events of {self._name} are not applied yet",
                    hint="are workers running? Run the same command again: it goes on",
                )
            await asyncio.sleep(_POLL)

    async def _advance(
        self, index: IndexRow, phase: Phase, *, position: str | None = None, copied: int | None = None,
        expected: int | None = None, rejected: int = 0,
    ) -> IndexRow:  # fmt: skip
        progress = RebuildProgress(
            phase=phase, position=index.position if position is None else position,
            copied=index.copied if copied is None else copied,
            expected=index.expected if expected is None else expected, rejected=rejected,
        )  # fmt: skip
        index = await asyncio.to_thread(self._store.projections.advance, self._name, index, progress)
        self._progress(index)
        return index


def index_name(alias: str, generation: int) -> str:
    """Returns the name of a new index: no earlier one can have it, not even one of a database that was restored."""
    return f"{alias}-{generation:04d}-{os.urandom(3).hex()}"


def _plain(key: str, document: Document) -> Document:
    try:
        return normalize(document)
    except InvalidMessage as error:
        raise InvalidMessage(f"the document {key!r} of the source: {error}", hint="see page() of the source") from error


def _judged(answer: WriteAnswer | DeliveryError, index: str) -> object:
    if isinstance(answer, WriteAnswer):
        return judge(answer, index)
    return (
        Retry(reason=answer.reason, detail=answer.detail) if answer.retryable else Abort(answer.reason, answer.detail)
    )


def _count_problems(source: int, index: int, rejected: int) -> tuple[str, ...]:
    """Compares the numbers of documents, within one in a hundred: events arrive between the two counts."""
    around = max(10, source // 100)
    if source - rejected - around <= index <= source + around:
        return ()
    return (f"the source has {source} documents ({rejected} were rejected), the index has {index}",)

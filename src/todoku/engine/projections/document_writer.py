"""Writes the documents of events to every index of a projection, each with its version and its own outcome."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.destination import Outgoing
from todoku.core.errors import NotThere, StoreError
from todoku.core.failure import DeliveryError, classify
from todoku.core.outcome import DONE, Abort, Done, Outcome, Retry, Snooze
from todoku.core.projection import (
    SUPERSEDED,
    Change,
    Document,
    DocumentOf,
    SearchSession,
    Write,
    WriteAnswer,
    judge,
    version,
    worse,
)
from todoku.engine.projections.bulk import BulkSize, write_all
from todoku.engine.projections.writers import Writers
from todoku.store.projections import IndexRow, ProjectionRow
from todoku.store.store import Store

LONGEST_ID: Final = 512
"""Bytes of a document's id, at most: the server refuses a whole request for one that is longer."""

_STOPPED: Final = Snooze(30.0)
_UNAVAILABLE: Final = Snooze(1.0)
_NO_WORKER: Final = UUID(int=0)
"""Stands for a caller that is no worker, as in a test that runs handlers inline."""


class Prepared(msgspec.Struct, frozen=True):
    """An event with its document (None: it deletes it), ready to be written."""

    key: str
    sequence: int
    document: Document | None
    at: float


class DocumentWriter:
    """Applies batches of events to the indexes of one projection."""

    def __init__(
        self, store: Store, name: str, document: DocumentOf, size: BulkSize,
        session: Callable[[], SearchSession], declare: Callable[[], object],
    ) -> None:  # fmt: skip
        self._store = store
        self._name = name
        self._document = document
        self._size = size
        self._session = session
        self.writers = Writers(store, name, declare, self._examine)

    async def apply(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Applies a batch, and returns one outcome per event. One bad event does not fail its neighbours (I13)."""
        workers = {message.worker or _NO_WORKER for message in batch}
        try:
            row = await self.writers.enter(workers)
        except (StoreError, NotThere):  # the heartbeat counts and logs failures of the database
            return [_UNAVAILABLE] * len(batch)
        except DeliveryError as error:  # no event is at fault if its index cannot be created or examined
            reason = error.reason if error.retryable else "SEARCH_SETUP"
            return [Retry(reason=reason, detail=error.detail)] * len(batch)
        try:
            if row.state == "stopped" or not row.written:
                return [_STOPPED] * len(batch)
            return await self._apply(row, [self._prepare(message) for message in batch])
        finally:
            await self.writers.leave(row)

    def _prepare(self, message: Outgoing) -> Prepared | Outcome:
        if message.sequence is None or message.key is None:
            text = (
                "its route is not ordered, or it has no key: two changes of a key could be written in the wrong order"
            )
            return Abort("UNORDERED", text)
        if len(message.key.encode()) > LONGEST_ID:
            return Abort("TOO_LARGE", f"its key has more than {LONGEST_ID} bytes, a document's id cannot")
        try:
            document = self._document(read_change(message))
        except Exception as error:  # noqa: BLE001 - the function is the user's: any exception is an outcome of this event
            return classify(error)
        return Prepared(message.key, message.sequence, document, message.created_at)

    async def _apply(self, row: ProjectionRow, events: list[Prepared | Outcome]) -> list[Outcome]:
        places = _newest_places(events)
        writes, owners = _writes(row, events, places)
        answers = await write_all(self._session(), writes, self._size)
        found: dict[str, Outcome] = {}
        rejected: Counter[str] = Counter()
        conflicts: list[tuple[IndexRow, Write]] = []
        for write, index, answer in zip(writes, owners, answers, strict=True):
            outcome = _outcome(answer, write.index)
            if isinstance(outcome, Abort) and index is not row.written[0]:
                rejected[index.name] += 1
                outcome = DONE
            if isinstance(answer, WriteAnswer) and answer.status == 409:
                conflicts.append((index, write))
            found[write.key] = worse(found.get(write.key, DONE), outcome)
        for key, outcome in (await self._resolve(row, conflicts)).items():
            settled = isinstance(outcome, Snooze) or isinstance(found[key], Done)
            found[key] = outcome if settled else worse(found[key], outcome)
        for index_name, number in rejected.items():
            await asyncio.to_thread(self._store.projections.reject, self._name, index_name, number)
        return [_ended(event, place, places, found) for place, event in enumerate(events)]

    # -------------------------------------------------------------------------- what the index already has

    async def _resolve(self, row: ProjectionRow, conflicts: Sequence[tuple[IndexRow, Write]]) -> dict[str, Outcome]:
        """Returns the outcomes of writes that the server refused because of their versions.

        It has this change, or a later one: a success. Its version is above everything that the database has drawn: the
        database was restored, and the projection stops (R21).
        """
        found: dict[str, Outcome] = {}
        for index in {index.name: index for index, _ in conflicts}.values():
            asked = {write.key: write for owner, write in conflicts if owner.name == index.name}
            stored = await self._session().read(index.name, list(asked))
            newest = await asyncio.to_thread(self._store.projections.newest)
            for key, write in asked.items():
                has = stored[key].version if key in stored else 0
                if has > version(index.generation, newest):
                    await self._stop(index, has, newest)
                    found[key] = _STOPPED
                elif index is row.written[0] or key not in found:
                    found[key] = _resolved(has, write)
        return found

    async def _examine(self, row: ProjectionRow) -> ProjectionRow:
        """Looks at the indexes before a worker's first write: creates the first one; stops if one is ahead (R21)."""
        session = self._session()
        row = await create_first(self._store, session, row)
        for index in row.written:
            has = await session.newest(index.name)
            newest = await asyncio.to_thread(self._store.projections.newest)
            if has > version(index.generation, newest):
                await self._stop(index, has, newest)
                return msgspec.structs.replace(row, state="stopped")
        return row

    async def _stop(self, index: IndexRow, has: int, newest: int) -> None:
        why = (
            f"{index.name} has event {has - version(index.generation, 0)}, the database has drawn {newest} numbers: "
            f"it was restored or replaced. Rebuild: todoku projection rebuild {self._name}"
        )
        await asyncio.to_thread(self._store.projections.stop, self._name, why)
        self.writers.forget()


async def create_first(store: Store, session: SearchSession, row: ProjectionRow) -> ProjectionRow:
    """Creates the first index of a projection, and shows it to readers if they see no other. Returns the projection."""
    if (live := row.of("live")) is None or live.phase != "waiting":
        return row
    await session.create(live.name, row.name)
    await session.finish(live.name)
    if not await session.readers():
        await session.point(live.name)
    return await asyncio.to_thread(store.projections.created, row.name, live.name)


def read_change(message: Outgoing) -> Change:
    """Returns an event as the user's function gets it. msgspec.DecodeError: its payload is not JSON."""
    return Change(
        topic=message.topic, key=message.key or "", payload=msgspec.json.decode(message.payload),
        sequence=message.sequence or 0, message_id=message.message_id, created_at=message.created_at,
        headers=message.headers,
    )  # fmt: skip


def _newest_places(events: Sequence[Prepared | Outcome]) -> dict[str, int]:
    """Returns the place of the last event of each key: only that is written (R24)."""
    places: dict[str, int] = {}
    for place, event in enumerate(events):
        if isinstance(event, Prepared):
            before = events[places[event.key]] if event.key in places else None
            if not isinstance(before, Prepared) or before.sequence <= event.sequence:
                places[event.key] = place
    return places


def _writes(
    row: ProjectionRow, events: Sequence[Prepared | Outcome], places: Mapping[str, int]
) -> tuple[list[Write], list[IndexRow]]:
    """Returns the writes of all events to all indexes, and the index of each."""
    writes: list[Write] = []
    owners: list[IndexRow] = []
    for place in places.values():
        if isinstance(event := events[place], Prepared):
            for index in row.written:
                number = version(index.generation, event.sequence)
                writes.append(Write(index.name, event.key, number, event.document, event.at))
                owners.append(index)
    return writes, owners


def _outcome(answer: WriteAnswer | DeliveryError, index: str) -> Outcome:
    return judge(answer, index) if isinstance(answer, WriteAnswer) else classify(answer)


def _resolved(has: int, write: Write) -> Outcome:
    if has > write.version:
        return SUPERSEDED
    if has == write.version:
        return DONE
    return Retry(1.0, "SEARCH_FAILED", f"{write.index}: refused version {write.version}, and has {has}")


def _ended(event: Prepared | Outcome, place: int, places: Mapping[str, int], found: Mapping[str, Outcome]) -> Outcome:
    if not isinstance(event, Prepared):
        return event
    outcome = found[event.key]
    if places[event.key] == place:
        return outcome
    if isinstance(outcome, Done):
        return SUPERSEDED
    return (
        Retry(0.0, "COALESCED", "a later event of its key was not written") if isinstance(outcome, Abort) else outcome
    )

"""Compares an index with its source, while events arrive.

A difference counts only if it stays: the key has no unfinished delivery, and a second look finds the same source and
the same version. Everything that was committed before the first look has then been applied before the second.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from todoku.core.projection import (
    Difference,
    DifferenceKind,
    Document,
    DocumentSource,
    SearchSession,
    Stored,
    compare,
    document_digest,
)
from todoku.engine.publish import encode
from todoku.store.store import Store

PAGE: Final = 500
_RUN: Final = 20
"""Neighbours in the source that a sample looks at from each random place."""

_LOOKS: Final = 50
_PAUSE: Final = 0.1
_SHOWN: Final = 1000
"""Differences that are reported, at most."""


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify` found. `problems`: what is wrong with the projection as a whole, in sentences."""

    checked: int
    differences: tuple[Difference, ...]
    in_flight: int
    """Keys that kept changing, and could not be compared."""
    source: int
    """Documents that the source has, about."""
    index: int
    """Documents that readers see."""
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.differences and not self.problems


class _Found(msgspec.Struct, frozen=True):
    """How one key differed at one look."""

    kind: DifferenceKind
    source: str
    version: int


class Comparison:
    """Compares the documents of one index with those of its source."""

    def __init__(
        self, store: Store, name: str, source: DocumentSource, session: SearchSession, index: str,
        progress: Callable[[int], None] = lambda _checked: None,
    ) -> None:  # fmt: skip
        self._store = store
        self._name = name
        self._source = source
        self._session = session
        self._index = index
        self._progress = progress
        self._checked = 0
        self._in_flight = 0
        self._differences: dict[str, Difference] = {}

    async def run(self, sample: int | None) -> Verified:
        """Compares all documents, or about `sample` of them, at random, from both sides."""
        await self._session.refresh(self._index)
        if sample is None:
            await self._compare_all()
        else:
            await self._compare_some(sample)
        return Verified(
            checked=self._checked,
            differences=tuple(self._differences[key] for key in sorted(self._differences)[:_SHOWN]),
            in_flight=self._in_flight,
            source=await asyncio.to_thread(self._source.count),
            index=await self._session.count(self._index),
        )

    async def _compare_all(self) -> None:
        after: str | None = None
        while page := await asyncio.to_thread(self._source.page, after, PAGE):
            await self._compare([key for key, _ in page])
            after = page[-1][0]
        after = None
        while found := await self._session.page(self._index, after, PAGE):
            await self._compare([one.key for one in found], counted=False)
            after = found[-1].key

    async def _compare_some(self, sample: int) -> None:
        """Half of the keys come from the index; the others are neighbours of these in the source."""
        half = max(1, sample // 2)
        keys = [one.key for one in await self._session.sample(self._index, min(half, 10_000))]
        for some in _chunks(keys):
            await self._compare(some)
        starts: list[str | None] = [None, *keys]
        for start in starts[: max(1, half // _RUN)]:
            page = await asyncio.to_thread(self._source.page, start, _RUN)
            await self._compare([key for key, _ in page])

    async def _compare(self, keys: Sequence[str], *, counted: bool = True) -> None:
        """Compares these keys."""
        left = list(keys)
        self._checked += len(keys) if counted else 0
        before: dict[str, _Found] = {}
        for _ in range(_LOOKS):
            found = await self._look(left)
            moving = await asyncio.to_thread(self._store.projections.unfinished, self._name, list(found))
            settled = {key for key in found if before.get(key) == found[key]}
            await self._report({key: found[key] for key in settled})
            before = {key: one for key, one in found.items() if key not in moving and key not in settled}
            left = [key for key in found if key not in settled]
            if not left:
                break
            if moving:
                await asyncio.sleep(_PAUSE)
        self._in_flight += len(left)
        self._progress(self._checked)

    async def _look(self, keys: Sequence[str]) -> dict[str, _Found]:
        """Returns how these keys differ now. The source is read first: what it has was published before."""
        wanted = await asyncio.to_thread(self._source.get, list(keys))
        stored = await self._session.read(self._index, list(keys))
        return {key: one for key in keys if (one := _differ(wanted.get(key), stored.get(key))) is not None}

    async def _report(self, found: Mapping[str, _Found]) -> None:
        dead = await asyncio.to_thread(self._store.projections.dead, self._name, list(found))
        for key, one in found.items():
            letter = dead[key].delivery if key in dead else None
            self._differences[key] = Difference(key=key, kind=one.kind, version=one.version or None, dead_letter=letter)


def normalize(document: Document) -> Document:
    """Returns a document as it is after its way through a message: plain JSON values."""
    plain: Document = json.loads(encode(dict(document)))
    return plain


def _differ(wanted: Document | None, stored: Stored | None) -> _Found | None:
    plain = None if wanted is None else normalize(wanted)
    if (kind := compare(plain, stored)) is None:
        return None
    return _Found(kind, "" if plain is None else document_digest(plain), 0 if stored is None else stored.version)


def _chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    return (keys[start : start + PAGE] for start in range(0, len(keys), PAGE))

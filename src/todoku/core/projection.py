"""Projections: the version of a document, what a search server's answer means, and how two documents are compared."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from todoku.core.identity import digest
from todoku.core.outcome import DONE, Abort, Done, Outcome, Retry

Json = Any
Document = Mapping[str, Json]

GENERATION: Final = 1 << 48
"""Messages of one generation: their numbers are below this."""

BACKFILL: Final = 1
"""The version of a document that a rebuild read from the source. Every event has a higher one (R23)."""

FIELD: Final = "todoku"
"""The field of a document that is todoku's own: key, version, deleted, at."""

SUPERSEDED: Final = Done('"superseded"')
"""The index already has a later change of this key."""

IndexRole = Literal["live", "building", "kept"]


def version(generation: int, sequence: int) -> int:
    """Returns the version of a change (R21). `sequence`: the message's number, drawn under the lock of its key."""
    return generation * GENERATION + sequence


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One event as a projection gets it. `payload` is decoded; `sequence` rises with each event of a key."""

    topic: str
    key: str
    payload: Json
    sequence: int
    message_id: str
    created_at: float
    headers: dict[str, str]


class Write(msgspec.Struct, frozen=True):
    """One document to write to one index; `document` None: it is deleted."""

    index: str
    key: str
    version: int
    document: Document | None
    at: float


class WriteAnswer(msgspec.Struct, frozen=True):
    """What the server answered about one write: an HTTP status and, if it failed, the kind of error and its text."""

    status: int
    kind: str = ""
    text: str = ""


class Stored(msgspec.Struct, frozen=True):
    """A document as an index has it; `document` None: it is marked as deleted. `place` identifies this very write."""

    key: str
    version: int
    document: Document | None
    at: float = 0.0
    place: tuple[int, int] = (0, 0)


Fill = Callable[[str], Awaitable[str]]
"""Returns a text with the values of the secrets that it names."""


class SearchSession(Protocol):
    """A connection to a search server, in one event loop. Errors of the client library leave it as DeliveryError."""

    async def write(self, writes: Sequence[Write]) -> list[WriteAnswer]:
        """Sends one `_bulk` request. Returns one answer per write."""

    async def read(self, index: str, keys: Sequence[str]) -> dict[str, Stored]:
        """Returns the documents of these keys as they are now, also deleted ones."""

    async def page(self, index: str, after: str | None, limit: int, *, deleted: bool = False) -> list[Stored]:
        """Returns documents by key, those behind `after`: the ones that readers see, or the deleted ones."""

    async def sample(self, index: str, number: int) -> list[Stored]:
        """Returns documents that readers see, at random."""

    async def count(self, index: str) -> int:
        """Returns how many documents readers see."""

    async def newest(self, index: str) -> int:
        """Returns the highest version in an index, 0 if it is empty. It sees every write that was answered."""

    async def create(self, index: str, projection: str) -> None:
        """Creates an index, unless this projection has it already."""

    async def exists(self, index: str) -> bool:
        """Whether there is an index that can be written."""

    async def refresh(self, index: str) -> None:
        """Makes what was written visible to searches, now."""

    async def finish(self, index: str) -> None:
        """Makes what was written visible to searches, now and from now on: a new index is filled faster without."""

    async def readers(self) -> tuple[str, ...]:
        """Returns the indexes that the readers' alias points to."""

    async def point(self, index: str) -> None:
        """Points the readers' alias to one index, in one call."""

    async def remove(self, index: str) -> None:
        """Deletes an index. It may be gone already."""

    async def forget(self, index: str, stored: Sequence[Stored]) -> int:
        """Deletes these very documents for good, unless they were written again. Returns how many."""

    async def ping(self) -> None:
        """Raises DeliveryError if the server does not answer."""

    async def close(self) -> None:
        """Closes the connection."""


class SearchServer(Protocol):
    """A search server and the alias under which readers find a projection."""

    kind: str
    alias: str
    batch: int
    """Documents in one `_bulk` request, at most."""

    def connect(self, fill: Fill) -> SearchSession:
        """Returns a session for the running event loop. It connects when it is first used."""


class DocumentSource(Protocol):
    """Where the documents come from: what a rebuild reads, and what `verify` compares with.

    The calls block, and run in a thread. Keys are those of the events.
    """

    def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Document]]:
        """Returns (key, document) in an order of your own, at most `limit`: those behind `after`; None: the first."""

    def get(self, keys: Sequence[str]) -> Mapping[str, Document]:
        """Returns the documents of these keys; those that do not exist are left out."""

    def count(self) -> int:
        """Returns how many documents there are, about."""


DocumentOf = Callable[[Change], Document | None]


def default_document(change: Change) -> Document | None:
    """Returns the payload; a topic that ends in `.deleted` deletes the document."""
    if change.topic.rpartition(".")[2] == "deleted":
        return None
    if not isinstance(change.payload, dict):
        raise Abort("BAD_PAYLOAD", f"a document is a JSON object, not {type(change.payload).__name__}")
    return change.payload


# ------------------------------------------------------------
# What an answer means.

TRANSIENT: Final = frozenset(
    {"SEARCH_DOWN", "SEARCH_TIMEOUT", "SEARCH_BUSY", "SEARCH_DENIED", "SEARCH_FAILED", "SEARCH_BLOCKED", "SEARCH_SETUP"}
)
"""Reasons that are the server's fault and not the document's."""


def judge(answer: WriteAnswer, index: str) -> Outcome:
    """Returns the outcome of one item of a `_bulk` answer. A conflict (409) is a success: see `SUPERSEDED`."""
    status, text = answer.status, f"{index}: {answer.text}"
    if 200 <= status < 300 or status == 409:
        return DONE
    if "block" in answer.kind:  # a full disk makes indexes read-only: 403 or 429, by version
        return Retry(reason="SEARCH_BLOCKED", detail=text)
    if status == 429:
        return Retry(reason="SEARCH_BUSY", detail=text)
    if status == 404:
        hint = "it was deleted by hand: `todoku projection rebuild`, or `drop` if it is only kept"
        return Retry(reason="SEARCH_MISSING", detail=f"{text}; {hint}")
    if status in (401, 403):
        return Retry(reason="SEARCH_DENIED", detail=text)
    if status >= 500:
        return Retry(reason="SEARCH_FAILED", detail=text)
    field = _FIELD_NAME.search(answer.text)
    return Abort("SEARCH_REJECTED", f"field {field[1]}: {text}" if field else text)


_FIELD_NAME: Final = re.compile(
    r"(?:field|introduction of|existing mapping for|object mapping for|parse) \[([^\]]+)\]", re.IGNORECASE
)
"""Where the texts of mapping errors name the field."""


def worse(one: Outcome, other: Outcome) -> Outcome:
    """Returns the outcome that decides, if a change has two: a failure before a success, a retry before an abort."""
    order = {Retry: 2, Abort: 1}
    return other if order.get(type(other), 0) > order.get(type(one), 0) else one


# ------------------------------------------------------------
# Comparing.

DifferenceKind = Literal["missing", "stale", "extra"]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """A document that is not as its source says: missing, stale, or extra (the source does not have it).

    `dead_letter`: the number of a dead letter of this key, if that may be the cause.
    """

    key: str
    kind: DifferenceKind
    version: int | None = None
    dead_letter: int | None = None


def compare(wanted: Document | None, stored: Stored | None) -> DifferenceKind | None:
    """Returns how an index differs from its source in one key; None: it does not."""
    found = None if stored is None else stored.document
    if wanted is None:
        return None if found is None else "extra"
    if found is None:
        return "missing"
    return None if document_digest(wanted) == document_digest(found) else "stale"


def document_digest(document: Document) -> str:
    """Returns the digest of a document without todoku's own field: equal documents have equal digests."""
    return digest(dict(document), excluded=(FIELD,))

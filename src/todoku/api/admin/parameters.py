"""The words in which the admin API is asked: typed, bounded, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from todoku.api.problem import Refused
from todoku.store.audit import Signed
from todoku.store.filter import Filter

Text = Annotated[str, Meta(min_length=1, max_length=2048, pattern=r"^[^\x00]*$")]
Why = Annotated[
    str, Meta(min_length=1, max_length=2000, pattern=r"^[^\x00]*[^\x00\s][^\x00]*$", description="For the audit.")
]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Moment = Annotated[datetime, Meta(tz=True)]
Cursor = Annotated[str, Meta(min_length=1, max_length=64, description="`next` of the page before.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="At most so many.")]
Status = Literal["pending", "sending", "succeeded", "failed", "aborted"]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody said. A field that is not known is refused."""


class ByNumber(Parameters, frozen=True, kw_only=True):
    """The number of a delivery, in a path."""

    id: Number


class ByMessage(Parameters, frozen=True, kw_only=True):
    """The id of a message, in a path."""

    id: UUID


class ById(Parameters, frozen=True, kw_only=True):
    """An id, in a path."""

    id: UUID


class ByName(Parameters, frozen=True, kw_only=True):
    """A name, in a path."""

    name: Text


class Reasoned(Parameters, frozen=True, kw_only=True):
    """Why somebody does it."""

    why: Why


class Selecting(Parameters, frozen=True, kw_only=True):
    """Which deliveries; what is left out does not filter."""

    topic: Text | None = None
    destination: Text | None = None
    queue: Text | None = None
    reason: Text | None = None
    key: Text | None = None
    message_id: UUID | None = None
    since: Moment | None = None
    until: Moment | None = None


class Listing(Selecting, frozen=True, kw_only=True):
    """A part of the list of such deliveries."""

    cursor: Cursor | None = None
    limit: Limit = 50


class Act(Selecting, frozen=True, kw_only=True):
    """An act on deliveries. One that selects nothing must say `all`. `dry_run`: only say what it would do."""

    ids: Annotated[list[Number], Meta(min_length=1, max_length=500)] | None = None
    all: bool = False
    why: Why
    dry_run: bool = False


def filter_of(asked: Selecting, **more: object) -> Filter:
    """A filter of what was said."""
    return Filter(
        topic=asked.topic,
        destination=asked.destination,
        queue=asked.queue,
        reason=asked.reason,
        key=asked.key,
        message_id=asked.message_id,
        since=at(asked.since, "since"),
        until=at(asked.until, "until"),
        **more,  # type: ignore[arg-type]
    )


def selected(act: Act, **more: object) -> Filter:
    """The filter of an act. Refused: 422, if it would be about everything and does not say so."""
    which = filter_of(act, ids=None if act.ids is None else tuple(act.ids), **more)
    if not act.all and filter_of(act) == Filter() and act.ids is None:
        raise Refused(422, "this would be about everything", hint='select by a field, or say "all": true')
    return which


def signed(by: str, act: Act | Reasoned) -> Signed:
    """Who does it, and why."""
    return Signed(by, act.why)


def at(moment: datetime | None, name: str) -> datetime | None:
    """A moment in UTC. Refused: 422, if it is outside of what a calendar holds."""
    try:
        return None if moment is None else moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise Refused(422, f"`{name}` is out of range") from None

"""The parameters of the admin API: typed and bounded; unknown ones are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from todoku.api.problem import Refused
from todoku.core.msgspec_warmup import warm_up
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter

Text = Annotated[str, Meta(min_length=1, max_length=2048, pattern=r"^[^\x00]*$")]
Why = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=2000,
        pattern=r"^[^\x00]*[^\x00\s][^\x00]*$",
        description="The reason, recorded in the audit.",
    ),
]
Fingerprint = Annotated[
    str, Meta(max_length=64, pattern=r"^[^\x00]*$", description="Of the traceback; empty: of deliveries without one.")
]
Number = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Moment = Annotated[datetime, Meta(tz=True)]
Cursor = Annotated[str, Meta(min_length=1, max_length=64, description="`next` of the previous page.")]
Limit = Annotated[int, Meta(ge=1, le=500, description="The largest number of items to return.")]
Status = Literal["pending", "sending", "succeeded", "failed", "aborted"]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of a request. Unknown fields are refused."""


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
    """The reason for a change."""

    why: Why


warm_up(ByName, Reasoned)


class Selecting(Parameters, frozen=True, kw_only=True):
    """Selects deliveries. A field that is left out does not filter."""

    topic: Text | None = None
    destination: Text | None = None
    queue: Text | None = None
    reason: Text | None = None
    fingerprint: Fingerprint | None = None
    key: Text | None = None
    label: Text | None = None
    message_id: UUID | None = None
    since: Moment | None = None
    until: Moment | None = None


class Listing(Selecting, frozen=True, kw_only=True):
    """Selects one page of deliveries."""

    cursor: Cursor | None = None
    limit: Limit = 50


class Act(Selecting, frozen=True, kw_only=True):
    """A change of the selected deliveries. Without any filter, `all` is required. `dry_run`: only count them."""

    ids: Annotated[list[Number], Meta(min_length=1, max_length=500)] | None = None
    all: bool = False
    why: Why
    dry_run: bool = False


def filter_of(query: Selecting, **more: object) -> Filter:
    """Returns the filter of a selection."""
    return Filter(
        topic=query.topic,
        destination=query.destination,
        queue=query.queue,
        reason=query.reason,
        fingerprint=query.fingerprint,
        key=query.key,
        label=query.label,
        message_id=query.message_id,
        since=in_utc(query.since, "since"),
        until=in_utc(query.until, "until"),
        **more,  # type: ignore[arg-type]
    )


def act_filter(act: Act, **more: object) -> Filter:
    """Returns the filter of a change. Raises Refused (422) if it would match everything without `all`."""
    which = filter_of(act, ids=None if act.ids is None else tuple(act.ids), **more)
    if not act.all and filter_of(act) == Filter() and act.ids is None:
        raise Refused(422, "this would change all deliveries", hint='filter by a field, or set "all": true')
    return which


def signed(by: str, act: Act | Reasoned) -> Signed:
    """Returns the author and the reason of a change, for the audit."""
    return Signed(by, act.why)


def in_utc(moment: datetime | None, name: str) -> datetime | None:
    """Returns the moment in UTC. Raises Refused (422) if UTC cannot represent it."""
    try:
        return None if moment is None else moment.astimezone(UTC)
    except (OverflowError, ValueError):
        raise Refused(422, f"`{name}` is out of range") from None

"""How the columns of both databases become Python values."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.outcome import Response

T = TypeVar("T")
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(unix_seconds: float) -> datetime:
    """Unix seconds as an aware datetime, exact to the microsecond."""
    return datetime.fromtimestamp(round(unix_seconds, 6), UTC)


def moment_or_none(unix_seconds: float | None) -> datetime | None:
    """`moment` of a column that may be null."""
    return None if unix_seconds is None else moment(unix_seconds)


def uuid(value: UUID | str) -> UUID:
    """An id: PostgreSQL returns a UUID, SQLite its text."""
    return value if isinstance(value, UUID) else UUID(value)


def uuid_or_none(value: UUID | str | None) -> UUID | None:
    """`uuid` of a column that may be null."""
    return None if value is None else uuid(value)


def read_response(text: str | None) -> Response | None:
    """The HTTP response that was stored with an attempt, if there is one."""
    return None if text is None else msgspec.json.decode(text, type=Response)


def build(kind: Callable[..., T], *fields: object) -> T:
    """Builds a value from the columns of a row. The query fixes their types; the type checker cannot see them."""
    return kind(*fields)

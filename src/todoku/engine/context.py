"""What a handler sees of its attempt: the message, the attempt, its deadline, its transaction."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.ending import BATCH
from todoku.core.errors import NoTransaction
from todoku.core.message import Claimed
from todoku.engine.observability.log import Log
from todoku.engine.observability.send_span import send_span

S = TypeVar("S")

SCHEDULED_AT: Final = "todoku-scheduled-at"
"""The header that tells a scheduled message which slot it is for."""


class Context:
    """One attempt, as its handler sees it. Take it as the first argument: `ctx: todoku.Context`."""

    __slots__ = ("_cancelled", "_ends", "_session", "_tx", "claim")

    def __init__(self, claim: Claimed, ends: float = 0.0, tx: Any = None) -> None:
        self.claim = claim
        self._ends = ends
        self._tx = tx
        self._session: Any = None
        self._cancelled = False

    @property
    def message_id(self) -> UUID:
        """The public id of the message: the same on every attempt and at every destination."""
        return UUID(self.claim.message_id)

    @property
    def idempotency_key(self) -> str:
        """What to hand to the outside so that it can tell a repetition: the same on every attempt of this delivery."""
        return f"{self.claim.message_id}:{self.claim.destination}"

    @property
    def delivery_id(self) -> int:
        """The number of the delivery: the same on every attempt, and what `todoku list` shows."""
        return self.claim.id

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.claim.topic

    @property
    def key(self) -> str | None:
        """The key of the message: what shares it and is ordered arrives in order."""
        return self.claim.key

    @property
    def headers(self) -> dict[str, str]:
        """The headers the message was published with; they may be handed on."""
        headers = msgspec.json.decode(self.claim.headers, type=dict[str, str]) if self.claim.headers else {}
        headers.pop(BATCH, None)  # who belongs to a batch is not for handlers to say
        return headers

    @property
    def priority(self) -> int:
        """0 to 15, larger is sooner."""
        return self.claim.priority

    @property
    def scheduled_at(self) -> datetime | None:
        """Of a message that a schedule published: the time of its slot, however late it runs. Else None."""
        at = self.headers.get(SCHEDULED_AT)
        return None if at is None else datetime.fromisoformat(at)

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.claim.attempt

    @property
    def max_attempts(self) -> int:
        """How many there may be."""
        return self.claim.max_attempts

    @property
    def deadline(self) -> float:
        """When this attempt must have ended, by `time.monotonic()`."""
        return self._ends

    @property
    def remaining(self) -> float:
        """How many seconds are left of it."""
        return max(0.0, self._ends - time.monotonic())

    @property
    def log(self) -> Log:
        """A logger that names the message in each of its lines."""
        claim = self.claim
        return Log(
            message_id=claim.message_id,
            outbox_id=claim.id,
            topic=claim.topic,
            adapter=claim.destination,
            attempts=claim.attempt,
        )

    def trace_send(self, adapter: str) -> AbstractContextManager[None]:
        """A span `broker.send` around a send that the handler makes itself: `with ctx.trace_send("smtp"): …`.

        A child of this attempt's span, with the adapter's name and the round trip; what the adapter opens is its child.
        Without OpenTelemetry, and in an attempt that is not sampled, it does nothing.
        """
        return send_span(self.claim, adapter)

    @property
    def tx(self) -> Any:
        """The open transaction of a `transactional=True` handler: a sqlite3 or psycopg connection."""
        if self._tx is None:
            raise NoTransaction(
                f"{self.claim.destination} has no transaction of its own", hint="declare it with transactional=True"
            )
        return self._tx

    def session(self, kind: Callable[..., S]) -> S:
        """A SQLAlchemy session on that transaction: `ctx.session(Session)`. Do not commit it: todoku does."""
        if self._session is None:
            from todoku.engine.session import session_on  # noqa: PLC0415 - only where SQLAlchemy is

            self._session = session_on(self.tx, kind)
        return self._session  # type: ignore[no-any-return]

    def join(self, tx: Any, session: Any = None) -> None:
        """The handler's transaction is open; `session`: there is one on it already."""
        self._tx, self._session = tx, session

    def flush(self) -> None:
        """The handler is done: what its session has not written yet is written now, before the settle."""
        if self._session is not None:
            self._session.flush()

    def cancelled(self) -> bool:
        """Whether somebody asked for this attempt to stop: a long handler looks now and then."""
        return self._cancelled

    def cancel(self) -> None:
        """Ask the handler to stop; it learns it from `cancelled()`."""
        self._cancelled = True

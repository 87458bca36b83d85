"""The context of an attempt, as its handler sees it: message, attempt number, deadline, transaction."""

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
from todoku.engine.observability.log import Log, to_json_types
from todoku.engine.observability.message_headers import correlation_id, decode_headers
from todoku.engine.observability.send_span import send_span

S = TypeVar("S")

SCHEDULED_AT: Final = "todoku-scheduled-at"
"""The header with the slot (planned time) of a scheduled message."""


class AttemptLog(Log):
    """The logger of an attempt. What is bound to it is also in the log line of the settled attempt."""

    __slots__ = ("_context",)

    def __init__(self, context: Context, fields: dict[str, Any]) -> None:
        super().__init__(**fields)
        self._context = context

    def bind(self, **fields: Any) -> AttemptLog:
        """Returns a logger with more fields, and keeps them for the line of the attempt."""
        self._context.bound = {**(self._context.bound or {}), **to_json_types(fields)}
        return AttemptLog(self._context, {**self._fields, **fields})


class Context:
    """One attempt, as its handler sees it. Take it as the first argument: `ctx: todoku.Context`."""

    __slots__ = ("_cancelled", "_ends", "_session", "_tx", "bound", "claim")

    stops_itself = False
    """Whether `cancel` is enough to stop the attempt: a run stops at the next boundary between its steps."""

    def __init__(self, claim: Claimed, ends: float = 0.0, tx: Any = None) -> None:
        self.claim = claim
        self._ends = ends
        self._tx = tx
        self._session: Any = None
        self._cancelled = False
        self.bound: dict[str, Any] | None = None
        """Fields that the handler bound to `log`: replaced, never changed, because another thread may read them."""

    @property
    def thread(self) -> int | None:
        """The thread in which the function of a plain workflow runs now; None for other handlers."""
        return None

    @property
    def message_id(self) -> UUID:
        """The public id of the message: the same on every attempt and at every destination."""
        return UUID(self.claim.message_id)

    @property
    def idempotency_key(self) -> str:
        """A key to send to other services so that they detect repetitions: the same on every attempt of a delivery."""
        return f"{self.claim.message_id}:{self.claim.destination}"

    @property
    def delivery_id(self) -> int:
        """The id of the delivery, as `todoku list` shows it: the same on every attempt."""
        return self.claim.id

    @property
    def topic(self) -> str:
        """The topic of the message."""
        return self.claim.topic

    @property
    def key(self) -> str | None:
        """The key of the message: ordered messages of one key arrive in order."""
        return self.claim.key

    @property
    def headers(self) -> dict[str, str]:
        """The headers the message was published with; a handler may pass them on."""
        headers = msgspec.json.decode(self.claim.headers, type=dict[str, str]) if self.claim.headers else {}
        headers.pop(BATCH, None)  # a handler that passes it on would add its messages to the batch
        return headers

    @property
    def priority(self) -> int:
        """0 to 15, larger is sooner."""
        return self.claim.priority

    @property
    def scheduled_at(self) -> datetime | None:
        """The planned time of a message that a schedule published, however late it runs; else None."""
        at = self.headers.get(SCHEDULED_AT)
        return None if at is None else datetime.fromisoformat(at)

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.claim.attempt

    @property
    def max_attempts(self) -> int:
        """The number of attempts this delivery may have."""
        return self.claim.max_attempts

    @property
    def deadline(self) -> float:
        """When this attempt times out, by `time.monotonic()`."""
        return self._ends

    @property
    def remaining(self) -> float:
        """The seconds left until the deadline."""
        return max(0.0, self._ends - time.monotonic())

    @property
    def log(self) -> Log:
        """A logger whose lines contain the ids of the message and the delivery, and the correlation id if it has one.

        Fields of `log.bind(…)` are also in the line that the worker writes when the attempt is settled.
        """
        claim = self.claim
        correlation = None if claim.headers is None else correlation_id(decode_headers(claim.headers))
        ids = {
            "message_id": claim.message_id, "outbox_id": claim.id, "topic": claim.topic, "adapter": claim.destination,
            "attempts": claim.attempt,
        }  # fmt: skip
        return AttemptLog(self, ids if correlation is None else {"correlation_id": correlation, **ids})

    def trace_send(self, adapter: str) -> AbstractContextManager[None]:
        """Opens a span `broker.send` around a send that the handler does itself: `with ctx.trace_send("smtp"): …`.

        It is a child of the attempt's span, and parent of the spans the adapter opens. Without OpenTelemetry, and in an
        attempt that is not sampled, it does nothing.
        """
        return send_span(self.claim, adapter)

    @property
    def tx(self) -> Any:
        """The open transaction of a `transactional=True` handler: a sqlite3 or psycopg connection."""
        if self._tx is None:
            raise NoTransaction(
                f"{self.claim.destination} does not run in a transaction", hint="declare it with transactional=True"
            )
        return self._tx

    def session(self, kind: Callable[..., S]) -> S:
        """Returns a SQLAlchemy session on `tx`: `ctx.session(Session)`. Do not commit it: todoku does."""
        if self._session is None:
            from todoku.engine.session import session_on  # noqa: PLC0415 - only where SQLAlchemy is

            self._session = session_on(self.tx, kind)
        return self._session  # type: ignore[no-any-return]

    def join(self, tx: Any, session: Any = None) -> None:
        """Sets the open transaction of the handler, and a session on it if there is one."""
        self._tx, self._session = tx, session

    def flush(self) -> None:
        """Flushes the session, so that its writes happen before the settle. Called when the handler has returned."""
        if self._session is not None:
            self._session.flush()

    def cancelled(self) -> bool:
        """Whether this attempt was cancelled. A long-running handler should check now and then, and return."""
        return self._cancelled

    def cancel(self) -> None:
        """Requests the handler to stop; `cancelled()` is True from now on."""
        self._cancelled = True

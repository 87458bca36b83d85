"""A queue as a program uses it: publish and enqueue, the same wherever it is, and what to do while it is away."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, Unpack

import msgspec

from todoku.app import new_id
from todoku.client.answers import Backend, DeadLetter, DeadLetters, Published, Queued, Which
from todoku.client.embedded_queue import Embedded
from todoku.client.publish_request import Posted, Sending, posted
from todoku.client.spool import Spool
from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidAct, InvalidMessage, QueueUnavailable
from todoku.engine.jobs.handler import is_async
from todoku.engine.observability.log import Log
from todoku.engine.observability.process_alert import Alarm
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import inject
from todoku.engine.outbox import refuse_in_event_loop

_MOST: Final = 100


class MessageCalls:
    """`queue.messages`: those that wait, and for a while those that were sent."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def get(self, id: str) -> Queued:
        """A message by its id; QueueRefused with status 404: there is none."""
        refuse_in_event_loop("queue.messages.aget(…)")
        return self._backend.message(id)

    async def aget(self, id: str) -> Queued:
        """As `get`, for async code."""
        return await asyncio.to_thread(self._backend.message, id)

    def cancel(self, id: str, *, by: str, why: str) -> None:
        """Let it not be sent; what runs at this moment goes on."""
        refuse_in_event_loop("queue.messages.acancel(…)")
        self._backend.cancel(id, **_signed(by, why))

    async def acancel(self, id: str, *, by: str, why: str) -> None:
        """As `cancel`, for async code."""
        await asyncio.to_thread(self._backend.cancel, id, **_signed(by, why))


class DeadLetterCalls:
    """`queue.dlq`: the dead letters. An App audits who and why; a queue elsewhere names the token's owner."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def list(
        self,
        *,
        queue: str | None = None,
        to: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str | None = None,
        count: int = _MOST,
    ) -> DeadLetters:
        """A page of at most 100 dead letters: of a queue, to a URL or topic, that died in this time."""
        refuse_in_event_loop("queue.dlq.alist(…)")
        which = Which(queue=queue, to=to, since=since, until=until)
        return self._backend.dead_letters(which, cursor=cursor, count=_count(count))

    async def alist(self, **which: Any) -> DeadLetters:
        """As `list`, for async code, with the same keywords."""
        return await asyncio.to_thread(self.list, **which)

    def get(self, id: str) -> DeadLetter:
        """One of them; QueueRefused with status 404: there is none."""
        refuse_in_event_loop("queue.dlq.aget(…)")
        return self._backend.dead_letter(id)

    async def aget(self, id: str) -> DeadLetter:
        """As `get`, for async code."""
        return await asyncio.to_thread(self._backend.dead_letter, id)

    def retry(self, id: str, *, by: str, why: str) -> str:
        """Let it be sent again, with all its attempts; returns the id of the message that is."""
        refuse_in_event_loop("queue.dlq.aretry(…)")
        return self._backend.retry(id, **_signed(by, why))

    async def aretry(self, id: str, *, by: str, why: str) -> str:
        """As `retry`, for async code."""
        return await asyncio.to_thread(self._backend.retry, id, **_signed(by, why))

    def delete(self, id: str, *, by: str, why: str) -> None:
        """Remove it for good."""
        refuse_in_event_loop("queue.dlq.adelete(…)")
        self._backend.delete(id, **_signed(by, why))

    async def adelete(self, id: str, *, by: str, why: str) -> None:
        """As `delete`, for async code."""
        await asyncio.to_thread(self._backend.delete, id, **_signed(by, why))


def _signed(by: str, why: str) -> dict[str, str]:
    for name, said in (("by", by), ("why", why)):
        if not str(said or "").strip():
            raise InvalidAct(f"{name} cannot be empty", hint="it goes into the audit")
    return {"by": by.strip(), "why": why.strip()}


def _count(count: int) -> int:
    if type(count) is not int or not 1 <= count <= _MOST:
        raise InvalidAct(f"count cannot be {count!r}", hint=f"1 to {_MOST}; the cursor leads to the next page")
    return count


Fallback = Literal["raise", "sync", "spool"]
Handler = Callable[[Outgoing], Any]
"""Does here what the receiver would have done; plain or async. What it raises, the caller sees."""

_RESTS: Final = 1.0
"""Seconds that a queue which was away is not asked again: its callers need not each wait for it."""

_ALARM_EVERY: Final = 1.0


class _Here(msgspec.Struct, frozen=True):
    """To be run by the caller itself."""

    handler: Handler
    message: Outgoing


class Queue:
    """Made by `todoku.client.connect`. From any thread; the calls that begin with `a` are for async code."""

    def __init__(
        self, backend: Backend, *, fallback: Fallback, within: float, handlers: Mapping[str, Handler],
        spool: Spool | None, telemetry: Telemetry, alarm: Alarm, always_here: bool,
    ) -> None:  # fmt: skip
        self._backend = backend
        self._fallback = fallback
        self._within = within
        self._handlers = dict(handlers)
        self._spool = spool
        self.telemetry = telemetry
        self._alarm = alarm
        self._always_here = always_here
        self._rests_until = 0.0
        self._alarm_at = 0.0
        self.dlq = DeadLetterCalls(backend)
        self.messages = MessageCalls(backend)

    def publish(self, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]) -> Published:
        """Have `payload` sent to a URL or a topic: bytes as they are, anything else as JSON.

        `tx` is for an App: your own transaction, as in `box.publish`. For the rest see `Sending`.
        """
        return self._now(*self._posted(to, None, payload, sending), tx)

    async def apublish(
        self, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]
    ) -> Published:
        """As `publish`, for async code."""
        return await self._soon(*self._posted(to, None, payload, sending), tx)

    def enqueue(
        self, queue: str, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]
    ) -> Published:
        """As `publish`, through a queue: one after the other, in the order they came."""
        return self._now(*self._posted(to, queue, payload, sending), tx)

    async def aenqueue(
        self, queue: str, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]
    ) -> Published:
        """As `enqueue`, for async code."""
        return await self._soon(*self._posted(to, queue, payload, sending), tx)

    def spooled(self) -> int:
        """How many messages wait on this disk."""
        return 0 if self._spool is None else self._spool.number()

    def close(self) -> None:
        """Give back connections and stop forwarding; what is spooled stays where it is. An App stays open."""
        if self._spool is not None:
            self._spool.close()
        self._backend.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------- inside

    def _posted(self, to: str, queue: str | None, payload: object, sending: Sending) -> tuple[Posted, bytes]:
        if unknown := sending.keys() - Sending.__annotations__.keys():
            known = ", ".join(Sending.__annotations__)
            raise InvalidMessage(f"there is no option {sorted(unknown)[0]!r}", hint=f"known: {known}")
        return posted(to, queue, payload, sending, new_id=str(new_id()), trace=inject(None) or {})

    def _now(self, asked: Posted, body: bytes, tx: Any) -> Published:
        if tx is not None:
            return self._app().join(asked, body, tx)
        refuse_in_event_loop("queue.apublish(…), or queue.aenqueue(…)")
        done = self._stored(asked, body)
        if isinstance(done, Published):
            return done
        returned = done.handler(done.message)
        if inspect.isawaitable(returned):
            asyncio.run(_awaited(returned))
        return _ran(asked)

    async def _soon(self, asked: Posted, body: bytes, tx: Any) -> Published:
        if tx is not None:
            return await self._app().ajoin(asked, body, tx)
        done = await asyncio.to_thread(self._stored, asked, body)
        if isinstance(done, Published):
            return done
        if is_async(done.handler):
            await done.handler(done.message)
        else:
            await asyncio.to_thread(done.handler, done.message)
        return _ran(asked)

    def _app(self) -> Embedded:
        if not isinstance(self._backend, Embedded):
            raise InvalidMessage(
                "tx= is for an App: a queue elsewhere cannot join your transaction",
                hint="publish to an App in your database, and let it deliver; or leave tx= out",
            )
        return self._backend

    def _stored(self, asked: Posted, body: bytes) -> Published | _Here:
        """Have the queue take it, or do what is done instead. Blocks."""
        if self._always_here:
            return self._here(asked, body, None)
        if self._spool is not None and self._spool.holds(asked.queue):
            return self._instead(asked, body, QueueUnavailable("messages of this queue still wait to be forwarded"))
        if time.monotonic() < self._rests_until:
            return self._instead(asked, body, QueueUnavailable("it gave no answer a moment ago"))
        try:
            return self._backend.publish(asked, body, within=self._within)
        except QueueUnavailable as error:
            if self._fallback != "raise":
                self._rests_until = time.monotonic() + _RESTS
            return self._instead(asked, body, error)

    def _instead(self, asked: Posted, body: bytes, error: QueueUnavailable) -> Published | _Here:
        self._tell(asked, error)
        match self._fallback:
            case "raise":
                raise error
            case "sync":
                return self._here(asked, body, error)
            case "spool":
                assert self._spool is not None  # noqa: S101 - `connect` made one
                return self._spool.put(asked, body)

    def _tell(self, asked: Posted, error: QueueUnavailable) -> None:
        self.telemetry.fell_back(mode=self._fallback)
        Log(message_id=asked.id).warning(
            "QUEUE_FALLBACK", mode=self._fallback, queue=self._backend.name, error_type=type(error).__name__,
            error=str(error),
        )  # fmt: skip
        if (now := time.monotonic()) >= self._alarm_at:
            self._alarm_at = now + _ALARM_EVERY
            self._alarm.raised("queue_fallback", 1.0)

    def _here(self, asked: Posted, body: bytes, error: QueueUnavailable | None) -> _Here:
        handler = _handler(self._handlers, asked.to)
        if handler is None:
            raise QueueUnavailable(
                f"nobody here handles {asked.to}", hint=f"add it: connect(…, handlers={{{asked.to!r}: …}})"
            ) from error
        message = Outgoing(
            message_id=asked.id,
            idempotency_key=asked.id,
            topic=asked.to,
            key=asked.queue,
            payload=body,
            content_type=asked.headers["Content-Type"],
            headers={**asked.trace, **asked.headers},
            attempt=1,
            created_at=time.time(),
        )
        return _Here(handler, message)


async def _awaited(returned: Any) -> None:
    await returned


def _ran(asked: Posted) -> Published:
    return Published(id=asked.id, deduplication_id=asked.id, how="ran")


def _handler(handlers: Mapping[str, Handler], to: str) -> Handler | None:
    """That of exactly this URL or topic; else of the longest beginning that somebody handles, `https://worker/*`."""
    if to in handlers:
        return handlers[to]
    fitting = [name for name in handlers if name.endswith("*") and to.startswith(name[:-1])]
    return handlers[max(fitting, key=len)] if fitting else None

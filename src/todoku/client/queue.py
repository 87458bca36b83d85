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
from todoku.engine.twins import Step, asynchronous, blocking, in_thread

_MOST: Final = 100


class MessageCalls:
    """`queue.messages`: those that wait, and for a while those that were sent."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @blocking("queue.messages")
    async def get(self, id: str) -> Queued:
        """Returns a message by its id. QueueRefused with status 404: there is none."""
        return await in_thread(self._backend.message, id)

    aget = asynchronous(get)

    @blocking("queue.messages")
    async def cancel(self, id: str, *, by: str, why: str) -> None:
        """Cancels its sending; a running attempt goes on."""
        await in_thread(self._backend.cancel, id, **_signed(by, why))

    acancel = asynchronous(cancel)


class DeadLetterCalls:
    """`queue.dlq`: the dead letters. An App audits who and why; a queue elsewhere names the token's owner."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    @blocking("queue.dlq")
    async def list(
        self,
        *,
        queue: str | None = None,
        to: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str | None = None,
        count: int = _MOST,
    ) -> DeadLetters:
        """Returns a page of at most 100 dead letters: of a queue, to a URL or topic, aborted in this time."""
        which = Which(queue=queue, to=to, since=since, until=until)
        return await in_thread(self._backend.dead_letters, which, cursor=cursor, count=_count(count))

    alist = asynchronous(list)  # noqa: A003 - the method above

    @blocking("queue.dlq")
    async def get(self, id: str) -> DeadLetter:
        """Returns one dead letter. QueueRefused with status 404: there is none."""
        return await in_thread(self._backend.dead_letter, id)

    aget = asynchronous(get)

    @blocking("queue.dlq")
    async def retry(self, id: str, *, by: str, why: str) -> str:
        """Sends it again, with all its attempts; returns the id of its message."""
        return await in_thread(self._backend.retry, id, **_signed(by, why))

    aretry = asynchronous(retry)

    @blocking("queue.dlq")
    async def delete(self, id: str, *, by: str, why: str) -> None:
        """Removes it for good."""
        await in_thread(self._backend.delete, id, **_signed(by, why))

    adelete = asynchronous(delete)


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
    """Made by `todoku.client.connect`. For any thread; every call has an async form, `a…`."""

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

    @blocking("queue")
    async def publish(
        self, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]
    ) -> Published:
        """Sends `payload` to a URL or a topic: bytes as they are, anything else as JSON.

        `tx` is for an App: your own transaction, as in `box.publish`. For the other options see `Sending`.
        """
        return await self._send(*self._posted(to, None, payload, sending), tx)

    apublish = asynchronous(publish)

    @blocking("queue")
    async def enqueue(
        self, queue: str, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]
    ) -> Published:
        """Sends `payload` like `publish`, through a queue: one message after the other, in the order of the calls."""
        return await self._send(*self._posted(to, queue, payload, sending), tx)

    aenqueue = asynchronous(enqueue)

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

    async def _send(self, asked: Posted, body: bytes, tx: Any) -> Published:
        if tx is not None:
            return await self._app().insert(asked, body, tx)
        done = await in_thread(self._stored, asked, body)
        if isinstance(done, Published):
            return done
        await _Run(done)
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


class _Run(Step[None]):
    """The caller's own handler, run in the caller's thread or event loop."""

    def __init__(self, here: _Here) -> None:
        self._handler, self._message = here.handler, here.message

    def now(self, twin: str) -> None:  # noqa: ARG002 - what came before it has refused
        returned = self._handler(self._message)
        if inspect.isawaitable(returned):
            asyncio.run(_awaited(returned))

    async def later(self) -> None:
        if is_async(self._handler):
            await self._handler(self._message)
        else:
            await asyncio.to_thread(self._handler, self._message)


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

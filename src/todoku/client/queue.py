"""The queue that programs use: publish and enqueue on any backend, and the fallback while it is unavailable."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final, Literal, Unpack

import msgspec

from todoku.app import new_id
from todoku.client.answers import Backend, DeadLetter, DeadLetterFilter, DeadLetters, Published, Queued
from todoku.client.embedded_queue import EmbeddedBackend
from todoku.client.publish_request import PublishRequest, Sending, check_publish
from todoku.client.spool import Spool
from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidAct, InvalidMessage, QueueRefused, QueueUnavailable
from todoku.engine.jobs.handler import is_async
from todoku.engine.observability.alerts import Alarm
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import inject
from todoku.engine.twins import Awaited, asynchronous, blocking, in_thread

_MAX_PAGE: Final = 100


class MessageCalls:
    """`queue.messages`: messages that wait and, for a while, those that were sent."""

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
        await in_thread(self._backend.cancel, id, **_check_signature(by, why))

    acancel = asynchronous(cancel)


class DeadLetterCalls:
    """`queue.dlq`: dead letters. An App audits `by` and `why`; a remote queue audits the owner of the token."""

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
        count: int = _MAX_PAGE,
    ) -> DeadLetters:
        """Returns a page of at most 100 dead letters: of a queue, to a URL or topic, aborted in this time."""
        which = DeadLetterFilter(queue=queue, to=to, since=since, until=until)
        return await in_thread(self._backend.dead_letters, which, cursor=cursor, count=_check_count(count))

    alist = asynchronous(list)  # noqa: A003 - the method above

    @blocking("queue.dlq")
    async def get(self, id: str) -> DeadLetter:
        """Returns one dead letter. QueueRefused with status 404: there is none."""
        return await in_thread(self._backend.dead_letter, id)

    aget = asynchronous(get)

    @blocking("queue.dlq")
    async def retry(self, id: str, *, by: str, why: str) -> str:
        """Sends it again, with all its attempts; returns the id of its message."""
        return await in_thread(self._backend.retry, id, **_check_signature(by, why))

    aretry = asynchronous(retry)

    @blocking("queue.dlq")
    async def delete(self, id: str, *, by: str, why: str) -> None:
        """Removes it for good."""
        await in_thread(self._backend.delete, id, **_check_signature(by, why))

    adelete = asynchronous(delete)


def _check_signature(by: str, why: str) -> dict[str, str]:
    for name, value in (("by", by), ("why", why)):
        if not str(value or "").strip():
            raise InvalidAct(f"{name} cannot be empty", hint="it goes into the audit")
    return {"by": by.strip(), "why": why.strip()}


def _check_count(count: int) -> int:
    if type(count) is not int or not 1 <= count <= _MAX_PAGE:
        raise InvalidAct(f"count cannot be {count!r}", hint=f"give 1 to {_MAX_PAGE}; get the next page by the cursor")
    return count


Fallback = Literal["raise", "sync", "spool"]
Handler = Callable[[Outgoing], Any]
"""Does in this process what the receiver would do; sync or async. Its exceptions reach the caller."""

_PAUSE: Final = 1.0
"""Seconds without a request after the queue did not answer, so that not every caller waits for the timeout."""

_ALARM_EVERY: Final = 1.0


class _LocalRun(msgspec.Struct, frozen=True):
    """A handler for the caller to run, with its message."""

    handler: Handler
    message: Outgoing


class Queue:
    """Made by `todoku.client.connect`. For any thread; every call has an async form, `a…`."""

    def __init__(
        self, backend: Backend, *, fallback: Fallback, within: float, handlers: Mapping[str, Handler],
        spool: Spool | None, telemetry: Telemetry, alarm: Alarm, skips_queue: bool,
    ) -> None:  # fmt: skip
        self._backend = backend
        self.name = backend.name
        """Names the queue in logs and alerts: `queue:` and its address."""
        self._is_embedded = isinstance(backend, EmbeddedBackend)
        self._fallback = fallback
        self._within = within
        self._handlers = dict(handlers)
        self._spool = spool
        self.telemetry = telemetry
        self._alarm = alarm
        self._skips_queue = skips_queue
        self._paused_until = 0.0
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
        return await self._publish(*self._check(to, None, payload, sending), tx)

    apublish = asynchronous(publish)

    @blocking("queue")
    async def enqueue(
        self, queue: str, to: str, payload: object = None, *, tx: Any = None, **sending: Unpack[Sending]
    ) -> Published:
        """Sends `payload` like `publish`, through a queue: one message after the other, in the order of the calls."""
        return await self._publish(*self._check(to, queue, payload, sending), tx)

    aenqueue = asynchronous(enqueue)

    def spooled(self) -> int:
        """The number of messages that wait in the spool."""
        return 0 if self._spool is None else self._spool.number()

    def close(self) -> None:
        """Closes connections and stops forwarding. Spooled messages stay in the spool; an App stays open."""
        if self._spool is not None:
            self._spool.close()
        self._backend.close()

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------------------------------- inside

    def _check(self, to: str, queue: str | None, payload: object, sending: Sending) -> tuple[PublishRequest, bytes]:
        if unknown := sending.keys() - Sending.__annotations__.keys():
            known = ", ".join(Sending.__annotations__)
            raise InvalidMessage(f"there is no option {sorted(unknown)[0]!r}", hint=f"the options are {known}")
        return check_publish(to, queue, payload, sending, new_id=str(new_id()), trace=inject(None) or {})

    async def _publish(self, request: PublishRequest, body: bytes, tx: Any) -> Published:
        if tx is not None:
            return await self._embedded().insert(request, body, tx)
        done = await in_thread(self._send, request, body)
        if isinstance(done, Published):
            return done
        await _Run(done)
        return _published_locally(request)

    def _embedded(self) -> EmbeddedBackend:
        if not isinstance(self._backend, EmbeddedBackend):
            raise InvalidMessage(
                "tx= works with an App only: a remote queue cannot join your transaction",
                hint="publish through an App in your database, or leave tx= out",
            )
        return self._backend

    def _send(self, request: PublishRequest, body: bytes) -> Published | _LocalRun:
        """Sends the request to the queue, or falls back. Blocks."""
        if self._skips_queue:
            return self._local_run(request, body, None)
        if self._spool is not None and self._spool.has_waiting(request.queue):
            error = QueueUnavailable("earlier messages of this queue are still in the spool")
            return self._fall_back(request, body, error, tried=False)
        if time.monotonic() < self._paused_until:
            error = QueueUnavailable("the queue did not answer a moment ago")
            return self._fall_back(request, body, error, tried=False)
        try:
            done = self._backend.publish(request, body, within=self._within)
        except QueueUnavailable as unavailable:
            if self._fallback != "raise":
                self._paused_until = time.monotonic() + _PAUSE
            return self._fall_back(request, body, unavailable, tried=True)
        except QueueRefused as refused:  # it answered, so the next message is sent to it at once
            return self._fall_back(request, body, refused, tried=True)
        if not self._is_embedded:
            self.telemetry.taken(duplicate=done.duplicate)
        return done

    def _fall_back(
        self, request: PublishRequest, body: bytes, error: QueueUnavailable | QueueRefused, *, tried: bool
    ) -> Published | _LocalRun:
        if not (tried and self._is_embedded):  # an App has counted what it tried
            self.telemetry.publish_failed(error)
        self._report_fallback(request, error)
        match self._fallback:
            case "raise":
                raise error
            case "sync":
                return self._local_run(request, body, error)
            case "spool":
                assert self._spool is not None  # noqa: S101 - `connect` opened it
                return self._spool.put(request, body)

    def _report_fallback(self, request: PublishRequest, error: QueueUnavailable | QueueRefused) -> None:
        self.telemetry.fell_back(mode=self._fallback)
        Log(message_id=request.id).warning(
            "QUEUE_FALLBACK", mode=self._fallback, queue=self._backend.name, error_type=type(error).__name__,
            error=str(error),
        )  # fmt: skip
        if (now := time.monotonic()) >= self._alarm_at:
            self._alarm_at = now + _ALARM_EVERY
            self._alarm.raised("queue_fallback", 1.0)

    def _local_run(
        self, request: PublishRequest, body: bytes, error: QueueUnavailable | QueueRefused | None
    ) -> _LocalRun:
        handler = _find_handler(self._handlers, request.to)
        if handler is None:
            raise QueueUnavailable(
                f"there is no handler for {request.to}", hint=f"add one: connect(…, handlers={{{request.to!r}: …}})"
            ) from error
        message = Outgoing(
            message_id=request.id,
            idempotency_key=request.id,
            topic=request.to,
            key=request.queue,
            payload=body,
            content_type=request.headers["Content-Type"],
            headers={**request.trace, **request.headers},
            attempt=1,
            created_at=time.time(),
        )
        return _LocalRun(handler, message)


class _Run(Awaited[None]):
    """The caller's own handler, run in the caller's thread or event loop."""

    def __init__(self, local: _LocalRun) -> None:
        self._handler, self._message = local.handler, local.message

    def now(self, twin: str) -> None:  # noqa: ARG002 - what came before it has refused
        returned = self._handler(self._message)
        if inspect.isawaitable(returned):
            asyncio.run(_await(returned))

    async def later(self) -> None:
        if is_async(self._handler):
            await self._handler(self._message)
        else:
            await asyncio.to_thread(self._handler, self._message)


async def _await(returned: Any) -> None:
    await returned


def _published_locally(request: PublishRequest) -> Published:
    return Published(id=request.id, deduplication_id=request.id, how="ran")


def _find_handler(handlers: Mapping[str, Handler], to: str) -> Handler | None:
    """The handler of exactly this URL or topic, else of the longest matching prefix, such as `https://worker/*`."""
    if to in handlers:
        return handlers[to]
    prefixes = [name for name in handlers if name.endswith("*") and to.startswith(name[:-1])]
    return handlers[max(prefixes, key=len)] if prefixes else None

"""The spool: a todoku database on this machine that stores messages for an unavailable queue, and forwards them.

It is an App with one destination: the queue. An acknowledged message is on disk (synchronous=FULL). The messages of one
queue are a lane, so they are forwarded in their order. Each has its deduplication id, so the queue takes it only once.
While the queue is unavailable no attempts are used up, and no message is given up.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from todoku.app import App
from todoku.client.answers import Backend, Published
from todoku.client.publish_request import PublishRequest, with_fixed_time
from todoku.core.backoff import table
from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidSetting, QueueRefused, QueueUnavailable
from todoku.core.identity import key_hash, publish_scope
from todoku.core.message import Idempotency
from todoku.core.outcome import Abort, Done, Outcome, Retry
from todoku.core.settings import DAY
from todoku.core.topic_pattern import Route
from todoku.engine.observability.log import Log
from todoku.engine.publish import MessageOptions
from todoku.engine.registry import Registry, Target
from todoku.engine.worker.worker import Worker
from todoku.store.deliveries import Filter
from todoku.store.private_files import make_private

TOPIC: Final = "spool.posted"
HEADER: Final = "todoku-posted"
"""The header that holds the PublishRequest of a spooled message."""

DEDUPLICATED_FOR: Final = 7 * DAY
"""A message may be forwarded days later, and the queue must still recognise it."""

_LONG: Final = 100 * 365 * DAY
_NO_LIMIT: Final = 1_000_000_000
"""Of attempts and of lost owners: a message is never given up because the queue or this process was unavailable."""

_LEASE: Final = 5.0
_DRAIN_SEC: Final = 5.0
_MAX_BODY: Final = 64 << 20
_RETRIED: Final = frozenset({401, 403, 408, 425, 429})
"""Statuses that concern the moment or the token, which a person can correct, and not the message."""


class Forwarder:
    """The queue as the destination of the spool."""

    batch = 8

    def __init__(self, backend: Backend, *, within: float) -> None:
        self.name = backend.name
        self._backend = backend
        self._within = within

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Publishes each message to the queue."""
        return await asyncio.gather(*(asyncio.to_thread(self._forward, message) for message in batch))

    async def ping(self) -> None:
        """Raises while the queue does not answer: the worker then waits with all messages."""
        await asyncio.to_thread(self._backend.ping, within=self._within)

    def _forward(self, message: Outgoing) -> Outcome:
        try:
            request = msgspec.json.decode(message.headers[HEADER], type=PublishRequest)
            self._backend.publish(request, message.payload, within=self._within)
        except QueueUnavailable as error:
            return Retry(reason="NETWORK", detail=str(error))
        except QueueRefused as error:
            if error.status in _RETRIED:
                return Retry(reason="HTTP_BUSY", detail=str(error))
            return Abort("QUEUE_REFUSED", str(error))
        return Done()


class Spool:
    """Messages on this disk that wait for a queue. Any thread may use it; several processes may share the file."""

    def __init__(self, place: str, backend: Backend, *, within: float) -> None:
        url = place if "://" in place else f"sqlite:///{place}"
        if not url.startswith("sqlite:///"):
            raise InvalidSetting(f"spool cannot be {place!r}", hint="give a file on this machine: spool='spool.db'")
        _check_file(Path(url.removeprefix("sqlite:///").partition("?")[0]))
        self._to = backend.name
        self.box = App(url)
        self._override_settings()
        self.box.migrate()
        forwarder = Forwarder(backend, within=within)
        self.box.registry = Registry()  # the queue is the only destination
        self.box.registry.add(
            Target(name=self._to, queue="spool", backoff=table(0.5, 1, 2), sender=forwarder, batch=forwarder.batch)
        )
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        self._behind = self._queues_waiting()
        """Queues with messages in the spool: the next ones must wait behind them."""
        if self.number():
            self.forward()

    def _override_settings(self) -> None:
        """Overrides settings from the environment, which are meant for the application's own database."""
        given = self.box.settings
        self.box.outbox.settings = msgspec.structs.replace(
            given, enabled=True, lease_sec=_LEASE, reclaim_interval_sec=1.0, max_lost=_NO_LIMIT,
            unknown_after_sec=_LONG, drain_grace_sec=1.0, max_payload_bytes=_MAX_BODY, max_processing_sec=60.0,
        )  # fmt: skip

    def put(self, request: PublishRequest, body: bytes) -> Published:
        """Stores the message: when this returns, it is on disk and will be forwarded."""
        request = with_fixed_time(request, time.time())
        queue = _queue(request.queue)
        route = Route(
            pattern="**", destination=self._to, queue=queue, ordered=request.queue is not None, max_attempts=_NO_LIMIT
        )  # fmt: skip
        options = MessageOptions(key=request.queue, headers={HEADER: msgspec.json.encode(request).decode()})
        draft = self.box.outbox.draft(TOPIC, body, options, [route])
        scope = publish_scope(f"{TOPIC}:{self._to}")
        idempotency = Idempotency(scope, request.id, key_hash(request.id), key_hash(request.id), lasts=DEDUPLICATED_FOR)
        draft = msgspec.structs.replace(draft, idempotency=idempotency)
        if request.queue is not None:
            with self._lock:
                self._behind.add(queue)
        (message,) = self.box.outbox.put([draft], None, twin="queue.apublish(…)")
        self.forward()
        return Published(id=request.id, deduplication_id=request.id, duplicate=message.duplicate, how="spooled")

    def has_waiting(self, name: str | None) -> bool:
        """Whether messages of this queue are in the spool: later ones must not overtake them."""
        queue = _queue(name)
        if name is None or queue not in self._behind:
            return False
        if any(self._has(queue, status) for status in ("sending", "failed", "pending")):
            return True
        with self._lock:
            self._behind.discard(queue)
        return False

    def number(self) -> int:
        """The number of messages that wait to be forwarded."""
        counts = self.box.store.statistics.counts()
        return sum(counts.of(status) for status in ("pending", "sending", "failed"))

    def forward(self) -> None:
        """Starts the thread that forwards messages, unless it runs."""
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()):
                return
            self._pid = os.getpid()
            self._worker = self.box.worker()
            self._thread = threading.Thread(target=self._run, args=(self._worker,), name="todoku-spool", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stops forwarding. Waiting messages stay on disk until the spool is opened again."""
        with self._lock:
            self._closed = True
            worker, thread = self._worker, self._thread
        if worker is not None and thread is not None and self._pid == os.getpid():
            worker.drain()
            thread.join(_DRAIN_SEC)
        self.box.close()

    # ------------------------------------------------------------------------------------------- inside

    def _run(self, worker: Worker) -> None:
        try:
            asyncio.run(worker.run())
        except Exception as error:  # noqa: BLE001 - spooled messages are safe; the next `put` starts the thread again
            Log(adapter=self._to).error("SPOOL_STOPPED", error_type=type(error).__name__, error=str(error))

    def _has(self, queue: str, status: str) -> bool:
        filters = Filter(queue=queue, destination=self._to, status=status)
        return bool(self.box.store.deliveries.find(filters, limit=1).items)

    def _queues_waiting(self) -> set[str]:
        places = self.box.store.claims.waiting([self._to])
        sending = self.box.store.deliveries.find(Filter(destination=self._to, status="sending"), limit=1000).items
        return {queue for queue, _ in (*places.lanes, *places.suspects)} | {one.queue for one in sending}


def _queue(name: str | None) -> str:
    return "spool" if name is None else f"spool:{name}"


def _check_file(file: Path) -> None:
    """Raises InvalidSetting if the file cannot be created."""
    try:
        make_private(file)
    except OSError as error:
        raise InvalidSetting(
            f"the spool {file} cannot be opened: {error.strerror}", hint="check that this user may write there"
        ) from error

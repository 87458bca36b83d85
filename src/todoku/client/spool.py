"""The spool: a todoku database on this machine that keeps what a queue elsewhere could not take, and forwards it.

It is an App like any other, with one destination: the queue. What was acknowledged is on disk (synchronous=FULL); a
queue's messages are a lane, so they are forwarded in their order; and each has its id, so that what the queue has seen
already is not doubled. While the queue is away nothing burns attempts, and nothing is ever given up for that.
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
from todoku.client.publish_request import Posted, waiting
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
from todoku.store.private_files import make_private
from todoku.store.values import Filter

TOPIC: Final = "spool.posted"
HEADER: Final = "todoku-posted"
"""The header that says how a spooled message is to be published."""

DEDUPLICATED_FOR: Final = 7 * DAY
"""What may be forwarded days later must be recognised then."""

_LONG: Final = 100 * 365 * DAY
_EVER: Final = 1_000_000_000
"""Attempts, and owners that may die: a message is never given up because the queue, or this process, was away."""

_LEASE: Final = 5.0
_ENDING: Final = 5.0
_LARGEST: Final = 64 << 20
_LATER: Final = frozenset({401, 403, 408, 425, 429})
"""Answers that speak of the moment, or of the token, which a person can mend; not of the message."""


class Forwarder:
    """The queue, as the destination of a spool."""

    batch = 8

    def __init__(self, backend: Backend, *, within: float) -> None:
        self.name = backend.name
        self._backend = backend
        self._within = within

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Publish each of them at the queue."""
        return await asyncio.gather(*(asyncio.to_thread(self._forwarded, message) for message in batch))

    async def ping(self) -> None:
        """While the queue does not answer, everything waits."""
        await asyncio.to_thread(self._backend.ping, within=self._within)

    def _forwarded(self, message: Outgoing) -> Outcome:
        try:
            asked = msgspec.json.decode(message.headers[HEADER], type=Posted)
            self._backend.publish(asked, message.payload, within=self._within)
        except QueueUnavailable as error:
            return Retry(reason="NETWORK", detail=str(error))
        except QueueRefused as error:
            if error.status in _LATER:
                return Retry(reason="HTTP_BUSY", detail=str(error))
            return Abort("QUEUE_REFUSED", str(error))
        return Done()


class Spool:
    """What waits on this disk for a queue. From any thread; several processes may share one file."""

    def __init__(self, place: str, backend: Backend, *, within: float) -> None:
        url = place if "://" in place else f"sqlite:///{place}"
        if not url.startswith("sqlite:///"):
            raise InvalidSetting(f"spool cannot be {place!r}", hint="a file on this machine: spool='spool.db'")
        _check_place(Path(url.removeprefix("sqlite:///").partition("?")[0]))
        self._to = backend.name
        self.box = App(url)
        self._settle_in()
        self.box.migrate()
        forwarder = Forwarder(backend, within=within)
        self.box.registry = Registry()  # the queue, and nothing else that an App can send to
        self.box.registry.add(
            Target(name=self._to, queue="spool", backoff=table(0.5, 1, 2), sender=forwarder, batch=forwarder.batch)
        )
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._closed = False
        self._behind = self._waiting()
        """Queues whose messages wait here, so that the next ones wait behind them."""
        if self.number():
            self.forward()

    def _settle_in(self) -> None:
        """Settings of a spool, whatever the environment says of the application's own database."""
        given = self.box.settings
        self.box.outbox.settings = msgspec.structs.replace(
            given, enabled=True, lease_sec=_LEASE, reclaim_interval_sec=1.0, max_lost=_EVER, unknown_after_sec=_LONG,
            drain_grace_sec=1.0, max_payload_bytes=_LARGEST, max_processing_sec=60.0,
        )  # fmt: skip

    def put(self, asked: Posted, body: bytes) -> Published:
        """Keep it: when this returns it is on disk, and will be forwarded."""
        asked = waiting(asked, time.time())
        queue = _queue(asked.queue)
        route = Route(
            pattern="**", destination=self._to, queue=queue, ordered=asked.queue is not None, max_attempts=_EVER
        )  # fmt: skip
        options = MessageOptions(key=asked.queue, headers={HEADER: msgspec.json.encode(asked).decode()})
        made = self.box.outbox.draft(TOPIC, body, options, [route])
        scope = publish_scope(f"{TOPIC}:{self._to}")
        seen = Idempotency(scope, asked.id, key_hash(asked.id), key_hash(asked.id), lasts=DEDUPLICATED_FOR)
        draft = msgspec.structs.replace(made, idempotency=seen)
        if asked.queue is not None:
            with self._lock:
                self._behind.add(queue)
        (message,) = self.box.outbox.put([draft], None, twin="queue.apublish(…)")
        self.forward()
        return Published(id=asked.id, deduplication_id=asked.id, duplicate=message.duplicate, how="spooled")

    def holds(self, name: str | None) -> bool:
        """Whether messages of this queue wait here: those after them must not overtake them."""
        queue = _queue(name)
        if name is None or queue not in self._behind:
            return False
        if any(self._has(queue, status) for status in ("sending", "failed", "pending")):
            return True
        with self._lock:
            self._behind.discard(queue)
        return False

    def number(self) -> int:
        """How many wait to be forwarded."""
        counts = self.box.store.counts()
        return sum(counts.of(status) for status in ("pending", "sending", "failed"))

    def forward(self) -> None:
        """Forward what waits, from now on, in a thread of this process."""
        with self._lock:
            if self._closed or (self._thread is not None and self._thread.is_alive() and self._pid == os.getpid()):
                return
            self._pid = os.getpid()
            self._worker = self.box.worker()
            self._thread = threading.Thread(target=self._run, args=(self._worker,), name="todoku-spool", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop forwarding. What waits stays on disk for whoever opens the spool next."""
        with self._lock:
            self._closed = True
            worker, thread = self._worker, self._thread
        if worker is not None and thread is not None and self._pid == os.getpid():
            worker.drain()
            thread.join(_ENDING)
        self.box.close()

    # ------------------------------------------------------------------------------------------- inside

    def _run(self, worker: Worker) -> None:
        try:
            asyncio.run(worker.run())
        except Exception as error:  # noqa: BLE001 - what was spooled is safe; the next one spooled begins anew
            Log(adapter=self._to).error("SPOOL_STOPPED", error_type=type(error).__name__, error=str(error))

    def _has(self, queue: str, status: str) -> bool:
        which = Filter(queue=queue, destination=self._to, status=status)
        return bool(self.box.store.find(which, limit=1).items)

    def _waiting(self) -> set[str]:
        places = self.box.store.waiting([self._to])
        sending = self.box.store.find(Filter(destination=self._to, status="sending"), limit=1000).items
        return {queue for queue, _ in (*places.lanes, *places.suspects)} | {one.queue for one in sending}


def _queue(name: str | None) -> str:
    return "spool" if name is None else f"spool:{name}"


def _check_place(file: Path) -> None:
    """InvalidSetting: there cannot be such a file."""
    try:
        make_private(file)
    except OSError as error:
        raise InvalidSetting(
            f"the spool {file} cannot be opened: {error.strerror}", hint="may this user write there?"
        ) from error

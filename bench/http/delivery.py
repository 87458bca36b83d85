"""Delivery: requests to receivers in another process, beside a bare aiohttp client that sends the same.

Everything is published first; the rate is that of what arrives, from the first request to the last, by the receiver's
clock. Then a hundred hosts, of which one never answers, beside the same hundred when it does.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp

import todoku
from bench.bars import Bar, compared
from bench.engine import TEXT
from todoku.app import new_id
from todoku.core.destination import Outgoing
from todoku.core.http_request import TOPIC, HttpRequest
from todoku.core.signature import SigningKeys
from todoku.destinations.http_sender import headers_of
from todoku.engine.http.request_draft import Posting, request_draft

REQUIRED = 0.6
SLOWER = 1.10
AT_ONCE = 64
HOSTS = 100
BODY = TEXT.encode()
OK = b"HTTP/1.1 204 No Content\r\n\r\n"


# ---------------------------------------------------------------------------------------------- the receiving process


class Counting(asyncio.Protocol):
    """Answers every request with 204, unless it is for the silent host. Knows only what the two senders send."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._buffer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._silent = transport.get_extra_info("sockname")[0] == self._counts.silent

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = self._buffer[:end].lower()
            at = head.find(b"content-length:")
            length = 0 if at < 0 else int(head[at + 15 :].split(b"\r\n", 1)[0])
            if len(self._buffer) < end + 4 + length:
                return
            self._buffer = self._buffer[end + 4 + length :]
            if not self._silent:
                self._counts.add()
                self._transport.write(OK)


class Counts:
    """How many came, when the first and when the last."""

    def __init__(self) -> None:
        self.silent = ""
        self.reset()

    def reset(self) -> None:
        self.number, self.first, self.last = 0, 0.0, 0.0

    def add(self) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.number += 1


def receive(pipe: Connection) -> None:
    """The receiving process: listens on every loopback address, and is asked through the pipe."""
    counts = Counts()

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Counting(counts), "0.0.0.0", 0, backlog=1000)
        pipe.send(server.sockets[0].getsockname()[1])
        while (asked := await asyncio.to_thread(pipe.recv)) is not None:
            if asked == "counts":
                pipe.send((counts.number, counts.first, counts.last))
            else:
                counts.reset()
                counts.silent = asked
                pipe.send(None)

    asyncio.run(run())


class Receiving:
    """The receiver, from the other side of its pipe."""

    def __init__(self, pipe: Connection, port: int) -> None:
        self._pipe = pipe
        self.port = port

    def reset(self, *, silent: str = "-") -> None:
        self._pipe.send(silent)
        self._pipe.recv()

    def rate(self, number: int) -> float:
        """Requests a second, between the first and the last of exactly so many."""
        self._pipe.send("counts")
        came, first, last = self._pipe.recv()
        if came != number:
            raise RuntimeError(f"{came} instead of {number} arrived")
        return float((number - 1) / (last - first))

    def number(self) -> int:
        self._pipe.send("counts")
        return int(self._pipe.recv()[0])


@contextmanager
def receiving() -> Iterator[Receiving]:
    """A receiver that runs."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=receive, args=(there,), daemon=True)
    process.start()
    try:
        yield Receiving(here, here.recv())
    finally:
        here.send(None)
        process.join(10)


# -------------------------------------------------------------------------------------------------- the two senders


def bare(receiver: Receiving, urls: list[str]) -> float:
    """aiohttp, a session, as many tasks as a worker has slots; the same bytes, made once, and nothing else to do."""
    receiver.reset()
    waiting = iter(urls)
    message = Outgoing(
        message_id=str(new_id()), idempotency_key="", topic=TOPIC, key=None, payload=BODY,
        content_type="application/json", headers={}, attempt=1, created_at=0.0,
    )  # fmt: skip
    keys = SigningKeys(current="sig_" + "c" * 28, next="sig_" + "n" * 28)
    headers = headers_of(HttpRequest(url=urls[0]), message, keys, 0.0)

    async def one(session: aiohttp.ClientSession) -> None:
        for url in waiting:
            async with session.post(url, data=BODY, headers=headers) as answer:
                await answer.read()

    async def run() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(one(session) for _ in range(AT_ONCE)))

    asyncio.run(run())
    return receiver.rate(len(urls))


def through(database: str, receiver: Receiving, urls: list[str], *, silent: str | None = None) -> float:
    """A worker of an App, after everything was published; what is for the silent host is published first."""
    receiver.reset(silent=silent or "-")
    box = todoku.App(database)
    box.migrate()
    box.store.database.empty()  # what the silent host was sent in the last round is not for this one
    quiet = [f"http://{silent}:{receiver.port}/"] * 200 if silent else []
    for first in range(0, len(quiet + urls), 1000):
        some = (quiet + urls)[first : first + 1000]
        box.outbox.put([_draft(url) for url in some], None, twin="…")

    async def run() -> None:
        worker = box.worker()
        running = asyncio.create_task(worker.run())
        while await asyncio.to_thread(receiver.number) < len(urls):
            if running.done():
                await running
                raise RuntimeError("the worker ended")
            await asyncio.sleep(0.05)
        worker.drain()
        await running

    asyncio.run(run())
    box.close()
    return receiver.rate(len(urls))


def _draft(url: str) -> Any:
    request = HttpRequest(url=url, headers={"Content-Type": "application/json"}, timeout=30)
    return request_draft(new_id(), request, BODY, Posting(), max_payload_bytes=1 << 20)


# ---------------------------------------------------------------------------------------------------------- the bars


@contextmanager
def settings() -> Iterator[None]:
    """The environment of a worker that may ask this machine, as much at once as the bare client."""
    given = {
        "TODOKU_HTTP_LOOPBACK": "1", "TODOKU_HTTP_PER_HOST": "16", "TODOKU_DRAIN_GRACE_SEC": "0",
        "TODOKU_HTTP_CONCURRENCY": str(AT_ONCE),
    }  # fmt: skip
    with mock.patch.dict(os.environ, given):
        yield


def spread(receiver: Receiving, number: int) -> list[str]:
    """So many URLs, over a hundred hosts in turn."""
    hosts = [f"http://127.0.1.{place + 1}:{receiver.port}/" for place in range(HOSTS)]
    return [hosts[place % HOSTS] for place in range(number)]


def bars(url: str, name: str, *, number: int, rounds: int, **_: object) -> list[Bar]:
    """Delivery beside a bare client, and beside itself with a receiver that never answers."""
    with receiving() as receiver, settings(), tempfile.TemporaryDirectory() as folder:
        urls = spread(receiver, number)
        numbers = iter(range(1000))

        def database() -> str:
            return url or f"sqlite:///{Path(folder) / str(next(numbers))}.db"

        alone, sent, hindered = compared(
            rounds,
            f"delivery on {name}",
            ("a bare aiohttp client", lambda: bare(receiver, urls)),
            ("todoku", lambda: through(database(), receiver, urls)),
            ("todoku beside one that never answers", lambda: through(database(), receiver, urls, silent="127.0.2.1")),
        )
    return [
        Bar(f"{name}: delivery, of a bare aiohttp client", sent / alone, REQUIRED, "x"),
        Bar(f"{name}: slower by a receiver that never answers", sent / hindered, SLOWER, "x", at_most=True),
    ]

"""A load generator in a process of its own: requests that were made before, over connections that stay open.

`python -m bench.http.load` reads an `Order` from its standard input, sends what it says, and writes a `Result`, both in
MessagePack. At a rate, requests leave when they are due, whether or not earlier ones were answered, and each is timed
from when it was due: a server that stands still is charged for everybody who waited. Without a rate each connection
sends its next request as soon as the last was answered.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import deque

import msgspec
import uvloop

_HEAD_ENDS = b"\r\n\r\n"


class Order(msgspec.Struct, frozen=True):
    """What to send: `requests`, whole HTTP requests, one after the other over so many connections."""

    port: int
    requests: list[bytes]
    connections: int
    status: int
    rate: float | None = None


class Result(msgspec.Struct, frozen=True):
    """How it went: seconds from when each was due to its answer, and how long all took. `other`: another status."""

    seconds: float
    latencies: list[float]
    other: int

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share was answered."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Load:
    """All connections of one order."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.status = f"HTTP/1.1 {order.status} ".encode()
        self.waiting: deque[tuple[float, bytes]] = deque()
        self.idle: deque[Connection] = deque()
        self.latencies: list[float] = []
        self.other = 0
        self.left = len(order.requests)
        self.done = asyncio.get_running_loop().create_future()

    async def run(self) -> Result:
        loop = asyncio.get_running_loop()
        for _ in range(self.order.connections):
            _, connection = await loop.create_connection(lambda: Connection(self), "127.0.0.1", self.order.port)
            self.idle.append(connection)
        began = time.perf_counter()
        if self.order.rate is None:
            self.waiting.extend((0.0, request) for request in self.order.requests)
            for _ in range(len(self.idle)):
                self.next(self.idle.popleft())
        else:
            await self._pace(self.order.rate)
        await self.done
        return Result(time.perf_counter() - began, self.latencies, self.other)

    async def _pace(self, rate: float) -> None:
        began = time.perf_counter()
        for number, request in enumerate(self.order.requests):
            due = began + number / rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            self.waiting.append((due, request))
            if self.idle:
                self.next(self.idle.popleft())  # in turn: one that idles too long is closed by its server

    def next(self, connection: Connection) -> None:
        """Give a connection its next request."""
        if not self.waiting:
            self.idle.append(connection)
            return
        due, request = self.waiting.popleft()
        connection.send(due or time.perf_counter(), request)

    def answered(self, connection: Connection, due: float, *, right: bool) -> None:
        """One more answer."""
        self.latencies.append(time.perf_counter() - due)
        self.other += not right
        self.left -= 1
        if self.left == 0:
            self.done.set_result(None)
        self.next(connection)


class Connection(asyncio.Protocol):
    """One request at a time. Answers that matter here have no body; of others only the head is looked at."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._read = b""
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def send(self, due: float, request: bytes) -> None:
        self._due = due
        self._transport.write(request)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self._read += data
        end = self._read.find(_HEAD_ENDS)
        if end < 0:
            return
        right = self._read.startswith(self._load.status)
        self._read = b""
        self._load.answered(self, self._due, right=right)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._load.done.done():
            self._load.done.set_exception(error or ConnectionError("the server closed a connection"))


async def _main() -> None:
    order = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.msgpack.encode(await Load(order).run()))


if __name__ == "__main__":
    uvloop.run(_main())

"""A receiver that answers as a test says, byte by byte, and keeps what it was sent."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec


class Received(msgspec.Struct, frozen=True):
    """One request, as it came over the wire."""

    connection: int
    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def values(self, name: str) -> list[str]:
        """Every value of a header."""
        return [value for each, value in self.headers if each.lower() == name.lower()]

    def value(self, name: str) -> str:
        """The one value of a header."""
        (value,) = self.values(name)
        return value


Reply = Callable[[Received, asyncio.StreamWriter], Awaitable[None]]


def answer(status: int = 200, body: bytes = b"", **headers: str) -> Reply:
    """A complete answer; `retry_after="5"` is the header Retry-After."""

    async def reply(_request: Received, writer: asyncio.StreamWriter) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        await writer.drain()

    return reply


def raw(data: bytes, *, again: bytes = b"", pause: float = 0.0) -> Reply:
    """These bytes; then `again` and again, until nobody listens. Without `again` the connection is closed."""

    async def reply(_request: Received, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        while again:
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.close()

    return reply


async def silent(_request: Received, _writer: asyncio.StreamWriter) -> None:
    """No answer, ever."""
    await asyncio.Event().wait()


async def reset(_request: Received, writer: asyncio.StreamWriter) -> None:
    """The connection is torn down instead of answered."""
    writer.transport.abort()


class Receiver:
    """A server in a thread. `reply` may be changed at any time."""

    def __init__(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        self.reply: Reply = answer()
        self.received: list[Received] = []
        self.connections = 0
        self.closed = 0
        """Connections that ended."""
        self._host = host
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self.port}"

    def start(self, port: int = 0) -> None:
        """Listen."""
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Do not listen any more, and hang up."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._accept, self._host, port, ssl=self._tls, backlog=500)

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # what was accepted in this turn of the loop gets its task
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection, in a task that is known at once: one that has not begun is ended, too."""
        self.connections += 1
        task = self._loop.create_task(self._serve(reader, writer, self.connections))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while not writer.is_closing():
                    request = await _request(reader, number)
                    self.received.append(request)
                    await self.reply(request, writer)
        finally:
            self.closed += 1


async def _request(reader: asyncio.StreamReader, connection: int) -> Received:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = tuple((name, value.strip()) for name, _, value in (line.partition(":") for line in lines))
    length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    return Received(connection, method, target, headers, await reader.readexactly(length))


@contextmanager
def receiving(host: str = "127.0.0.1", tls: ssl.SSLContext | None = None, port: int = 0) -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver(host, tls)
    receiver.start(port)
    try:
        yield receiver
    finally:
        receiver.stop()

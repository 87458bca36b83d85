"""HTTP to one server: kept connections, and one deadline over everything, the look-up of its name included.

The standard library's client, so that a program that only publishes needs nothing else installed. No part of it has a
deadline for the whole, and a look-up has none at all: so each request runs in a thread of its own, and who asked leaves
when the time is over. Redirects are not followed and no proxy of the environment is used.
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import threading
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

import msgspec

from todoku.core.errors import InvalidSetting, QueueUnavailable

_MOST_AT_ONCE: Final = 256
"""Requests in flight. A look-up that hangs cannot be ended: it may not collect threads without end."""

_MOST_KEPT: Final = 8
_LARGEST: Final = 32 << 20


class ServerAnswer(msgspec.Struct, frozen=True):
    """What a server answered. Names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class TransportRequest(msgspec.Struct, frozen=True):
    """One request. `again`: to make it twice does no harm."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    again: bool = True


class _Call:
    """A request under way, and what it came to."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.answer: ServerAnswer | None = None
        self.error: Exception | None = None
        self.connection: HTTPConnection | None = None
        self.left = False

    def leave(self) -> None:
        """Who asked has gone: the thread may end, too."""
        self.left = True
        connection = self.connection
        if connection is not None and (opened := connection.sock) is not None:
            with suppress(OSError):  # it may be closing at this moment
                opened.shutdown(socket.SHUT_RDWR)


class Transport:
    """Connections to one server. From any thread; a forked child has its own."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InvalidSetting(f"url cannot be {url!r}", hint="the address of the queue: https://qstash.example.com")
        self.url = url
        self._host, self._port = parts.hostname, port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._kept: deque[HTTPConnection] = deque()
        self._running = 0
        self._pid = os.getpid()

    def ask(self, request: TransportRequest, *, within: float) -> ServerAnswer:
        """The server's answer, within so many seconds, or QueueUnavailable. Whether it took effect is unknown then."""
        self._forget_parents()
        with self._lock:
            if self._running >= _MOST_AT_ONCE:
                raise QueueUnavailable(f"{self.url} leaves {self._running} requests unanswered", hint="is it well?")
            self._running += 1
        call = _Call()
        try:
            threading.Thread(target=self._run, args=(call, request, within), name="todoku-client", daemon=True).start()
        except RuntimeError as error:  # no thread is to be had, or the program is ending
            with self._lock:
                self._running -= 1
            raise QueueUnavailable(f"{self.url} could not be asked: {error}") from error
        in_time = call.over.wait(within)
        if not in_time or isinstance(call.error, TimeoutError):  # a socket has the same limit, and may come first
            call.leave()
            raise QueueUnavailable(f"{self.url} gave no answer in {within * 1000:.0f} ms")
        if isinstance(call.error, OSError | HTTPException):
            raise QueueUnavailable(f"{self.url}: {type(call.error).__name__}: {call.error}") from call.error
        if call.error is not None:
            raise call.error
        assert call.answer is not None  # noqa: S101 - there is an answer, or an error
        return call.answer

    def close(self) -> None:
        """Give back the connections; the next request makes another."""
        for connection in self._all_kept():
            connection.close()

    # ------------------------------------------------------------------------------------------- inside

    def _run(self, call: _Call, request: TransportRequest, within: float) -> None:
        try:
            call.answer = self._answered(call, request, within)
        except Exception as error:  # noqa: BLE001 - raised again where it was asked for
            call.error = error
        finally:
            with self._lock:
                self._running -= 1
            call.over.set()

    def _answered(self, call: _Call, request: TransportRequest, within: float) -> ServerAnswer:
        kept = self._take()
        if kept is not None:
            try:
                return self._spoken(call, kept, request, within)
            except (OSError, HTTPException):
                # A server may close an idle connection at the moment it is used.
                if not request.again or call.left:
                    raise
        return self._spoken(call, self._made(within), request, within)

    def _made(self, within: float) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=within)
        return HTTPSConnection(self._host, self._port, timeout=within, context=self._tls)

    def _spoken(
        self, call: _Call, connection: HTTPConnection, request: TransportRequest, within: float
    ) -> ServerAnswer:
        call.connection = connection
        keep = False
        try:
            if connection.sock is not None:
                connection.sock.settimeout(within)
            connection.request(request.method, request.path, request.body or None, request.headers)
            answered = connection.getresponse()
            body = answered.read(_LARGEST + 1)
            if len(body) > _LARGEST:
                raise HTTPException(f"an answer of more than {_LARGEST} bytes")
            keep = not answered.will_close and answered.isclosed() and not call.left
            return ServerAnswer(answered.status, _lower(answered.getheaders()), body)
        finally:
            call.connection = None
            if not (keep and self._keep(connection)):
                connection.close()

    def _take(self) -> HTTPConnection | None:
        while True:
            with self._lock:
                if not self._kept:
                    return None
                connection = self._kept.pop()
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            connection.close()  # nothing was asked, so what can be read is the end

    def _keep(self, connection: HTTPConnection) -> bool:
        with self._lock:
            if len(self._kept) >= _MOST_KEPT or connection.sock is None:
                return False
            self._kept.append(connection)
            return True

    def _all_kept(self) -> list[HTTPConnection]:
        with self._lock:
            kept = list(self._kept)
            self._kept.clear()
            return kept

    def _forget_parents(self) -> None:
        """Two processes must not speak on one connection. Closing it here leaves the parent's as it is."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()  # another thread of the parent may have held it
            self._running = 0
            self.close()


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _is_readable(opened: socket.socket) -> bool:
    poller = select.poll()
    poller.register(opened, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))

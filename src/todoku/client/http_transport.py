"""HTTP to one server: persistent connections, and one deadline for everything, including the DNS lookup.

It uses the client of the standard library, so that a program that only publishes needs no other package. That client
has no deadline for a whole request, and a DNS lookup has none at all: so each request runs in a thread, and the caller
stops waiting at the deadline. It follows no redirects, and uses no proxy from the environment.
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

_MAX_RUNNING: Final = 256
"""Running requests. A DNS lookup that hangs cannot be ended, so the number of threads must be limited."""

_MAX_IDLE: Final = 8
_MAX_BODY: Final = 32 << 20


class ServerAnswer(msgspec.Struct, frozen=True):
    """The answer of the server. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes


class TransportRequest(msgspec.Struct, frozen=True):
    """One request. `is_repeatable`: sending it twice does no harm."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""
    is_repeatable: bool = True


class _Call:
    """A running request, and its answer or error."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.answer: ServerAnswer | None = None
        self.error: Exception | None = None
        self.connection: HTTPConnection | None = None
        self.is_abandoned = False

    def abandon(self) -> None:
        """Ends the thread's work: the caller no longer waits."""
        self.is_abandoned = True
        connection = self.connection
        if connection is not None and (open_socket := connection.sock) is not None:
            with suppress(OSError):  # it may be closing at this moment
                open_socket.shutdown(socket.SHUT_RDWR)


class Transport:
    """Connections to one server. Any thread may use it; a forked process opens its own connections."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
            raise InvalidSetting(
                f"url cannot be {url!r}", hint="give the address of the queue, such as https://qstash.example.com"
            )
        self.url = url
        self._host, self._port = parts.hostname, port
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._lock = threading.Lock()
        self._idle: deque[HTTPConnection] = deque()
        self._running = 0
        self._pid = os.getpid()

    def send(self, request: TransportRequest, *, within: float) -> ServerAnswer:
        """Returns the answer of the server. QueueUnavailable: none came `within` seconds; the effect is unknown."""
        self._reset_after_fork()
        with self._lock:
            if self._running >= _MAX_RUNNING:
                raise QueueUnavailable(
                    f"{self.url} has not answered {self._running} requests", hint="check that the queue is running"
                )
            self._running += 1
        call = _Call()
        try:
            threading.Thread(target=self._run, args=(call, request, within), name="todoku-client", daemon=True).start()
        except RuntimeError as error:  # no more threads, or the interpreter is shutting down
            with self._lock:
                self._running -= 1
            raise QueueUnavailable(f"cannot send a request to {self.url}: {error}") from error
        in_time = call.done.wait(within)
        if not in_time or isinstance(call.error, TimeoutError):  # the socket has the same timeout, and may be first
            call.abandon()
            raise QueueUnavailable(f"{self.url} did not answer within {within * 1000:.0f} ms")
        if isinstance(call.error, OSError | HTTPException):
            raise QueueUnavailable(f"{self.url}: {type(call.error).__name__}: {call.error}") from call.error
        if call.error is not None:
            raise call.error
        assert call.answer is not None  # noqa: S101 - without an error there is an answer
        return call.answer

    def close(self) -> None:
        """Closes idle connections; the next request opens a new one."""
        for connection in self._take_all_idle():
            connection.close()

    # ------------------------------------------------------------------------------------------- inside

    def _run(self, call: _Call, request: TransportRequest, within: float) -> None:
        try:
            call.answer = self._request(call, request, within)
        except Exception as error:  # noqa: BLE001 - raised again in the caller's thread
            call.error = error
        finally:
            with self._lock:
                self._running -= 1
            call.done.set()

    def _request(self, call: _Call, request: TransportRequest, within: float) -> ServerAnswer:
        idle = self._take_idle()
        if idle is not None:
            try:
                return self._exchange(call, idle, request, within)
            except (OSError, HTTPException):
                # The server may close an idle connection at the moment it is used.
                if not request.is_repeatable or call.is_abandoned:
                    raise
        return self._exchange(call, self._connect(within), request, within)

    def _connect(self, within: float) -> HTTPConnection:
        if self._tls is None:
            return HTTPConnection(self._host, self._port, timeout=within)
        return HTTPSConnection(self._host, self._port, timeout=within, context=self._tls)

    def _exchange(
        self, call: _Call, connection: HTTPConnection, request: TransportRequest, within: float
    ) -> ServerAnswer:
        call.connection = connection
        keep = False
        try:
            if connection.sock is not None:
                connection.sock.settimeout(within)
            connection.request(request.method, request.path, request.body or None, request.headers)
            response = connection.getresponse()
            body = response.read(_MAX_BODY + 1)
            if len(body) > _MAX_BODY:
                raise HTTPException(f"the answer has more than {_MAX_BODY} bytes")
            keep = not response.will_close and response.isclosed() and not call.is_abandoned
            return ServerAnswer(response.status, _lower(response.getheaders()), body)
        finally:
            call.connection = None
            if not (keep and self._keep_idle(connection)):
                connection.close()

    def _take_idle(self) -> HTTPConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.sock is not None and not _is_readable(connection.sock):
                return connection
            connection.close()  # no request is running, so readable means that the server closed it

    def _keep_idle(self, connection: HTTPConnection) -> bool:
        with self._lock:
            if len(self._idle) >= _MAX_IDLE or connection.sock is None:
                return False
            self._idle.append(connection)
            return True

    def _take_all_idle(self) -> list[HTTPConnection]:
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
            return idle

    def _reset_after_fork(self) -> None:
        """Drops connections of the parent process, which must not be shared. The parent's stay open."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._lock = threading.Lock()  # a thread of the parent may have held it during the fork
            self._running = 0
            self.close()


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _is_readable(open_socket: socket.socket) -> bool:
    if not hasattr(select, "poll"):  # Windows, where `select` takes any number of a socket
        return bool(select.select([open_socket], [], [], 0)[0])
    poller = select.poll()
    poller.register(open_socket, select.POLLIN | select.POLLHUP | select.POLLERR)
    return bool(poller.poll(0))

"""HTTP written and read byte by byte over a socket, for tests of the wire itself."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

PATIENCE = 60.0
"""Seconds to wait for bytes that must come."""


class Answer(NamedTuple):
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def request(method: str, target: str, headers: Mapping[str, str] | None = None, body: bytes | None = None) -> bytes:
    """The bytes of a plain request; the length is added if there is a body."""
    lines = [f"{method} {target} HTTP/1.1", "Host: localhost"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def ask(
    port: int, line: str, *headers: str, body: bytes = b"", token: str | None = None, host: str = "127.0.0.1"
) -> Answer:
    """The answer to `METHOD /target` with exactly these headers beside Host and Connection.

    The request has a Content-Length only if it has a body.
    """
    own = [f"Host: {host}", "Connection: close", *headers]
    own += [] if token is None else [f"Authorization: Bearer {token}"]
    own += [f"Content-Length: {len(body)}"] if body else []
    return send(port, line, own, body)


def send(port: int, line: str, headers: Iterable[str], body: bytes = b"") -> Answer:
    """The answer to a request line, these headers and nothing else; the server hangs up behind it."""
    with RawConnection(port) as connection:
        connection.send("\r\n".join([f"{line} HTTP/1.1", *headers, "", ""]).encode("latin-1") + body)
        answer = connection.answer(to=line.split(maxsplit=1)[0])
        assert connection.rest() == b"", "more than one answer"
        return answer


class RawConnection:
    """A connection to a server on this machine."""

    def __init__(self, port: int, *, receive_buffer: int | None = None) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", port))
        self._came = b""

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, to: str = "POST") -> Answer:
        """The next answer; ConnectionError if the server hangs up before it is complete."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        status = int(first.split(" ", 2)[1])
        if to == "HEAD" or status in (204, 304) or 100 <= status < 200:
            return Answer(status, headers, b"")
        if headers.get("transfer-encoding") == "chunked":
            return Answer(status, headers, self._chunks())
        return Answer(status, headers, self._exactly(int(headers["content-length"])))

    def rest(self) -> bytes:
        """Everything that still comes until the server hangs up, be it politely or not."""
        try:
            while self._more():
                pass
        except ConnectionError:
            pass
        came, self._came = self._came, b""
        return came

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _more(self) -> bool:
        part = self.socket.recv(65_536)
        self._came += part
        return bool(part)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._came:
            if not self._more():
                raise ConnectionError(f"the server hung up after {self._came[:200]!r}")
        before, _, self._came = self._came.partition(mark)
        return before

    def _exactly(self, size: int) -> bytes:
        while len(self._came) < size:
            if not self._more():
                raise ConnectionError(f"the server hung up within a body, after {self._came[:200]!r}")
        body, self._came = self._came[:size], self._came[size:]
        return body

    def _chunks(self) -> bytes:
        found = b""
        while size := int(self._until(b"\r\n"), 16):
            found += self._exactly(size)
            self._until(b"\r\n")
        self._until(b"\r\n")
        return found

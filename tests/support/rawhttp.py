"""HTTP as bytes on a socket: what no client library would send, and what is answered to it."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any

import msgspec

from tests.support.serving import received


class Raw(msgspec.Struct, frozen=True):
    """An answer: its status, its head in lower case, and its body."""

    status: int
    head: str
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    port: int, line: str, *headers: str, body: bytes = b"", token: str | None = None, host: str = "127.0.0.1"
) -> Raw:
    """Send `METHOD /target` with exactly these headers beside Host and Connection, and read until the server hangs up.

    The request has a Content-Length only if it has a body.
    """
    own = [f"Host: {host}", "Connection: close", *headers]
    own += [] if token is None else [f"Authorization: Bearer {token}"]
    own += [f"Content-Length: {len(body)}"] if body else []
    return send(port, line, own, body)


def send(port: int, line: str, headers: Iterable[str], body: bytes = b"") -> Raw:
    """Send a request line, these headers and nothing else."""
    with socket.create_connection(("127.0.0.1", port), timeout=60.0) as connection:
        connection.sendall("\r\n".join([f"{line} HTTP/1.1", *headers, "", ""]).encode("latin-1") + body)
        return parsed(received(connection))


def parsed(came: bytes) -> Raw:
    """An answer whose body ends with the connection."""
    head, _, body = came.partition(b"\r\n\r\n")
    first, _, rest = head.decode("latin-1").partition("\r\n")
    return Raw(int(first.split()[1]), rest.lower(), body)

"""A receiver that answers each delivery with the hostile answer of its number, and notes the body that came."""

from __future__ import annotations

import re
import socket
import struct
import threading
from contextlib import suppress
from functools import partial

from tests.fuzz.answers import hostile_answer
from tests.fuzz.inputs import Ending, Input

LONGEST = 20.0
"""Seconds a connection is kept at most."""

_NUMBER = re.compile(rb"^\w+ /a/(\d+) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)


class HostileReceiver:
    """Listens on every loopback address; `came` has the bodies by number. `only`: the answer to everything."""

    def __init__(self, seed: int, only: Input | None = None) -> None:
        self._answer = partial(hostile_answer, seed) if only is None else lambda _number: only
        self._listening = socket.create_server(("0.0.0.0", 0), backlog=128)
        self.port = int(self._listening.getsockname()[1])
        self.came: dict[int, bytes] = {}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(LONGEST)
        with connection, suppress(OSError):
            while (request := _request(connection)) is not None:
                found = _NUMBER.match(request[0])
                if found is None:  # a callback: it is enough that it came
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                    continue
                number = int(found[1])
                self.came[number] = request[1]
                answer = self._answer(number)
                for segment in answer.segments:
                    connection.sendall(segment)
                end(connection, answer.ending)
                return


def end(connection: socket.socket, ending: Ending) -> None:
    """End a connection as an input says: politely, at once, or when the other side does."""
    if ending == "reset":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return
    if ending == "half-close":
        connection.shutdown(socket.SHUT_WR)
    while connection.recv(65_536):
        pass


def _request(connection: socket.socket) -> tuple[bytes, bytes] | None:
    """Head and body of the next request of a well-behaved client."""
    came = b""
    while b"\r\n\r\n" not in came:
        part = connection.recv(65_536)
        if not part:
            return None
        came += part
    head, _, body = came.partition(b"\r\n\r\n")
    found = _LENGTH.search(head + b"\r\n")
    while len(body) < int(found[1] if found else 0):
        part = connection.recv(65_536)
        if not part:
            return None
        body += part
    return head, body

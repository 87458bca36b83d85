"""Connections that one process hands to another: file descriptors through a socket, with the bytes read so far.

Threads and not event loops: a socket whose other end is slow would block a loop.
"""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Full, Queue
from typing import Final

_LENGTH: Final = struct.Struct("=I")
_MOST_WAITING: Final = 1000
"""Connections that wait while the other process does not take them; more are closed, and their clients try again."""


class HandoverSender:
    """The end of the process that hands connections on."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._waiting: Queue[tuple[int, bytes]] = Queue(_MOST_WAITING)
        threading.Thread(target=self._run, name="todoku-hand-over", daemon=True).start()

    def send(self, descriptor: int, first: bytes) -> None:
        """Sends a connection, soon, and closes this process's descriptor of it."""
        try:
            self._waiting.put_nowait((descriptor, first))
        except Full:
            os.close(descriptor)

    def _run(self) -> None:
        while True:
            descriptor, first = self._waiting.get()
            frame = _LENGTH.pack(len(first)) + first
            try:
                sent = socket.send_fds(self._line, [frame], [descriptor])
                self._line.sendall(frame[sent:])
            except OSError:  # the other process has ended, or has no room for more files: the connection is closed
                pass
            finally:
                os.close(descriptor)


def receive_connections(line: socket.socket, adopt: Callable[[socket.socket, bytes], None]) -> None:
    """The other end: calls `adopt` with each connection, in a thread, until the sender has ended."""
    threading.Thread(target=_receive, args=(line, adopt), name="todoku-adopt", daemon=True).start()


def _receive(line: socket.socket, adopt: Callable[[socket.socket, bytes], None]) -> None:
    with line, suppress(ConnectionError):
        while True:
            head, descriptors, _, _ = socket.recv_fds(line, _LENGTH.size, 1)
            if not head:
                return
            (length,) = _LENGTH.unpack(head + _read(line, _LENGTH.size - len(head)))
            first = _read(line, length)
            for descriptor in descriptors:  # none if this process may open no more files: the kernel has closed it
                connection = socket.socket(fileno=descriptor)
                connection.set_inheritable(False)
                adopt(connection, first)


def _read(line: socket.socket, number: int) -> bytes:
    """Reads so many bytes. ConnectionError: the sender ended in the middle."""
    parts: list[bytes] = []
    while number > 0:
        part = line.recv(min(number, 1 << 18))
        if not part:
            raise ConnectionResetError
        parts.append(part)
        number -= len(part)
    return b"".join(parts)

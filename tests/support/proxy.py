"""A proxy in front of PostgreSQL that understands enough of its protocol to cut a connection at a COMMIT.

It listens on a Unix socket in a directory of its own, so a client is sent through it by the `host` of its URL. Cut
`before`: the COMMIT never reaches the server, which rolls back. Cut `after`: it is committed, and the client never
hears of it.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, urlsplit

import msgspec

Side = Literal["before", "after"]
_STARTUP = (b"\0\x03\0\0", b"\0\x03\0\x02")  # protocols 3.0 and 3.2
_COMMIT = re.compile(r"(?:.*;)?\s*commit\s*;?\s*", re.IGNORECASE | re.DOTALL)
"""A commit, alone or as the last of several statements that travel together."""


class Cut(msgspec.Struct, frozen=True):
    """A connection that was cut: of which process, and when."""

    pid: int
    at: float


class Order(msgspec.Struct):
    """Cut the next `times` COMMITs of transactions in which a statement matches, at least `pause` seconds apart."""

    matches: re.Pattern[str]
    unless: re.Pattern[str] | None
    side: Side
    times: int
    pause: float
    due: float = 0.0


class Frames:
    """Splits one direction of a connection into messages: (kind, body, bytes as they came)."""

    def __init__(self, *, starts: bool) -> None:
        self._buffer = b""
        self._starts = starts

    def split(self, data: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        self._buffer += data
        while True:
            head = 0 if self._starts else 1  # the first message of a client has no kind
            if len(self._buffer) < head + 4:
                return
            (length,) = struct.unpack_from("!I", self._buffer, head)
            if len(self._buffer) < head + length:
                return
            frame, self._buffer = self._buffer[: head + length], self._buffer[head + length :]
            body = frame[head + 4 :]
            if self._starts:
                self._starts = not body.startswith(_STARTUP)  # or a request for encryption, and it comes again
            yield frame[:head], body, frame


class Talk:
    """What one client says: the statements of its open transaction, by whichever protocol it sends them."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.cut: Side | None = None
        """Where this connection ends: decided once, at a COMMIT."""
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, bytes] = {}

    def hear(self, kind: bytes, body: bytes) -> str | None:
        """A statement that is executed by this message, if one is."""
        match kind:
            case b"Q":
                return self._said(body.rstrip(b"\0").decode())
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text.decode()
            case b"B":
                portal, name, _ = body.split(b"\0", 2)
                self._portals[portal] = name
            case b"E":
                portal, _ = body.split(b"\0", 1)
                return self._said(self._prepared.get(self._portals.get(portal, b""), ""))
            case _:
                pass
        return None

    def _said(self, statement: str) -> str:
        self.statements.append(statement)
        return statement


class Proxy:
    """Stands in front of the server that a URL names."""

    def __init__(self, url: str, home: Path) -> None:
        self._server = f"{parse_qs(urlsplit(url).query)['host'][0]}/.s.PGSQL.5432"
        home.mkdir()
        self.url = url.replace(f"host={Path(self._server).parent}", f"host={home}")
        assert self.url != url
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{home}/.s.PGSQL.5432")
        self._listener.listen(64)
        self._lock = threading.Lock()
        self._order: Order | None = None
        self.cuts: list[Cut] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, side: Side, matches: str, *, unless: str | None = None, times: int = 1, pause: float = 0.1) -> None:
        """From now on cut so many connections at the COMMIT of a transaction with such a statement."""
        never = None if unless is None else re.compile(unless)
        with self._lock:
            self._order = Order(re.compile(matches), never, side, times, pause)

    @property
    def waits(self) -> bool:
        """Whether there are cuts to come."""
        return self._order is not None

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    # ------------------------------------------------------------------------------------- connections

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        pid, _, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        with client, socket.socket(socket.AF_UNIX) as server, suppress(OSError):
            server.connect(self._server)
            self._relay(client, server, pid)

    def _relay(self, client: socket.socket, server: socket.socket, pid: int) -> None:
        talk = Talk()
        ways = {client: self._to_server(server, talk), server: self._to_client(client, talk)}
        for way in ways.values():
            next(way)
        with suppress(StopIteration):
            while True:
                for one in select.select([client, server], [], [])[0]:
                    if not (data := one.recv(65536)):
                        return
                    ways[one].send(data)
        self.cuts.append(Cut(pid, time.monotonic()))  # leaving closes both ends

    def _to_server(self, server: socket.socket, talk: Talk) -> Generator[None, bytes, None]:
        """Pass on what the client says; ends where it is cut off."""
        frames = Frames(starts=True)
        while True:
            for kind, body, frame in frames.split((yield)):
                statement = talk.hear(kind, body)
                if statement is not None and _COMMIT.fullmatch(statement):
                    talk.cut = talk.cut or self._decide(talk)
                    if talk.cut == "before":
                        return
                server.sendall(frame)

    def _to_client(self, client: socket.socket, talk: Talk) -> Generator[None, bytes, None]:
        """Pass on what the server answers; ends where that must not be heard any more."""
        frames = Frames(starts=False)
        while True:
            for kind, body, frame in frames.split((yield)):
                if talk.cut is None:
                    client.sendall(frame)
                elif kind == b"C" and body == b"COMMIT\0":
                    return
                if kind == b"Z" and body == b"I":
                    talk.statements.clear()

    def _decide(self, talk: Talk) -> Side | None:
        """Whether to cut at this COMMIT."""
        with self._lock:
            order = self._order
            if order is None or time.monotonic() < order.due or not any(map(order.matches.search, talk.statements)):
                return None
            if order.unless is not None and any(map(order.unless.search, talk.statements)):
                return None
            order.times -= 1
            order.due = time.monotonic() + order.pause
            if order.times == 0:
                self._order = None
            return order.side

"""The replication connection: one thread waits on it, reads what the server streams, and confirms what is stored."""

from __future__ import annotations

import selectors
import socket
import time
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus

from todoku.core.capture import format_lsn
from todoku.core.pgoutput import status_update
from todoku.store.sql import quote

CONNECT_TIMEOUT: Final = 10
SESSION: Final = {
    "datestyle": "ISO", "timezone": "UTC", "intervalstyle": "iso_8601", "extra_float_digits": "3",
    "bytea_output": "hex", "statement_timeout": "0", "synchronous_commit": "local",
    "idle_in_transaction_session_timeout": "60000", "idle_session_timeout": "0", "row_security": "off",
}  # fmt: skip
"""The settings of every session: values have the same text in the stream and in the pages of a snapshot, whatever the
defaults of a role or a database are; a mark does not wait for a standby; and a page that a policy of row-level security
would shorten is refused."""

_KEEPALIVES: Final = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}


class Wakeup:
    """Lets any thread wake the one that waits on the stream."""

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()  # not a pipe: Windows selects sockets only
        self._read.setblocking(False)
        self._write.setblocking(False)

    def wake(self) -> None:
        """Ends the present wait, or the next one. It may be called at any time, also after `close`."""
        try:
            self._write.send(b"!")
        except OSError:
            return  # it is full, so the thread wakes anyway; or closed, so no thread waits any more

    def clear(self) -> None:
        """Takes all wake-ups."""
        try:
            while self._read.recv(4096):
                pass
        except BlockingIOError:
            return

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._read.fileno()

    def close(self) -> None:
        """Closes both ends."""
        self._read.close()
        self._write.close()


def connect(url: str, *, replication: bool = False) -> psycopg.Connection[Any]:
    """Opens a session at the source, in autocommit, with the settings that make its texts the same everywhere."""
    given = conninfo_to_dict(url)
    options = " ".join(f"-c {name}={value}" for name, value in SESSION.items())
    if before := given.get("options"):
        options = f"{before} {options}"
    more = {"replication": "database"} if replication else {}
    target = make_conninfo(url, options=options, client_encoding="UTF8", **_KEEPALIVES, **more)
    return psycopg.connect(target, autocommit=True, connect_timeout=CONNECT_TIMEOUT, prepare_threshold=None)


class StreamError(Exception):
    """The server refused or ended the stream. `code`: its SQLSTATE, empty if the connection broke."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Stream:
    """The changes of one slot. Used by one thread."""

    def __init__(self, url: str, wakeup: Wakeup) -> None:
        self._connection = connect(url, replication=True)
        self._pgconn = self._connection.pgconn
        self._wakeup = wakeup
        self._selector = selectors.DefaultSelector()
        self._unsent: bytes | None = None
        self._flushing = False

    def identify(self) -> tuple[str, int, str]:
        """Returns the system identifier of the server, its timeline, and the position up to which it has flushed."""
        ((system, timeline, position, _database),) = self._connection.execute("IDENTIFY_SYSTEM").fetchall()
        return system, int(timeline), position

    def history(self, timeline: int) -> str:
        """Returns the history of a timeline: from which one it branched off, and where. Empty for the first."""
        if timeline <= 1:
            return ""
        ((_file, content),) = self._connection.execute(f"TIMELINE_HISTORY {timeline:d}").fetchall()
        return bytes(content).decode() if isinstance(content, bytes | memoryview) else str(content)

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Begins to stream what was committed after `lsn`. StreamError, with the code of the refusal."""
        names = quote(publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quote(slot)} LOGICAL {format_lsn(lsn)}"
            f" (proto_version '1', publication_names '{names}', messages 'true')"
        )
        result = self._pgconn.exec_(command.encode())
        if result.status != ExecStatus.COPY_BOTH:
            raise _refusal(result)
        self._pgconn.nonblocking = 1
        self._selector.register(self._pgconn.socket, selectors.EVENT_READ)
        self._selector.register(self._wakeup.fileno(), selectors.EVENT_READ)

    def wait(self, seconds: float, *, reading: bool) -> None:
        """Waits until a frame may have come (only if `reading`), a thread wakes it, or the time is over."""
        events = (selectors.EVENT_READ if reading else 0) | (selectors.EVENT_WRITE if self._flushing else 0)
        if events:
            self._watch(events)
        else:
            self._unwatch()
        self._selector.select(max(0.0, seconds))
        self._wakeup.clear()
        if self._flushing:
            self._send()

    def frames(self, most: int) -> list[bytes]:
        """Returns the frames that have arrived, at most so many, without waiting. StreamError: it has ended."""
        try:
            self._pgconn.consume_input()
            found: list[bytes] = []
            while len(found) < most:
                size, data = self._pgconn.get_copy_data(1)
                if size > 0:
                    found.append(bytes(data))
                elif size == 0 or found:  # an end is reported again by the next call
                    break
                else:
                    raise _refusal(self._pgconn.get_result())
        except psycopg.OperationalError as error:
            raise StreamError(str(error)) from None
        return found

    def confirm(self, lsn: int, received: int) -> None:
        """Tells the server that everything up to `lsn` is stored, and that this reader is alive.

        `received`: a server that is not told asks for it at once, each time it is told something else.
        """
        self._unsent = status_update(lsn, time.time(), received=received)
        self._send()

    def _send(self) -> None:
        try:
            if self._unsent is not None and self._pgconn.put_copy_data(self._unsent):
                self._unsent = None
            self._flushing = self._pgconn.flush() != 0 or self._unsent is not None
        except psycopg.OperationalError as error:
            raise StreamError(str(error)) from None

    def _watch(self, events: int) -> None:
        descriptor = self._pgconn.socket
        if descriptor in self._selector.get_map():
            self._selector.modify(descriptor, events)
        else:
            self._selector.register(descriptor, events)

    def _unwatch(self) -> None:
        if (descriptor := self._pgconn.socket) in self._selector.get_map():
            self._selector.unregister(descriptor)

    def close(self) -> None:
        """Closes the connection; the server frees the slot."""
        self._selector.close()
        self._connection.close()


def _refusal(result: Any) -> StreamError:
    """What the server said at the end of the stream, or instead of it."""
    if result is None or result.status == ExecStatus.COMMAND_OK:
        return StreamError("the server has ended the stream")
    code = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
    message = (result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    return StreamError(message or "the server has ended the stream", code)

"""Notifies systemd: READY, STATUS, WATCHDOG, STOPPING, as datagrams to $NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class Notify:
    """Sends notifications to systemd, or none without a NOTIFY_SOCKET. Never raises and never blocks."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._status = ""
        self._ready = False
        self._watchdog = _watchdog_seconds(environ)
        self._fed_at = 0.0

    def ready(self) -> None:
        """Reports that the daemon is ready; only once."""
        if not self._ready:
            self._ready = True
            self._send(f"READY=1\nMAINPID={os.getpid()}")

    def stopping(self) -> None:
        """Reports that the daemon stops."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Sets the line in `systemctl status`; sent when it changes."""
        text = " ".join(text.split())  # a newline would begin another assignment
        if text != self._status:
            self._status = text
            self._send(f"STATUS={text}")

    def feed_watchdog(self) -> None:
        """Feeds the watchdog when it is time, if there is one. Call it often."""
        now = time.monotonic()
        if self._watchdog is not None and now - self._fed_at >= self._watchdog / 3:
            self._fed_at = now
            self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
            datagram.setblocking(False)  # systemd does not listen, or the socket is full: not worth waiting for
            datagram.sendto(text.encode(), self._address)


def _address(named: str) -> str | bytes | None:
    """The address: a path, or `@name` for a socket in the abstract namespace."""
    if named.startswith("@"):
        return b"\0" + named[1:].encode()
    return named or None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """The watchdog interval, if systemd watches this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) > 0 else None

"""Telling systemd how we are: READY, STATUS, WATCHDOG, STOPPING, as datagrams to $NOTIFY_SOCKET."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from contextlib import suppress


class Notify:
    """Says things to systemd; without a NOTIFY_SOCKET it says nothing. Never raises and never blocks."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._status = ""
        self._ready = False
        self._watchdog = _watchdog_seconds(environ)
        self._fed = 0.0

    def ready(self) -> None:
        """Started: said once."""
        if not self._ready:
            self._ready = True
            self._say(f"READY=1\nMAINPID={os.getpid()}")

    def stopping(self) -> None:
        """Stopping."""
        self._say("STOPPING=1")

    def status(self, text: str) -> None:
        """A line for `systemctl status`; said when it changes."""
        text = " ".join(text.split())  # a line is an assignment
        if text != self._status:
            self._status = text
            self._say(f"STATUS={text}")

    def alive(self) -> None:
        """Called often; feeds the watchdog in time if there is one."""
        now = time.monotonic()
        if self._watchdog is not None and now - self._fed >= self._watchdog / 3:
            self._fed = now
            self._say("WATCHDOG=1")

    def _say(self, text: str) -> None:
        if self._address is None:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as speaking:
            speaking.setblocking(False)  # nobody listens, or the socket is full: what we do matters more
            speaking.sendto(text.encode(), self._address)


def _address(named: str) -> str | bytes | None:
    """A path, or `@name` for a socket in the abstract namespace."""
    if named.startswith("@"):
        return b"\0" + named[1:].encode()
    return named or None


def _watchdog_seconds(environ: Mapping[str, str]) -> float | None:
    """How often systemd wants to hear of us, if it means this process."""
    if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    text = environ.get("WATCHDOG_USEC", "")
    return int(text) / 1e6 if text.isdecimal() and int(text) > 0 else None

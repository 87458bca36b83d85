"""A destination that prints one line per message, for development."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from todoku.core.control_characters import escape_controls
from todoku.core.destination import Outgoing


class Printer:
    """Prints `PUBLISH topic key id`, and the payload if `payload` is set."""

    def __init__(self, name: str, *, payload: bool, stream: TextIO | None) -> None:
        self.name = name
        self._payload = payload
        self._stream = stream

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """Prints each message; all of them count as delivered."""
        lines = [self._line(message) for message in batch]
        stream = self._stream or sys.stdout  # looked up on each send, because stdout may be redirected
        stream.write("".join(lines))
        stream.flush()

    def _line(self, message: Outgoing) -> str:
        payload = f" {message.payload.decode('utf-8', 'replace')}" if self._payload else ""
        return escape_controls(f"PUBLISH {message.topic} {message.key or '-'} {message.message_id}{payload}") + "\n"


def log(name: str = "log", *, payload: bool = False, stream: TextIO | None = None) -> Printer:
    """Creates a destination that prints one line per message: `PUBLISH topic key id`. Payloads, which may be secret,
    are printed only with `payload=True`."""
    return Printer(name, payload=payload, stream=stream)

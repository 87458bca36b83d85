"""The destination that prints: one line a message, to see what would be sent."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO

from todoku.core.control_characters import escape_controls
from todoku.core.destination import Outgoing


class Printer:
    """Prints `PUBLISH topic key id`, and the payload if that was asked for."""

    def __init__(self, name: str, *, payload: bool, stream: TextIO | None) -> None:
        self.name = name
        self._payload = payload
        self._stream = stream

    async def send(self, batch: Sequence[Outgoing]) -> None:
        """Print each message; all of them have arrived then."""
        lines = [self._line(message) for message in batch]
        stream = self._stream or sys.stdout  # looked up now: it may have been redirected since
        stream.write("".join(lines))
        stream.flush()

    def _line(self, message: Outgoing) -> str:
        payload = f" {message.payload.decode('utf-8', 'replace')}" if self._payload else ""
        return escape_controls(f"PUBLISH {message.topic} {message.key or '-'} {message.message_id}{payload}") + "\n"


def log(name: str = "log", *, payload: bool = False, stream: TextIO | None = None) -> Printer:
    """A destination that prints one line a message: `PUBLISH topic key id`. Payloads may be secret: ask for them."""
    return Printer(name, payload=payload, stream=stream)

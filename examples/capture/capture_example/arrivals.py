"""What arrived at one place: a file with a line of JSON for each change."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple


class Arrival(NamedTuple):
    """One change, as a place got it."""

    message: str
    change: dict[str, Any]

    @property
    def order(self) -> int:
        """The number of the order."""
        return int((self.change["row"] or self.change["old"])["id"])


def note(path: Path, message: str, change: dict[str, Any]) -> None:
    """Append one line by one write, so that processes do not disturb each other."""
    line = json.dumps({"message": message, "change": change}) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def noted(path: Path) -> list[Arrival]:
    """The arrivals of a file, in order; none, if there is no file."""
    if not path.exists():
        return []
    return [Arrival(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]

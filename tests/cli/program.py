"""The program, run as people run it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.world import World, aborted

Run = Callable[..., subprocess.CompletedProcess[str]]


@dataclass(frozen=True)
class Shop:
    """A database, what tests do to it, and the program on it (`by` is ada)."""

    world: World
    run: Run

    def dead(self, number: int = 1, reason: str = "REFUSED", **options: Any) -> list[int]:
        """So many dead letters, by their numbers."""
        self.world.publish(number, **options)
        claims = self.world.claim(self.world.worker(), limit=number)
        assert len(claims) == number
        self.world.settle(claims, aborted(reason))
        return [claim.id for claim in claims]

    def statuses(self) -> dict[int, str]:
        """Every unfinished delivery."""
        return {row.id: row.status for row in self.world.deliveries()}

    def audit(self) -> list[tuple[Any, ...]]:
        """Every act of a person: who, what, to what, why."""
        return self.world.sql("select by, action, target, why from todoku_audit order by id")


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What a command that worked printed."""
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a command that found a problem."""
    assert (done.returncode, done.stdout) == (1, ""), done.stdout
    (line,) = done.stderr.splitlines()
    assert line.startswith("todoku: ")
    assert line.endswith(")"), "an error has a hint"
    return line


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What `--json` printed: one object a line."""
    return [json.loads(line) for line in said(done)]


def misused(done: subprocess.CompletedProcess[str]) -> str:
    """What a command said that was used wrongly: how it is used, and one clear line."""
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    usage, _, line = done.stderr.partition("Error: ")
    assert usage.startswith("Usage: todoku ")
    assert line
    return f"Error: {line.strip()}"

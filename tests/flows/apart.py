"""Functions that steps call in a process of their own, which finds them here by their names."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import todoku


@dataclass
class Page:
    number: int
    pid: int


class Peculiar(Exception):
    """An exception that does not survive pickling."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def render(page: Page, marks: str = "") -> Page:
    """Note the process, and return it."""
    if marks:
        with (Path(marks) / "rendered").open("a") as notes:
            notes.write(f"{os.getpid()}\n")
    return Page(page.number + 1, os.getpid())


def sleep_for_ever(marks: str) -> None:
    """Note the process, then sleep. A process that is not killed notes that, too."""
    (Path(marks) / "pid").write_text(str(os.getpid()))
    time.sleep(60)
    (Path(marks) / "woke").touch()


def die(marks: str, times: int) -> str:
    """Be killed the first times, as by a lack of memory."""
    begun = Path(marks) / f"begun-{len(list(Path(marks).iterdir()))}"
    begun.touch()
    if len(list(Path(marks).iterdir())) <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


def fail(how: str) -> None:
    """Raise."""
    match how:
        case "value":
            raise ValueError("a wrong value")
        case "peculiar":
            raise Peculiar(1, 2)
        case "abort":
            raise todoku.Abort("NO_PAPER", "none left")
        case _:
            raise SystemExit(3)


async def asynchronous() -> None: ...


def is_running(pid: int) -> bool:
    """Whether the process exists, and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False

"""The App of a daemon that tests kill: it captures the tables of a workload, and notes what arrives in a file.

The environment says where the database, the source and the file are, and how many writers there are; and, if the
checker itself is on trial, which fault to plant (TODOKU_TEST_FAULT).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

import todoku
from tests.capture.workload import captured
from todoku.core.message import Draft
from todoku.engine.outbox import new_id
from todoku.store.capture_portions import Fence, Portion, Stored
from todoku.store.captures import CaptureStore

TOPICS = "changes.**"
BEFORE = 15
"""So many portions with changes are stored as they should be before a planted fault."""


class Recorder:
    """A destination that appends the number of each message to a file, a batch at once."""

    name = "recorder"
    batch = 200

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    async def send(self, batch: Sequence[todoku.Outgoing]) -> None:
        """One write: what a kill cuts off is sent again."""
        os.write(self._file, "".join(f"{one.message_id}\n" for one in batch).encode())


def box_of(url: str, source: str | None, writers: int, recorded: Path) -> todoku.App:
    """The App. `source` None: the tables are in todoku's own database."""
    box = todoku.App(url)
    for table, key in captured(writers).items():
        box.capture(table, topic="changes.{table}.{op}", key=key, database=source)
    box.route(TOPICS, to=Recorder(recorded), ordered=True)
    return box


# ------------------------------------------------------------------------------------------------ faults, on purpose


LATE = "confirms before it stores"
TURNED = "turns a portion round"
FAULTS: dict[str, Callable[[Sequence[Draft]], Sequence[Draft]]] = {
    "loses a change": lambda drafts: drafts[1:],
    "stores a change twice": lambda drafts: [*drafts, replace(drafts[0], id=new_id())],
    TURNED: lambda drafts: drafts[::-1],
}


class BadStore:
    """A store that is wrong once, in one portion, as a capture must never be."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._left = BEFORE
        self._dying = False
        self._original = CaptureStore.store

    def store(self, store: CaptureStore, fence: Fence, portion: Portion, *, notify: bool) -> Stored:
        """In place of `CaptureStore.store`."""
        if self._dying:
            return "stored"
        if self._is_its_turn(portion):
            if self._fault == "drops a portion":
                return "stored"  # the next one moves the position past it
            if self._fault == LATE:
                self._dying = True  # what it promises is confirmed to the source, and it dies before it stores it
                threading.Timer(1.0, lambda: os._exit(9)).start()
                return "stored"
            portion = replace(portion, drafts=FAULTS[self._fault](portion.drafts))
        return self._original(store, fence, portion, notify=notify)

    def _is_its_turn(self, portion: Portion) -> bool:
        """Once. Turned round is a portion with several transactions, for else nothing might be wrong with it."""
        if not portion.drafts or self._left < 0:
            return False
        self._left -= self._left > 0
        if self._left > 0 or (self._fault == TURNED and len({draft.headers for draft in portion.drafts}) < 2):
            return False
        self._left = -1
        return True


def plant(fault: str) -> None:
    """Make the store of this process a bad one."""
    bad = BadStore(fault)

    def store(self: CaptureStore, fence: Fence, portion: Portion, *, notify: bool) -> Stored:
        return bad.store(self, fence, portion, notify=notify)

    CaptureStore.store = store  # type: ignore[method-assign]


if "TODOKU_TEST_RECORDED" in os.environ:
    if fault := os.environ.get("TODOKU_TEST_FAULT"):
        plant(fault)
    box = box_of(
        os.environ["TODOKU_DATABASE"], os.environ.get("TODOKU_TEST_SOURCE"), int(os.environ["TODOKU_TEST_WRITERS"]),
        Path(os.environ["TODOKU_TEST_RECORDED"]),
    )  # fmt: skip

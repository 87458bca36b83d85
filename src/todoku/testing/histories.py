"""Recorded histories of runs, and the code of today tried on them: do runs under way go on after a deploy?"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

from todoku.app import App
from todoku.core.errors import UnknownJob
from todoku.engine.flows.history import RunHistory, read_file, record, write_file
from todoku.engine.flows.history_replay import HistoryReplay
from todoku.engine.flows.replay import replay
from todoku.engine.jobs.handle import Handle


def record_history(box: App, run: UUID | str | Handle[Any], *, decrypt: bool = False) -> RunHistory:
    """Returns a run as it is stored now: its arguments, steps and results in the clear, and how it ended.

    `decrypt`: also of an encrypted run, if its master key is configured; without it such a run is refused (InvalidAct).
    """
    return record(box.outbox, run.id if isinstance(run, Handle) else run, decrypt=decrypt)


def read_histories(path: str | Path) -> list[RunHistory]:
    """Returns the histories in a file that `todoku flow export` or `write_histories` wrote, one a line."""
    return read_file(path)


def write_histories(path: str | Path, histories: Sequence[RunHistory]) -> None:
    """Writes histories to a file, one a line, in place of what it had. It has payloads in the clear."""
    write_file(path, histories)


def replay_history(
    box: App, history: RunHistory, *, new: Mapping[str, object] | None = None, removed: Collection[str] = ()
) -> HistoryReplay:
    """Calls the workflow's function with the recorded steps, and returns what it did: `replay_history(…).check()`.

    It needs no database. Stored steps return what is recorded; where the function begins another, it stops. No step is
    called, nothing is published, started or waited for; a sleep that is under way counts as over. `new`: what steps
    return that were added before stored ones, by their names. `removed`: names of steps that the code does not call any
    more, on purpose. UnknownJob: the App has no workflow of this name.
    """
    runtime = box.flows.runtimes.get(history.workflow)
    if runtime is None:
        raise UnknownJob(
            f"the App has no workflow {history.workflow!r}", hint="its runs would be dead letters, UNKNOWN_DESTINATION"
        )

    def run() -> HistoryReplay:
        return asyncio.run(replay(runtime, history, new=new or {}, removed=removed))

    with ThreadPoolExecutor(max_workers=1) as thread:  # a test may have an event loop of its own
        return thread.submit(run).result()

"""The seed's JobQueueService: enqueue, statistics, list, clear. What runs and settles the jobs is todoku."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final, Literal, get_args

import msgspec

import todoku
from users_example.database import Database, Row, Transaction
from users_example.payload import JobPayload, JobType

Status = Literal["pending", "processing", "completed", "failed"]
STATUSES: Final[tuple[str, ...]] = get_args(Status)

MOST_LISTED: Final = 20
LARGEST_PRIORITY: Final = 15

_TODOKU: Final[Mapping[str, tuple[str, ...]]] = {
    "pending": ("pending", "failed"),
    "completed": ("succeeded",),
    "failed": ("aborted",),
}
"""The seed's states in todoku's words; what is processing cannot be cleared."""


_LISTED: Final = """
    select job_queue.*, (select cast(result as text) from todoku_result where delivery_id = job_queue.id) as result
      from job_queue where status = :status order by created_at desc, id desc limit :most"""


class Stats(msgspec.Struct, frozen=True):
    """How many jobs are in each state."""

    pending: int = 0
    processing: int = 0
    completed: int = 0
    failed: int = 0

    def __str__(self) -> str:
        return (
            f"Job Stats - Pending: {self.pending}, Processing: {self.processing}, "
            f"Completed: {self.completed}, Failed: {self.failed}"
        )


class JobQueue:
    """Jobs of this application, by the seed's words. It reads the view `job_queue`."""

    def __init__(self, url: str, database: Database, jobs: Mapping[JobType, todoku.Job[..., Any]]) -> None:
        self._url = url
        self._database = database
        self._jobs = jobs

    def enqueue(
        self,
        type: JobType,
        payload: JobPayload,
        priority: int = 0,
        *,
        tx: Transaction | None = None,
        best_effort: bool = False,
    ) -> todoku.Handle[Any]:
        """Store a job: in the transaction `tx`, or in one of its own. InvalidMessage: nothing was stored."""
        connection = None if tx is None else tx.connection
        return self._jobs[type].using(tx=connection, priority=priority, best_effort=best_effort).enqueue(payload)

    def number(self, job: todoku.Handle[Any]) -> int:
        """The number of a job that was enqueued and committed: `job_queue.id`."""
        with self._database.transaction(writes=False) as tx:
            found = tx.row("select id from job_numbers where message_id = :id", id=str(job.id))
        if found is None:
            raise LookupError(f"there is no job {job.id}")
        return int(found["id"])

    def stats(self) -> Stats:
        """How many jobs are in each state."""
        with self._database.transaction(writes=False) as tx:
            found = tx.rows("select status, count(*) as number from job_queue group by status")
        return Stats(**{row["status"]: row["number"] for row in found})

    def list(self, status: Status = "pending", limit: int = MOST_LISTED) -> list[Row]:
        """The newest jobs in a state, with the result of each that keeps one."""
        with self._database.transaction(writes=False) as tx:
            return tx.rows(_LISTED, status=status, most=limit)

    def clear(self, status: Status, *, by: str, why: str) -> int:
        """Remove the jobs in a state, signed and audited, and return how many.

        What is pending is cancelled first, so no worker begins it meanwhile. Of what is processing ValueError.
        """
        if status not in _TODOKU:
            raise ValueError(f"jobs that are {status} belong to their worker")
        return sum(self._cleared(each, by, why) for each in _TODOKU[status])

    def _cleared(self, status: str, by: str, why: str) -> int:
        """`todoku clear` is the public way; it says nothing matched by exit code 1."""
        command = [sys.executable, "-m", "todoku", "clear", "--db", self._url, "--status", status, "--all"]
        done = subprocess.run(  # noqa: S603 - our own interpreter and module
            [*command, "--by", by, "--why", why, "--json"], capture_output=True, text=True, check=False
        )
        if done.returncode > 1 or not done.stdout:
            raise todoku.TodokuError(f"clear failed: {done.stderr.strip()}")
        return int(json.loads(done.stdout)["changed"])

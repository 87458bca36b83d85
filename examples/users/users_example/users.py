"""The users: a user and the job that welcomes them are one commit."""

from __future__ import annotations

import json
import threading
from typing import Any

import msgspec

from users_example.database import Database, Row
from users_example.payload import JobPayload, JobType, ValidationMode
from users_example.queue import JobQueue

PRIORITY = 1
"""What the seed gives a sign-up: sooner than test jobs."""


class EmailTaken(Exception):
    """Somebody has this address already."""


class Created(msgspec.Struct, frozen=True):
    """A new user, and the job that will welcome them; None only where best effort was not enough."""

    id: int
    job: str | None


class Users:
    """Creates and finds users."""

    def __init__(self, database: Database, queue: JobQueue, *, best_effort: bool) -> None:
        self._database = database
        self._queue = queue
        self._best_effort = best_effort
        self._counting = threading.Lock()
        self.enqueue_failed = 0
        """How many users were created without their job: only with best effort."""

    def create(
        self, name: str, email: str, additional_props: dict[str, Any], validation_mode: ValidationMode = "lenient"
    ) -> Created:
        """One commit: the user and `user_created`. EmailTaken, InvalidMessage: neither.

        With best effort the user is created even if the job cannot be; that is logged as ENQUEUE_FAILED and counted.
        """
        with self._database.transaction() as tx:
            user = tx.row(
                "insert into users (name, email, additional_props) values (:name, :email, :props)"
                " on conflict (email) do nothing returning id",
                name=name, email=email, props=json.dumps(additional_props),
            )  # fmt: skip
            if user is None:
                raise EmailTaken(email)
            payload = JobPayload(
                user_id=user["id"],
                user_data={"name": name, "email": email},
                additional_props=additional_props,
                validation_mode=validation_mode,
            )
            job = self._queue.enqueue(
                JobType.USER_CREATED, payload, PRIORITY, tx=tx, best_effort=self._best_effort
            )  # fmt: skip
        if not job.stored:
            with self._counting:
                self.enqueue_failed += 1
        return Created(user["id"], str(job.id) if job.stored else None)

    def get(self, id: int) -> Row | None:
        """A user with their profile, which is null until they were welcomed."""
        with self._database.transaction(writes=False) as tx:
            user = tx.row("select id, name, email, additional_props, created_at from users where id = :id", id=id)
            if user is None:
                return None
            profile = tx.row("select hobby, location, score from profiles where user_id = :id", id=id)
        props = user["additional_props"]
        return user | {
            "additional_props": json.loads(props) if isinstance(props, str) else props,
            "created_at": str(user["created_at"]),
            "profile": profile,
        }

"""Everything a process of the example holds: the seed's DatabaseService, its users and its job queue."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

import todoku
from users_example.database import Database, open_database
from users_example.mail import Mailer, open_mailer
from users_example.payload import JobPayload, JobType
from users_example.processors import KEPT, PROCESSORS, Processor, RunningJob
from users_example.queue import JobQueue
from users_example.settings import Settings
from users_example.users import Users

MAX_RETRIES: Final = 3
"""Of the seed: four executions, then it is over."""

Around = Callable[[int, JobType, Callable[[], Any]], Any]
"""How an attempt is run: (job id, type, the attempt). A worker tells about it; anybody else just runs it."""


Warn = Callable[[str], None]


def just_run(_id: int, _type: JobType, attempt: Callable[[], Any]) -> Any:
    """Without a word."""
    return attempt()


def say_nothing(_text: str) -> None:
    """Nobody wants to know."""


class Application:
    """The App with its jobs, and the services on it. Make it with `opened`."""

    def __init__(self, settings: Settings, around: Around = just_run, warn: Warn = say_nothing) -> None:
        self.settings = settings
        self.box = todoku.App(settings.database)
        self.database: Database = open_database(settings.database)
        self.mailer: Mailer = open_mailer(settings)
        self._around = around
        self._warn = warn
        self.jobs = {type: self._declared(type, processor) for type, processor in PROCESSORS.items()}
        self.queue = JobQueue(settings.database, self.database, self.jobs)
        self.users = Users(self.database, self.queue, best_effort=settings.enqueue == "best_effort")

    def prepare(self) -> None:
        """Make what is missing in the database: todoku's tables, the example's, and the view `job_queue`."""
        self.box.migrate()
        self.database.prepare()

    def close(self) -> None:
        """Give back every connection."""
        self.database.close()
        self.box.close()

    def _declared(self, type: JobType, processor: Processor) -> todoku.Job[..., Any]:
        """A job of todoku's: after each failure the seed's 5, 10, 15 minutes."""

        @self.box.job(type.value, max_retries=MAX_RETRIES, backoff=todoku.linear(minutes=5), keep_result=type in KEPT)
        def handle(ctx: todoku.Context, payload: JobPayload) -> Any:
            return self._around(ctx.delivery_id, type, lambda: processor(self._running(ctx), payload))

        return handle

    def _running(self, ctx: todoku.Context) -> RunningJob:
        return RunningJob(
            id=ctx.delivery_id,
            key=ctx.idempotency_key,
            priority=ctx.priority,
            max_retries=ctx.max_attempts - 1,
            started_at=datetime.now(UTC),
            database=self.database,
            mailer=self.mailer,
            settings=self.settings,
            warn=lambda text: self._warn(f"Job {ctx.delivery_id}: {' '.join(text.split())}"),
        )


@contextmanager
def opened(settings: Settings, around: Around = just_run, warn: Warn = say_nothing) -> Iterator[Application]:
    """An Application on a database that has everything; closed at the end."""
    application = Application(settings, around, warn)
    try:
        application.prepare()
        yield application
    finally:
        application.close()

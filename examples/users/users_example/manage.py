"""`worker-manager stats|list|enqueue|clear [database_path] …`: the seed's command, in its exact forms."""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn, cast

import todoku
from users_example.application import opened
from users_example.database import Row
from users_example.payload import JobPayload, JobType
from users_example.queue import LARGEST_PRIORITY, STATUSES, Status
from users_example.settings import read_settings

USAGE = """\
worker-manager stats   [database_path]
       worker-manager list    [database_path] [status]
       worker-manager enqueue [database_path] <job_type> <message> [priority]
       worker-manager clear   [database_path] [status] [--yes]"""
DESCRIPTION = f"""\
job_type: {", ".join(JobType)}
status:   {", ".join(STATUSES)}
database_path is a SQLite file or a URL; left out, it is DATABASE_URL, else workers.db.
"""
_PREVIEW = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 the database failed or somebody said no, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="worker-manager",
        usage=USAGE,
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=["stats", "list", "enqueue", "clear"])
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("-y", "--yes", action="store_true", help="clear what is pending or failed without asking")
    given = parser.parse_args(arguments)
    try:
        return Command(parser, yes=given.yes).run(given.command, given.words)
    except todoku.TodokuError as error:
        sys.stderr.write(f"worker-manager: {error}\n")
        return 2 if isinstance(error, todoku.InvalidSetting | todoku.InvalidMessage) else 1


class Command:
    """One call of worker-manager. The first word is the database unless it can be nothing but the next word."""

    def __init__(self, parser: argparse.ArgumentParser, *, yes: bool) -> None:
        self._parser = parser
        self._yes = yes

    def run(self, command: str, words: list[str]) -> int:
        """Do what the words say."""
        match command:
            case "stats":
                return self._stats(words)
            case "list":
                return self._list(words)
            case "enqueue":
                return self._enqueue(words)
            case _:
                return self._clear(words)

    def _stats(self, words: list[str]) -> int:
        if len(words) > 1:
            self._wrong(f"stats takes a database and nothing else: {' '.join(words[1:])}")
        with self._opened(words[0] if words else None) as application:
            stats = application.queue.stats()
        for name in STATUSES:
            print(f"{name.capitalize() + ':':<12} {getattr(stats, name)}")
        return 0

    def _list(self, words: list[str]) -> int:
        database, status = self._database_and_status(words, default="pending")
        with self._opened(database) as application:
            jobs = application.queue.list(status)
        for job in jobs:
            print("\n".join(shown(job)))
        print(f"{len(jobs)} {status} job{'' if len(jobs) == 1 else 's'}" + (", the newest" if len(jobs) == 20 else ""))
        return 0

    def _enqueue(self, words: list[str]) -> int:
        database = None if not words or words[0] in set(JobType) or len(words) < 3 else words.pop(0)
        if not 2 <= len(words) <= 3:
            self._wrong("enqueue takes <job_type> <message> [priority]")
        type, message, priority = self._job_type(words[0]), words[1], self._priority(words[2:])
        with self._opened(database) as application:
            job = application.queue.number(
                application.queue.enqueue(type, JobPayload(message=message), priority)
            )  # fmt: skip
        print(f"Enqueued job {job} (type: {type.value}, priority: {priority})")
        return 0

    def _clear(self, words: list[str]) -> int:
        """What is completed goes without asking. What would be lost needs a yes: typed, or --yes in a script."""
        database, status = self._database_and_status(words, default="completed")
        if status == "processing":
            self._wrong("jobs that are processing belong to their worker; stop it, or wait")
        with self._opened(database) as application:
            number = getattr(application.queue.stats(), status)
            if number and status != "completed" and not self._yes and not self._agreed(number, status):
                return 1
            cleared = application.queue.clear(status, by=_user(), why="worker-manager clear") if number else 0
        print(f"Cleared {cleared} {status} job{'' if cleared == 1 else 's'}")
        return 0

    # ------------------------------------------------------------------------------------------ the words

    def _opened(self, database: str | None) -> Any:
        return opened(read_settings(os.environ, database))

    def _database_and_status(self, words: list[str], default: Status) -> tuple[str | None, Status]:
        database = None if not words or (len(words) == 1 and words[0] in STATUSES) else words[0]
        rest = words if database is None else words[1:]
        if len(rest) > 1:
            self._wrong(f"too many words: {' '.join(rest[1:])}")
        if rest and rest[0] not in STATUSES:
            self._wrong(f"{rest[0]!r} is no status; there are {', '.join(STATUSES)}")
        return database, cast("Status", rest[0]) if rest else default

    def _job_type(self, word: str) -> JobType:
        if word not in set(JobType):
            self._wrong(f"{word!r} is no job type; there are {', '.join(JobType)}")
        return JobType(word)

    def _priority(self, words: list[str]) -> int:
        if not words:
            return 0
        if not words[0].isdecimal() or int(words[0]) > LARGEST_PRIORITY:
            self._wrong(
                f"priority cannot be {words[0]!r}: a whole number from 0 to {LARGEST_PRIORITY}, larger is sooner"
            )
        return int(words[0])

    def _agreed(self, number: int, status: str) -> bool:
        if not sys.stdin.isatty():
            self._wrong(f"this would remove {number} {status} jobs: say --yes where nobody can be asked")
        print(f"Remove {number} {status} job{'' if number == 1 else 's'} for good? [y/N] ", end="", flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def _wrong(self, problem: str) -> NoReturn:
        self._parser.error(problem)


def shown(job: Row) -> list[str]:
    """A job as `list` prints it."""
    retries = f"{job['retry_count']}/{job['max_retries']}"
    lines = [f"ID: {job['id']}  Type: {job['job_type']}  Priority: {job['priority']}  Retries: {retries}"]
    lines.append(f"  Created: {job['created_at']}")
    if job["error_message"]:
        lines.append(f"  Error: {job['error_message']}")
    lines.append(f"  Payload: {_preview(job['payload'] or '')}")
    if job["result"] is not None:
        lines.append(f"  Result: {_preview(job['result'])}")
    return lines


def _preview(text: str) -> str:
    return text if len(text) <= _PREVIEW else text[: _PREVIEW - 1] + "…"


def _user() -> str:
    try:
        return os.environ.get("TODOKU_BY") or getpass.getuser()
    except (KeyError, OSError):  # a container without a name for its user
        return f"uid {os.getuid()}"


if __name__ == "__main__":
    sys.exit(main())

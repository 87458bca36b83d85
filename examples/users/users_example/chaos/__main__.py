"""`python -m users_example.chaos`: the show. Exits 1 if a user was forgotten or a second mail is unexplained."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from users_example.application import opened
from users_example.chaos.crowd import Hunt, Hunter, crowd_in, free_port, listening, post_users, until
from users_example.chaos.post_office import Mail
from users_example.chaos.verdict import Verdict, judged, table
from users_example.settings import Settings

_START = 60.0

_ENVIRON = {
    "USER_CREATED_MS": "0",
    "WORKER_COUNT": "3",
    # Nobody else ends the lease of who was killed, so it should run out soon, and yet outlast a busy machine's pauses.
    "TODOKU_LEASE_SEC": "8",
    "TODOKU_RECLAIM_INTERVAL_SEC": "1",
    # What a worker holds when it is killed waits for its lease: it should not take much more than it can run.
    "TODOKU_BATCH": "4",
    # A job whose workers die under it three times is given up for killing them. Here it is us.
    "TODOKU_MAX_LOST": "1000",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m users_example.chaos")
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=3, help="worker processes")
    parser.add_argument("--kill-every", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--kills", type=int, help="at most so many; else until the last job is done")
    parser.add_argument("--patience", type=float, default=1800.0, metavar="SECONDS", help="for the whole queue")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and nobody is left behind
    with tempfile.TemporaryDirectory(prefix="users-chaos-") as home:
        url = os.environ.get("DATABASE_URL") or f"sqlite:///{home}/workers.db"
        began = time.monotonic()
        hunt = Hunt(workers=given.workers, every=given.kill_every, most=given.kills)
        verdict = shown(Path(home), url, given.users, hunt, given.patience)
        seconds = time.monotonic() - began
    print(table([
        ("users posted", verdict.users),
        ("worker processes killed", verdict.kills),
        ("jobs that lost a worker", verdict.lost),
        ("users without a welcome mail", sum("no welcome" in problem for problem in verdict.problems)),
        ("mails", verdict.mails),
        ("second mails", verdict.second_mails),
        ("  of them explained by a kill", verdict.explained),
        ("seconds", f"{seconds:.0f}"),
    ]))  # fmt: skip
    for problem in verdict.problems[:20]:
        print(f"PROBLEM {problem}")
    return 1 if verdict.problems else 0


def shown(home: Path, url: str, users: int, hunt: Hunt, patience: float) -> Verdict:
    """Post, kill, wait until nothing is left to do, stop, compare."""
    mail_port, port, noted = free_port(), free_port(), home / "mails.jsonl"
    environ = {name: os.environ.get(name, value) for name, value in _ENVIRON.items()} | {
        "DATABASE_URL": url,
        "SMTP_URL": f"smtp://127.0.0.1:{mail_port}",
        "PORT": str(port),
    }
    with crowd_in(home, environ) as crowd, opened(Settings(database=url)) as application:
        if application.queue.stats().completed:
            raise SystemExit("this database has been used: give me an empty one")
        crowd.start("users_example.chaos.post_office", str(mail_port), str(noted))
        crowd.start("users_example.server")
        until(lambda: listening(mail_port) and listening(port), "the post office and the API", _START)
        hunter = Hunter(crowd, hunt)
        hunter.start()
        posted = post_users(port, users)

        def is_over() -> bool:
            time.sleep(1)  # counting is work for the database, too
            stats = application.queue.stats()
            return stats.pending == stats.processing == 0

        until(is_over, "the last job", patience)
        codes = hunter.stop()
        mails = [msgspec.json.decode(line, type=Mail) for line in noted.read_bytes().splitlines()]
        with application.database.transaction(writes=False) as tx:
            verdict = judged(posted, mails, hunter.kills, tx)
    if not {*codes} <= {0, -signal.SIGTERM}:  # the latter: it was about to begin
        said = f"workers that were asked to stop ended with {codes}"
        return msgspec.structs.replace(verdict, problems=(*verdict.problems, said))
    return verdict


if __name__ == "__main__":
    sys.exit(main())

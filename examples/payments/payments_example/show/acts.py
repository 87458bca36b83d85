"""The two plays: everything in one database, and a queue elsewhere. In both, whoever works is killed in the middle."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import text

from payments_example.database import open_engine
from payments_example.show.parts import Admin, Pager, Part, Stripe, free_port, until
from payments_example.show.story import Story
from payments_example.show.verdict import judged

SECRET = "whsec_of_the_show"  # noqa: S105 - nobody else's
TOKEN = "the-admin-token-of-the-show"  # noqa: S105
KEYS = ("sig_of_the_show_current_0000000000000", "sig_of_the_show_next_0000000000000000")
WHO = "ana"


class Result(msgspec.Struct, frozen=True):
    """What is printed, and what is wrong."""

    lines: tuple[tuple[str, object], ...]
    problems: tuple[str, ...]


class Stage:
    """The programs of a play, their directory and database; all of them end with it."""

    def __init__(self, home: Path, url: str, mode: str) -> None:
        self.home = home
        self.remote = mode == "queue"
        self.engine = open_engine(url)
        self.pager = Pager()
        self.parts: dict[str, Part] = {}
        port, worker, queue = free_port(), free_port(), free_port()
        self._usual = {
            "DATABASE_URL": url, "MODE": mode, "STRIPE_WEBHOOK_SECRET": SECRET, "ADMIN_TOKEN": TOKEN,
            "FIRST_WAIT_SEC": "0.05", "WORKER_URL": f"http://127.0.0.1:{worker}/worker",
            "QSTASH_URL": f"http://127.0.0.1:{queue}", "QSTASH_TOKEN": TOKEN,
            "QSTASH_CURRENT_SIGNING_KEY": KEYS[0], "QSTASH_NEXT_SIGNING_KEY": KEYS[1],
            "TODOKU_HTTP_LOOPBACK": "1", "TODOKU_LEASE_SEC": "5", "TODOKU_RECLAIM_INTERVAL_SEC": "1",
            "TODOKU_ALERT_WEBHOOK": self.pager.url, "TODOKU_ALERT_INTERVAL_SEC": "0.2", "TODOKU_PROCESSES": "1",
        }  # fmt: skip
        self._add("api", port, "payments_example.server", PORT=str(port), SPOOL=str(home / "api-spool.db"))
        self._add("worker", worker, "payments_example.server", PORT=str(worker), SPOOL=str(home / "worker-spool.db"))
        run = ("todoku", "run", "--app", "payments_example.box:box")
        daemon = free_port()
        self._add("daemon", daemon, *run, TODOKU_PORT=str(daemon))
        own = f"sqlite:///{home}/queue.db"
        self._add(
            "queue", queue, "todoku", "up", "--db", own, TODOKU_PORT=str(queue), TODOKU_TOKEN=TOKEN,
            TODOKU_SIGNING_KEYS=",".join(KEYS),
        )  # fmt: skip
        self._add("sync", 0, "todoku", "dlq-sync", "--db", url, "--watch", "0.2s")
        self.admin = Admin(self.parts["api"].url, WHO, TOKEN)

    def _add(self, name: str, port: int, *words: str, **environ: str) -> None:
        self.parts[name] = Part(name, self.home, self._usual | environ, port, *words)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for part in self.parts.values():
            part.kill()
        self.pager.close()
        self.engine.dispose()

    def column(self, statement: str) -> list[Any]:
        """The first column of what a query finds."""
        with self.engine.connect() as tx:
            return [row[0] for row in tx.execute(text(statement))]

    def queued(self, statement: str) -> int:
        """A number of the queue that is elsewhere, read where it keeps it."""
        own = open_engine(f"sqlite:///{self.home}/queue.db")
        with own.connect() as tx:
            number = int(tx.execute(text(statement)).scalar_one())
        own.dispose()
        return number

    def mend(self, story: Story) -> None:
        """Everybody's address; and, of the payments that are nobody's, whose they are."""
        with self.engine.begin() as tx:
            for intent in story.ends:
                id = f"participant-{intent.removeprefix('pi_')}"
                values = {"id": id, "email": f"{id}@example.com", "intent": intent if intent in story.whose else None}
                tx.execute(
                    text(
                        "insert into participants (id, email, intent) values (:id, :email, :intent)"
                        " on conflict (id) do update set intent = excluded.intent"
                    ),
                    values,
                )


def embedded(stage: Stage, story: Story) -> Result:
    """Everything in one database: ingest and work are programs of their own, and each is killed once."""
    api, daemon = stage.parts["api"], stage.parts["daemon"]
    api.start("/payments/none")
    daemon.start("/readyz")
    stage.mend(msgspec.structs.replace(story, whose={}))
    stripe = Stripe(f"{api.url}/ingest/stripe", SECRET)
    third = len(story.posts) // 3
    stripe.post(story.posts[:third])
    daemon.kill()  # nobody works now, and Stripe need not know
    stripe.post(story.posts[third : 2 * third])
    waiting = stage.column("select count(*) from todoku_delivery where status = 'pending'")[0]
    daemon.start("/readyz")
    killing = threading.Thread(target=lambda: (api.kill(), api.start("/payments/none")))
    killing.start()
    stripe.post(story.posts[2 * third :])  # again and again, while nobody is there
    killing.join()
    return _ended(stage, story, stripe, (("events that waited for a worker", waiting),))


def queue(stage: Stage, story: Story) -> Result:
    """The queue is elsewhere. The worker is away for a while, and then the queue itself."""
    api, worker, server = stage.parts["api"], stage.parts["worker"], stage.parts["queue"]
    server.start("/readyz")
    for part in (api, worker):
        part.start("/payments/none")
    stage.parts["daemon"].start("/readyz")
    stage.parts["sync"].launch()
    stage.mend(msgspec.structs.replace(story, whose={}))
    stripe = Stripe(f"{api.url}/webhooks/stripe", SECRET)
    third = len(story.posts) // 3
    stripe.post(story.posts[:third])
    worker.kill()  # some die after four attempts; then the breaker lets the others wait, and burns none of theirs
    stripe.post(story.posts[third : 2 * third])
    waiting = stage.queued("select count(*) from todoku_delivery where status in ('pending', 'failed', 'sending')")
    server.kill()  # and the webhook keeps what comes on its own disk
    stripe.post(story.posts[2 * third :])
    worker.start("/payments/none")
    server.start("/readyz")
    return _ended(stage, story, stripe, (("requests that waited for the worker", waiting),))


def _ended(stage: Stage, story: Story, stripe: Stripe, more: tuple[tuple[str, object], ...]) -> Result:
    """Find what failed, mend it, run it again by hand; then compare."""
    first = until(lambda: _dead(stage, story), "everything to be done, or dead")
    stage.mend(story)
    reruns = 0
    while _unseen(stage, story):
        for row in stage.admin.failed():
            if row["rerun_at"] is None:
                stage.admin.rerun(row["event_id"], "we know now whose it is, and everybody is back")
                reruns += 1
        until(lambda: not _open(stage) and (not _unseen(stage, story) or _dead(stage, story)), "what was run again")
    outbox = stage.home / "outbox"
    until(lambda: len([*outbox.glob("*.eml")]) >= stage.column("select count(*) from payment_events where applied")[0],
          "the mails")  # fmt: skip
    until(lambda: stage.pager.states("dead_letters")[-1:] == ["over"], "the alert, and that it is over")
    verdict = judged(stage.engine, story, len([*outbox.glob("*.eml")]))
    lines = (
        ("payments", verdict.payments), ("events", verdict.events), ("posts of them", stripe.posts),
        ("posts that were not taken at first", stripe.refused), *more,
        *((f"dead letters: {reason}", number) for reason, number in sorted(first.items())),
        ("run again by hand", reruns), ("too late to count", verdict.late), ("mails", verdict.mails),
        ("alerts told", len(stage.pager.told)), ("lost", sum("lost" in problem for problem in verdict.problems)),
    )  # fmt: skip
    return Result(lines, (*verdict.problems, *_unaudited(stage, reruns)))


def _dead(stage: Stage, story: Story) -> Counter[str]:
    """The dead letters by reason, once every event is applied, or dead; else nothing."""
    failed = {row["event_id"]: row for row in stage.admin.failed() if row["rerun_at"] is None}
    missing = _unseen(stage, story)
    if missing - failed.keys() or _open(stage):
        return Counter()
    return Counter(row["error"].partition(":")[0] for row in failed.values())


def _unseen(stage: Stage, story: Story) -> set[str]:
    return set(story.ids) - set(stage.column("select stripe_event_id from payment_events"))


def _open(stage: Stage) -> bool:
    return bool(stage.column("select 1 from todoku_delivery where status in ('pending', 'sending', 'failed') limit 1"))


def _unaudited(stage: Stage, reruns: int) -> list[str]:
    """Who ran something again, and why, is written down: in the database of the queue."""
    if stage.remote:
        noted = stage.queued("select count(*) from todoku_audit where action = 'replay'")
    else:
        noted = stage.column(f"select count(*) from todoku_audit where action = 'replay' and by = '{WHO}'")[0]
    return [] if noted == reruns else [f"{reruns} were run again, and {noted} are in the audit"]

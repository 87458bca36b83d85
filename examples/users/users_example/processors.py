"""What each type of job does. Another type is added in three steps: see README.md.

A job may run twice: its worker may die after the work and before anybody wrote that down. So each of these asks what it
has done already, and writes what it does in one transaction, `job.ending()`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import msgspec

import todoku
from users_example.database import Database, Transaction
from users_example.files import write_atomically
from users_example.mail import Mailer, MailRefused, letter
from users_example.payload import JobPayload, JobType
from users_example.properties import Properties, parsed
from users_example.settings import Settings


class RunningJob(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt of a job, and what it may use. `key` is the same on every attempt."""

    id: int
    key: str
    priority: int
    max_retries: int
    started_at: datetime
    database: Database
    mailer: Mailer
    settings: Settings
    warn: Callable[[str], None]

    @contextmanager
    def ending(self) -> Iterator[Transaction]:
        """The transaction that ends the job: what it writes and when it began are one commit."""
        with self.database.transaction() as tx:
            yield tx
            ran = {"job": self.id, "priority": self.priority, "retries": self.max_retries, "began": self.started_at}
            tx.change(_RAN, **ran)

    def written_to(self) -> dict[str, str]:
        """Who this job has written to, on this attempt or an earlier one: sent, or refused."""
        with self.database.transaction(writes=False) as tx:
            found = tx.rows("select recipient, state from mail_log where job_id = :job", job=self.id)
        return {row["recipient"]: row["state"] for row in found}

    def wrote_to(self, tx: Transaction, recipient: str, refused: str | None = None) -> None:
        """Note that this recipient is done, for good."""
        state = "sent" if refused is None else "refused"
        tx.change(_WROTE, job=self.id, recipient=recipient, state=state, detail=refused)


_RAN: Final = """
    insert into job_runs (job_id, priority, max_retries, started_at) values (:job, :priority, :retries, :began)
    on conflict (job_id) do update set started_at = excluded.started_at"""
_WROTE: Final = """
    insert into mail_log (job_id, recipient, state, detail) values (:job, :recipient, :state, :detail)
    on conflict (job_id, recipient) do nothing"""
_PROFILE: Final = """
    insert into profiles (user_id, hobby, location, score) values (:user, :hobby, :location, :score)
    on conflict (user_id) do nothing"""
_SIGNUP: Final = """
    insert into signups (day, number) values (current_date, 1)
    on conflict (day) do update set number = signups.number + 1"""
_EVERYBODY: Final = """
    select users.id, users.name, users.email, profiles.hobby, profiles.location, profiles.score
      from users left join profiles on profiles.user_id = users.id"""

Processor = Callable[[RunningJob, JobPayload], Any]


def user_created(job: RunningJob, payload: JobPayload) -> None:
    """Welcome a user: a mail, a profile from the additional properties, and one more sign-up in the metric."""
    known = parsed(payload.additional_props, payload.validation_mode)
    for warning in known.warnings:
        job.warn(warning)
    time.sleep(job.settings.user_created)
    if payload.user_id is None:  # a test job of worker-manager: there is nobody to welcome
        return _only_said(job, payload)
    address = payload.user_data.get("email")
    if not isinstance(address, str):
        raise todoku.Abort("NO_ADDRESS", f"user_data.email of user {payload.user_id} is {address!r}")
    refused = None
    if address not in job.written_to():
        refused = _sent(job, address, "Welcome", _welcome(payload, known))
    with job.ending() as tx:
        job.wrote_to(tx, address, refused)
        _remember(tx, payload.user_id, known)
    return _judged(job, payload, {} if refused is None else {address: refused})


def data_analysis(job: RunningJob, payload: JobPayload) -> dict[str, Any]:
    """Count users, where they live and how they score. The result is kept with the job."""
    time.sleep(job.settings.data_analysis)
    with job.ending() as tx:
        people = tx.rows(_EVERYBODY)
    scores = [row["score"] for row in people if row["score"] is not None]
    places = [row["location"] for row in people if row["location"] is not None]
    return {
        "message": payload.message,
        "users": len(people),
        "mean_score": round(sum(scores) / len(scores), 2) if scores else None,
        "by_location": dict(sorted(Counter(places).items())),
    }


def email_notification(job: RunningJob, payload: JobPayload) -> None:
    """One mail to each recipient. Whoever this job has written to is not written to again, on whatever attempt."""
    time.sleep(job.settings.email_notification)
    done = job.written_to()
    refused: dict[str, str] = {}
    missed: OSError | None = None
    for address in dict.fromkeys(payload.recipients):
        if address in done:
            continue
        try:
            said = _sent(job, address, payload.message[:78], payload.message)
        except OSError as error:  # a server that is away for one may be there for the next
            missed = error
            continue
        if said is not None:
            refused[address] = said
        with job.database.transaction() as tx:  # at once: a crash must not send what is sent again
            job.wrote_to(tx, address, said)
    if missed is not None:
        raise missed
    if not payload.recipients:
        refused["(nobody)"] = "recipients is empty"
    with job.ending():
        pass
    return _judged(job, payload, refused)


def data_export(job: RunningJob, payload: JobPayload) -> str:
    """Write the users, or one of them, as JSON into EXPORT_DIR. Returns where. Nobody ever sees half a file."""
    with job.ending() as tx:
        chosen = "" if payload.user_id is None else " where users.id = :user"
        people = tx.rows(f"{_EVERYBODY}{chosen} order by users.id", user=payload.user_id)
    path = job.settings.exports / f"users-{job.id}.json"
    write_atomically(path, json.dumps({"message": payload.message, "users": people}, ensure_ascii=False).encode())
    return str(path)


KEPT: Final = frozenset({JobType.DATA_ANALYSIS, JobType.DATA_EXPORT})
"""The types whose result is kept with the job."""

PROCESSORS: Final[Mapping[JobType, Processor]] = {
    JobType.USER_CREATED: user_created,
    JobType.DATA_ANALYSIS: data_analysis,
    JobType.EMAIL_NOTIFICATION: email_notification,
    JobType.DATA_EXPORT: data_export,
}


def _only_said(job: RunningJob, payload: JobPayload) -> None:
    job.warn(f"no user_id: nobody to welcome ({payload.message!r})")
    with job.ending():
        pass


def _sent(job: RunningJob, to: str, subject: str, text: str) -> str | None:
    """None: it was sent. A text: it was refused for good, and why. Any other error is worth another attempt."""
    try:
        job.mailer.send(letter(sender=job.settings.mail_from, to=to, subject=subject, text=text, key=job.key))
    except MailRefused as error:
        return str(error)
    return None


def _judged(job: RunningJob, payload: JobPayload, refused: Mapping[str, str]) -> None:
    """What could not be sent and never will: strict gives the job up, lenient says so."""
    for address, why in refused.items():
        if payload.validation_mode == "strict":
            raise todoku.Abort("MAIL_REFUSED", f"{address}: {why}")
        job.warn(f"{address}: {why}")


def _welcome(payload: JobPayload, known: Properties) -> str:
    about = [f"{name}: {value}" for name, value in (("hobby", known.hobby), ("location", known.location)) if value]
    hello = f"Hello {payload.user_data.get('name') or 'there'}, you are user {payload.user_id}."
    return "\n".join([hello, payload.message, *about]) + "\n"


def _remember(tx: Transaction, user_id: int, known: Properties) -> None:
    """The profile, and the metric with it: who has a profile is counted."""
    profile = {"user": user_id, "hobby": known.hobby, "location": known.location, "score": known.score}
    if tx.change(_PROFILE, **profile):
        tx.change(_SIGNUP)

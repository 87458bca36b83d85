"""examples/users, its services and processors, on each database (S3-6 … S3-18, S3-31 … S3-58, S3-71, S3-72, S3-108)."""

from __future__ import annotations

import json
import logging
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from users_example.application import Application, opened
from users_example.payload import JobPayload, JobType
from users_example.processors import PROCESSORS
from users_example.queue import Stats
from users_example.settings import Settings
from users_example.telling import Telling, hear_todoku
from users_example.users import EmailTaken

import todoku
from tests.examples.users_at_work import PostOffice, application_at, sql

COLUMNS = [
    "id", "job_type", "payload", "status", "priority", "max_retries", "retry_count", "error_message", "scheduled_at",
    "started_at", "completed_at", "created_at",
]  # fmt: skip
PROPS = {"hobby": "chess", "location": "Kyoto", "score": 42}


def ada(application: Application, **more: Any) -> int:
    return application.users.create("Ada", "ada@users.example", PROPS, **more).id


def only_job(application: Application) -> dict[str, Any]:
    with application.database.transaction(writes=False) as tx:
        (job,) = tx.rows("select * from job_queue")
    return job


def number(application: Application, table: str) -> int:
    ((count,),) = sql(application.settings.database, f"select count(*) from {table}")
    return int(count)


# ------------------------------------------------------------------------------------------------------ users


def test_a_user_and_the_job_that_welcomes_them_are_one_commit(application: Application) -> None:
    """I2, S3-71: priority 1, the whole payload."""
    id = ada(application)
    job = only_job(application)
    assert (job["job_type"], job["status"], job["priority"]) == ("user_created", "pending", 1)
    assert json.loads(job["payload"]) == {
        "user_id": id, "user_data": {"name": "Ada", "email": "ada@users.example"}, "additional_props": PROPS,
    }  # fmt: skip


def test_an_address_has_one_user(application: Application) -> None:
    ada(application)
    with pytest.raises(EmailTaken):
        ada(application)
    assert (number(application, "users"), number(application, "job_queue")) == (1, 1)


def test_a_payload_that_is_refused_leaves_no_user(application: Application) -> None:
    """I2: nothing is stored of what is too large."""
    with pytest.raises(todoku.InvalidMessage):
        application.users.create("Ada", "ada@users.example", {"hobby": "x" * 2_000_000})
    assert number(application, "users") == 0


def test_by_default_an_enqueue_that_fails_fails_the_user_too(application: Application) -> None:
    sql(application.settings.database, "alter table todoku_delivery rename to away")
    with pytest.raises((sqlite3.Error, psycopg.Error, todoku.TodokuError)):
        ada(application)
    assert number(application, "users") == 0


def test_with_best_effort_the_user_stays_and_the_failure_is_logged_and_counted(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S3-72, the seed's own rule."""
    with application_at(url, tmp_path, enqueue="best_effort") as application:
        sql(url, "alter table todoku_delivery rename to away")
        with caplog.at_level(logging.ERROR, logger="todoku"):
            created = application.users.create("Ada", "ada@users.example", PROPS)
        assert created.job is None
        assert application.users.enqueue_failed == 1
        assert "ENQUEUE_FAILED" in caplog.text
        assert number(application, "users") == 1
        sql(url, "alter table away rename to todoku_delivery")
        assert application.users.create("Bob", "bob@users.example", {}).job is not None
        assert number(application, "job_queue") == 1


# ------------------------------------------------------------------------------------------------- processors


def test_user_created_mails_parses_counts_and_makes_a_profile(
    application: Application, post_office: PostOffice
) -> None:
    """S3-31 … S3-34."""
    id = ada(application)
    assert application.box.drain() == 1
    (mail,) = post_office.mails
    assert (mail["To"], mail["Subject"]) == ("ada@users.example", "Welcome")
    user = application.users.get(id)
    assert user is not None
    assert user["profile"] == PROPS
    assert user["additional_props"] == PROPS
    assert sql(application.settings.database, "select number from signups") == [(1,)]
    assert only_job(application)["status"] == "completed"


def test_user_created_does_nothing_twice(application: Application, post_office: PostOffice) -> None:
    """S3-103: its worker died after the work, before the settle; here the job is replayed as if it had."""
    ada(application)
    job = application.jobs[JobType.USER_CREATED]
    payload = JobPayload(user_id=1, user_data={"name": "Ada", "email": "ada@users.example"}, additional_props=PROPS)
    for _ in range(2):
        job(payload)  # here and now: the same delivery number, 0, each time
    assert post_office.receivers == ["ada@users.example"]
    assert sql(application.settings.database, "select number from signups") == [(1,)]


def test_a_bad_score_gives_a_strict_job_up_before_anything_is_sent(
    application: Application, post_office: PostOffice
) -> None:
    application.users.create("Ada", "ada@users.example", {"score": "high"}, "strict")
    application.box.drain()
    job = only_job(application)
    assert (job["status"], job["retry_count"]) == ("failed", 0)
    assert "additional_props.score: 'high' is no number" in job["error_message"]
    assert post_office.mails == []


def test_a_bad_score_is_a_warning_to_a_lenient_job(url: str, tmp_path: Path, post_office: PostOffice) -> None:
    with application_at(url, tmp_path, smtp_url=post_office.url) as application:
        warnings: list[str] = []
        application._warn = warnings.append
        id = application.users.create("Ada", "ada@users.example", {"hobby": "go", "score": "high"}).id
        application.box.drain()
        user = application.users.get(id)
        assert user is not None
        assert user["profile"] == {"hobby": "go", "location": None, "score": None}
        assert warnings == ["Job 1: additional_props.score: 'high' is no number"]


def test_a_mailbox_that_is_refused_for_good_is_not_tried_again(
    application: Application, post_office: PostOffice
) -> None:
    post_office.answers["ada@users.example"] = "550 no such mailbox"
    ada(application, validation_mode="strict")
    application.box.drain()
    job = only_job(application)
    assert job["status"] == "failed"
    assert "550 no such mailbox" in job["error_message"]


def test_data_analysis_keeps_its_result(application: Application) -> None:
    """S3-37."""
    for n, place in enumerate(("Kyoto", "Osaka", "Kyoto")):
        application.users.create(f"User {n}", f"user-{n}@users.example", {"location": place, "score": n})
    application.box.drain()
    handle = application.queue.enqueue(JobType.DATA_ANALYSIS, JobPayload(message="how many?"))
    application.box.drain()
    assert handle.result(timeout=5) == {
        "message": "how many?", "users": 3, "mean_score": 1.0, "by_location": {"Kyoto": 2, "Osaka": 1},
    }  # fmt: skip


def test_a_retried_notification_mails_only_who_is_missing(application: Application, post_office: PostOffice) -> None:
    """S3-39, S3-40: a delivery log, unique on (job, recipient)."""
    url = application.settings.database
    people = tuple(f"{name}@users.example" for name in ("ada", "bob", "cid", "bob"))
    post_office.answers = {"bob@users.example": "451 try again later", "cid@users.example": "550 no such mailbox"}
    application.queue.enqueue(JobType.EMAIL_NOTIFICATION, JobPayload(message="news", recipients=people))
    application.box.drain()
    assert post_office.receivers == ["ada@users.example"]
    assert "451 try again later" in only_job(application)["error_message"]
    post_office.answers = {}
    _let_it_be_due(url)
    application.box.drain()
    assert post_office.receivers == ["ada@users.example", "bob@users.example"]
    assert sql(url, "select recipient, state from mail_log order by recipient") == [
        ("ada@users.example", "sent"), ("bob@users.example", "sent"), ("cid@users.example", "refused"),
    ]  # fmt: skip
    assert only_job(application)["status"] == "completed"


def test_a_strict_notification_to_nobody_is_given_up(application: Application) -> None:
    application.queue.enqueue(JobType.EMAIL_NOTIFICATION, JobPayload(message="news", validation_mode="strict"))
    application.box.drain()
    assert "recipients is empty" in only_job(application)["error_message"]


@pytest.mark.parametrize("whom", [None, 2])
def test_data_export_writes_a_file(application: Application, tmp_path: Path, whom: int | None) -> None:
    """S3-42."""
    for n in (1, 2):
        application.users.create(f"User {n}", f"user-{n}@users.example", {"score": n})
    application.box.drain()
    handle = application.queue.enqueue(JobType.DATA_EXPORT, JobPayload(user_id=whom, message="all of it"))
    application.box.drain()
    path = Path(handle.result(timeout=5))
    assert path.parent == tmp_path / "exports"
    written = json.loads(path.read_text("utf-8"))
    assert [user["id"] for user in written["users"]] == ([1, 2] if whom is None else [2])
    assert written["users"][-1] == {
        "id": 2, "name": "User 2", "email": "user-2@users.example", "hobby": None, "location": None, "score": 2.0,
    }  # fmt: skip


@pytest.mark.parametrize("type", JobType)
def test_a_test_job_of_every_type_completes(application: Application, type: JobType) -> None:
    """S3-68: worker-manager gives a message and nothing else."""
    application.queue.enqueue(type, JobPayload(message="Test job"), 5)
    application.box.drain()
    job = only_job(application)
    assert (job["status"], job["priority"]) == ("completed", 5)
    assert job["started_at"] is not None


def test_every_type_has_a_processor() -> None:
    assert set(PROCESSORS) == set(JobType)


# ---------------------------------------------------------------------------------------------------- retries


def _let_it_be_due(url: str) -> None:
    past = "0" if url.startswith("sqlite:") else "todoku_now()"
    sql(url, f"update todoku_delivery set next_run_at = {past} where status = 'failed'")


def _due(job: dict[str, Any]) -> datetime:
    """When a job runs again, to the second."""
    at: str | datetime = job["scheduled_at"]
    return datetime.fromisoformat(at).replace(tzinfo=UTC) if isinstance(at, str) else at


def test_a_job_that_fails_waits_5_10_15_minutes_and_is_given_up_after_four_executions(
    application: Application, post_office: PostOffice
) -> None:
    """S3-12, S3-53 … S3-56: the seed's row would stay pending for ever after its last retry."""
    url = application.settings.database
    post_office.answers["ada@users.example"] = "451 connection timeout"
    ada(application)
    for failures in (1, 2, 3):
        before = datetime.now(UTC) - timedelta(seconds=1)  # the view shows no more than seconds
        application.box.drain()
        after = datetime.now(UTC)
        job = only_job(application)
        assert (job["status"], job["retry_count"], job["max_retries"]) == ("pending", failures, 3)
        assert "451 connection timeout" in job["error_message"]
        least, most = before + timedelta(minutes=5 * failures), after + timedelta(minutes=5.5 * failures)
        assert least <= _due(job) <= most, "jitter adds up to a tenth"
        assert application.box.drain() == 0, "not before its time"
        _let_it_be_due(url)
    application.box.drain()
    job = only_job(application)
    assert (job["status"], job["retry_count"]) == ("failed", 3)
    assert job["completed_at"] is not None
    assert sql(url, "select count(*) from todoku_attempt") == [(4,)]
    _let_it_be_due(url)
    assert application.box.drain() == 0


def test_a_payload_that_does_not_parse_is_given_up_at_once(application: Application) -> None:
    """S3-82."""
    url = application.settings.database
    application.queue.enqueue(JobType.DATA_ANALYSIS, JobPayload(message="well"))
    sql(url, "update todoku_message set payload = ?", '{"payload": {"message": 7}}')
    application.box.drain()
    job = only_job(application)
    assert (job["status"], job["retry_count"]) == ("failed", 0)
    assert "message" in job["error_message"]


def test_a_worker_tells_how_jobs_begin_and_end(
    sqlite_url: str, tmp_path: Path, post_office: PostOffice, caplog: pytest.LogCaptureFixture
) -> None:
    """S3-91, S3-92: the lowest number that is free; and nothing that todoku says of an ordinary life is repeated."""
    telling = Telling(3)
    hear_todoku(telling)
    settings = Settings(database=sqlite_url, smtp_url=post_office.url, user_created=0, data_analysis=0)
    post_office.answers["bob@users.example"] = "451 busy"
    try:
        with opened(settings, telling.around) as application, caplog.at_level(logging.INFO, logger="worker"):
            for type in (JobType.DATA_ANALYSIS, JobType.DATA_EXPORT):
                application.queue.enqueue(type, JobPayload(message="one at a time"))
                sql(sqlite_url, "update todoku_message set payload = '[]' where topic = 'data_export'")
                application.box.drain()
            application.users.create("Bob", "bob@users.example", {})
            application.box.drain()
    finally:
        logging.getLogger("todoku").removeHandler(telling)
        logging.getLogger("todoku").propagate = True
    said = [record.getMessage() for record in caplog.records if record.name == "worker"]
    assert [text if not text.startswith("TRACEBACK ") else "where it failed" for text in said] == [
        "Worker 1: Processing job 1 (type: data_analysis)",
        "Worker 1: Job 1 completed successfully",
        "Job 2 is given up: BAD_PAYLOAD",
        "Worker 1: Processing job 3 (type: user_created)",
        "Worker 1: Job 3 failed: 451 busy",
        "where it failed",
    ]


# -------------------------------------------------------------------------------------------------- the queue


def four_states(application: Application, post_office: PostOffice) -> None:
    """One job in each of the seed's states; processing is what a worker that is gone has left."""
    url = application.settings.database
    post_office.answers["gone@users.example"] = "550 gone"
    strict = JobPayload(recipients=("gone@users.example",), validation_mode="strict")
    application.queue.enqueue(JobType.EMAIL_NOTIFICATION, strict)
    application.queue.enqueue(JobType.DATA_ANALYSIS, JobPayload(message="done"))
    application.box.drain()
    application.queue.enqueue(JobType.DATA_EXPORT, JobPayload(message="running"))
    worker = "00000000-0000-7000-8000-000000000000"
    sql(
        url,
        "update todoku_delivery set status = 'sending', worker_id = ?, attempts = 1 where status = 'pending'",
        worker,
    )
    application.queue.enqueue(JobType.USER_CREATED, JobPayload(message="waiting"), 3)


def test_the_view_job_queue_has_the_seed_s_columns_and_words(application: Application, post_office: PostOffice) -> None:
    """S3-7 … S3-18."""
    four_states(application, post_office)
    with application.database.transaction(writes=False) as tx:
        jobs = tx.rows("select * from job_queue order by id")
    assert list(jobs[0]) == COLUMNS
    told = [(job["job_type"], job["status"], job["retry_count"], job["max_retries"]) for job in jobs]
    assert told == [
        ("email_notification", "failed", 0, 3),
        ("data_analysis", "completed", 0, 3),
        ("data_export", "processing", 0, 3),
        ("user_created", "pending", 0, 3),
    ]
    assert [job["completed_at"] is not None for job in jobs] == [True, True, False, False]
    assert json.loads(jobs[3]["payload"]) == {"message": "waiting"}


def test_the_seed_s_own_selects_work_on_the_view(application: Application, post_office: PostOffice) -> None:
    """GetNextJob, GetJobStats, ListJobs, and what the seed asks about races; S3-50, S3-57, S3-58."""
    four_states(application, post_office)
    application.queue.enqueue(JobType.USER_CREATED, JobPayload(message="sooner"), 9)
    selects = {
        "SELECT id FROM job_queue WHERE status = 'pending' AND scheduled_at <= CURRENT_TIMESTAMP"
        " AND retry_count < max_retries ORDER BY priority DESC, scheduled_at ASC LIMIT 1": [(5,)],
        "SELECT COUNT(CASE WHEN status = 'pending' THEN 1 END), COUNT(CASE WHEN status = 'processing' THEN 1 END),"
        " COUNT(CASE WHEN status = 'completed' THEN 1 END), COUNT(CASE WHEN status = 'failed' THEN 1 END)"
        " FROM job_queue": [(2, 1, 1, 1)],
        "SELECT id FROM job_queue WHERE status = 'pending' ORDER BY created_at DESC, id DESC LIMIT 20": [(5,), (4,)],
    }
    for select, rows in selects.items():
        assert sql(application.settings.database, select) == rows


@pytest.mark.parametrize("statement", ["delete from job_queue", "update job_queue set status = 'completed'"])
def test_the_view_is_read_only(application: Application, statement: str) -> None:
    ada(application)
    with pytest.raises((sqlite3.Error, psycopg.Error)):
        sql(application.settings.database, statement)
    assert number(application, "job_queue") == 1


def test_stats_and_list(application: Application, post_office: PostOffice) -> None:
    four_states(application, post_office)
    assert application.queue.stats() == Stats(1, 1, 1, 1)
    assert str(Stats(15, 3, 142, 5)) == "Job Stats - Pending: 15, Processing: 3, Completed: 142, Failed: 5"
    assert [job["job_type"] for job in application.queue.list("failed")] == ["email_notification"]
    for n in range(25):
        application.queue.enqueue(JobType.DATA_ANALYSIS, JobPayload(message=str(n)))
    listed = application.queue.list()
    assert [json.loads(job["payload"])["message"] for job in listed] == [str(n) for n in range(24, 4, -1)]


def test_an_enqueued_job_has_a_number_and_a_bad_one_is_refused(application: Application) -> None:
    """S3-49."""
    handle = application.queue.enqueue(JobType.DATA_EXPORT, JobPayload(message="all"), 7)
    assert application.queue.number(handle) == only_job(application)["id"]
    with pytest.raises(todoku.InvalidMessage, match="priority"):
        application.queue.enqueue(JobType.DATA_EXPORT, JobPayload(), 16)
    assert number(application, "job_queue") == 1


def test_clear_removes_what_is_in_a_state_and_nothing_else(application: Application, post_office: PostOffice) -> None:
    """S3-69, which the seed left out; signed and audited (I9)."""
    four_states(application, post_office)
    with pytest.raises(ValueError, match="processing"):
        application.queue.clear("processing", by="ada", why="a test")
    assert application.queue.clear("pending", by="ada", why="a test") == 1
    assert application.queue.clear("failed", by="ada", why="a test") == 1
    assert application.queue.stats() == Stats(processing=1, completed=1)
    assert sql(application.settings.database, "select distinct todoku_audit.by, why from todoku_audit") == [
        ("ada", "a test"),
    ]  # fmt: skip


def test_making_the_schema_again_changes_nothing(application: Application) -> None:
    """S3-70: whoever starts makes what is missing."""
    ada(application)
    application.prepare()
    assert number(application, "job_queue") == 1

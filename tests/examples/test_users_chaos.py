"""The show of examples/users, small: users are posted, workers killed. `make example-users-chaos` is the large one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from users_example.chaos.__main__ import shown
from users_example.chaos.crowd import Hunt, Kill
from users_example.chaos.post_office import Mail
from users_example.chaos.verdict import judged
from users_example.payload import JobType

from tests.examples.users_at_work import application_at, sql
from tests.support.ports import free_port

USERS = 60
KILLS = 3


@pytest.mark.crash
@pytest.mark.slow
def test_no_user_is_without_a_welcome_mail_and_every_second_mail_is_explained_by_a_kill(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I13, W-103."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2] / "examples" / "users"))
    monkeypatch.setattr("users_example.chaos.__main__.free_port", free_port)
    verdict = shown(tmp_path, url, USERS, Hunt(workers=2, every=0.5, most=KILLS), patience=120)
    assert verdict.problems == ()
    assert (verdict.users, verdict.kills) == (USERS, KILLS)
    assert verdict.mails == USERS + verdict.second_mails
    assert verdict.explained == verdict.second_mails


def test_the_verdict_finds_who_was_forgotten_and_what_no_kill_explains(sqlite_url: str, tmp_path: Path) -> None:
    """A judge that never finds anything judges nothing."""
    with application_at(sqlite_url, tmp_path) as application:
        posted = {
            address: application.users.create(address, address, {}).id
            for address in ("once@users.example", "never@users.example", "lost@users.example", "twice@users.example")
        }
        application.box.drain()
        lost = next(job["id"] for job in application.queue.list("completed") if "lost@" in job["payload"])
        sql(sqlite_url, "insert into todoku_attempt (delivery_id, replay, number, epoch, ended_at, reason)"
                        " values (?, 0, 1, 1, 0, 'WORKER_LOST')", lost)  # fmt: skip
        mails = [
            Mail(1.0, "once@users.example", "<1>", 10),
            Mail(1.0, "lost@users.example", "<2>", 11),
            Mail(9.0, "lost@users.example", "<2>", 12),
            Mail(1.0, "twice@users.example", "<3>", 11),
            Mail(9.0, "twice@users.example", "<3>", 12),
        ]
        with application.database.transaction(writes=False) as tx:
            verdict = judged(posted, mails, [Kill(11, time.time())], tx)
    assert (verdict.second_mails, verdict.explained) == (2, 1)
    assert [problem.split(" ")[0] for problem in verdict.problems] == ["never@users.example", "twice@users.example"]
    assert "no welcome mail" in verdict.problems[0]


def test_every_type_of_the_seed_is_in_the_example() -> None:
    assert [*JobType] == ["user_created", "data_analysis", "email_notification", "data_export"]

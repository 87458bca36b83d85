"""examples/users as programs: every command line that seed 003 prints, typed in a shell, on what pip installs.

`go run cmd/worker/main.go` is `worker` here, and `go build` is `pip install`: README.md has the table (S3-3, S3-4,
S3-28, S3-29, S3-59 … S3-69, S3-74 … S3-78, S3-91, S3-92, S3-111, S3-115 … S3-119).
"""

from __future__ import annotations

import configparser
import json
import pty
import re
import shlex
import shutil
import signal
import subprocess
import textwrap
import urllib.request
from collections.abc import Callable
from os import close, read, write
from pathlib import Path
from typing import Any

import pytest
from users_example import manage
from users_example.payload import JobPayload, JobType
from users_example.queue import Stats

from tests.daemon.running import PATIENCE, until
from tests.examples.users_at_work import USERS, Scripts, application_at, sql
from tests.support.ports import free_port

pytestmark = pytest.mark.xdist_group("users")

README = USERS / "README.md"
Managed = Callable[[str], tuple[int, str]]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Scripts:
    return Scripts(tmp_path_factory.mktemp("site"))


def where(backend: str, url: str) -> dict[str, str]:
    """SQLite is workers.db in the current directory; PostgreSQL is named by DATABASE_URL."""
    return {} if backend == "sqlite" else {"DATABASE_URL": url}


def lines(text: str) -> list[str]:
    """What was said, without the times in front."""
    return [re.sub(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d ", "", line) for line in text.splitlines()]


# ----------------------------------------------------------------------------------------------------- worker


def test_a_worker_in_one_terminal_and_an_enqueue_in_another(
    scripts: Scripts, backend: str, url: str, tmp_path: Path
) -> None:
    """S3-115: `worker`, then `worker-manager enqueue user_created "Test job" 5`, as the seed types them."""
    environ = where(backend, url)
    with scripts.running("worker", tmp_path, STATS_INTERVAL_SEC="0.1", **environ) as worker:
        worker.until_said("Worker 3 started")
        said = scripts.run('worker-manager enqueue user_created "Test job" 5', tmp_path, **environ)
        assert said == "Enqueued job 1 (type: user_created, priority: 5)\n"
        worker.until_said("Job 1 completed successfully")
        worker.until_said("Job Stats - Pending: 0, Processing: 0, Completed: 1, Failed: 0")
        assert worker.stop(signal.SIGINT) == 0
        told = [line for line in lines(worker.said) if line.startswith("Worker")]
    assert (tmp_path / "workers.db").exists() == (backend == "sqlite")
    assert sorted(told) == sorted(
        [
            *(f"Worker {n} {did}" for n in (1, 2, 3) for did in ("started", "received stop signal", "stopped")),
            "Worker 1: Processing job 1 (type: user_created)",
            "Worker 1: Job 1 completed successfully",
        ]
    )
    printed = scripts.run("worker-manager stats", tmp_path, **environ)
    assert printed.split() == ["Pending:", "0", "Processing:", "0", "Completed:", "1", "Failed:", "0"]


def test_worker_count_says_how_many_run_at_once_and_a_path_says_where(scripts: Scripts, tmp_path: Path) -> None:
    """S3-29, S3-75: `WORKER_COUNT=5 worker /path/to/custom.db`."""
    database = shlex.quote(f"{tmp_path}/custom.db")
    with application_at(f"sqlite:///{tmp_path}/custom.db", tmp_path) as application:
        for _ in range(5):
            application.queue.enqueue(JobType.DATA_ANALYSIS, JobPayload(message="A long one"))
    with scripts.running(f"WORKER_COUNT=5 worker {database}", tmp_path, DATA_ANALYSIS_MS="600000") as worker:
        worker.until_said("Worker 5 started")
        until(lambda: worker.said.count("Processing job") == 5, "five at once")
        assert {line.split(":")[0] for line in lines(worker.said) if "Processing" in line} == {
            f"Worker {n}" for n in range(1, 6)
        }


def test_a_worker_that_is_stopped_finishes_what_it_runs(scripts: Scripts, tmp_path: Path) -> None:
    """S3-26, S3-78: `./worker production.db`, and systemd stops it."""
    scripts.run("worker-manager enqueue production.db data_analysis 'A short one'", tmp_path)
    with scripts.running("worker production.db", tmp_path, DATA_ANALYSIS_MS="4000") as worker:
        worker.until_said("Processing job 1")
        assert worker.stop(signal.SIGTERM) == 0
        told = lines(worker.said)
    assert told.index("Worker 1 received stop signal") < told.index("Worker 1: Job 1 completed successfully")
    assert told[-1] == "Worker 3 stopped"


def test_a_job_that_fails_is_told_and_listed_with_its_error(scripts: Scripts, tmp_path: Path) -> None:
    """S3-63 … S3-66, S3-92: a mail server that is not there."""
    url = f"sqlite:///{tmp_path}/workers.db"
    with application_at(url, tmp_path) as application:
        news = JobPayload(message="news", recipients=("ada@users.example",))
        application.queue.enqueue(JobType.EMAIL_NOTIFICATION, news)
    with scripts.running("worker", tmp_path, SMTP_URL=f"smtp://127.0.0.1:{free_port()}") as worker:
        worker.until_said("Worker 1: Job 1 failed: [Errno 111] Connection refused")
        until(lambda: sql(url, "select 1 from job_queue where retry_count = 1"), "its first retry waits")
        worker.stop()
    listed = scripts.run("worker-manager list workers.db", tmp_path)
    assert re.search(r"^ID: 1  Type: email_notification  Priority: 0  Retries: 1/3$", listed, re.MULTILINE)
    assert re.search(r"^  Created: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", listed, re.MULTILINE)
    assert re.search(r"^  Error: .*Connection refused", listed, re.MULTILINE)
    assert re.search(r'^  Payload: \{"message":"news","recipients":\["ada@users.example"\]\}$', listed, re.MULTILINE)


def test_todoku_s_own_commands_run_the_same_jobs(scripts: Scripts, tmp_path: Path) -> None:
    with application_at(f"sqlite:///{tmp_path}/workers.db", tmp_path) as application:
        application.queue.enqueue(JobType.DATA_ANALYSIS, JobPayload(message="how many?"))
        ran = scripts.run("todoku run --once --json --app users_example.box:box", tmp_path)
        assert application.queue.stats() == Stats(completed=1), ran


def test_list_shows_the_result_of_a_job_that_keeps_one(
    scripts: Scripts, backend: str, url: str, tmp_path: Path
) -> None:
    """S3-37: recorded, and shown where jobs are looked at."""
    environ = where(backend, url)
    scripts.run("worker-manager enqueue data_analysis 'how many?'", tmp_path, **environ)
    with scripts.running("worker", tmp_path, DATA_ANALYSIS_MS="1", **environ) as worker:
        worker.until_said("Job 1 completed successfully")
        worker.stop()
    listed = scripts.run("worker-manager list completed", tmp_path, **environ)
    found = re.search(r"^  Result: (\{.*\})$", listed, re.MULTILINE)
    assert found is not None, listed
    assert json.loads(found[1]) == {"message": "how many?", "users": 0, "mean_score": None, "by_location": {}}
    database = "sqlite:///workers.db" if backend == "sqlite" else url
    shown = scripts.run(f"todoku show 1 --db {shlex.quote(database)}", tmp_path, **environ)
    assert 'result of delivery 1 {"message": "how many?", "users": 0' in " ".join(shown.split()).replace("{ ", "{")


@pytest.mark.parametrize(
    ("line", "environ", "said"),
    [
        ("worker a.db b.db", {}, "unrecognized arguments: b.db"),
        ("worker", {"WORKER_COUNT": "0"}, "WORKER_COUNT"),
        ("worker", {"ENQUEUE": "maybe"}, "ENQUEUE"),
        ("worker mysql://host/db", {}, "mysql"),
    ],
)
def test_a_worker_that_cannot_be_says_why(
    scripts: Scripts, tmp_path: Path, line: str, environ: dict[str, str], said: str
) -> None:
    done = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=scripts.environ(**environ), capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode in (1, 2)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


# --------------------------------------------------------------------------------------------- worker-manager


@pytest.fixture
def managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Managed:
    """`worker-manager …` typed in an empty directory, without a process for each: (exit code, what it prints)."""
    monkeypatch.chdir(tmp_path)

    def typed(line: str) -> tuple[int, str]:
        try:
            code = manage.main(shlex.split(line))
        except SystemExit as ended:
            code = int(str(ended.code))
        said = capsys.readouterr()
        return code, said.out + said.err

    return typed


def test_every_form_of_worker_manager_with_and_without_a_database(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3-59 … S3-62, S3-67: the database may be left out, as the seed itself does."""
    for type in JobType:
        assert managed(f"enqueue my.db {type} 'a message'")[0] == 0
    monkeypatch.setenv("DATABASE_URL", "sqlite:///my.db")
    assert managed("enqueue data_export 'a message' 15") == (0, "Enqueued job 5 (type: data_export, priority: 15)\n")
    monkeypatch.delenv("DATABASE_URL")
    assert managed("stats my.db")[1].split()[:2] == ["Pending:", "5"]
    for line in ("list my.db", "list my.db pending"):
        _, listed = managed(line)
        assert re.findall(r"^ID: (\d)", listed, re.MULTILINE) == ["5", "4", "3", "2", "1"]
        assert "Priority: 15" in listed
    for line, status in (("list my.db failed", "failed"), ("list failed", "failed"), ("list", "pending")):
        assert managed(line)[1] == f"0 {status} jobs\n"
    for _ in range(20):
        managed("enqueue my.db data_export 'one of many'")
    _, listed = managed("list my.db")
    assert re.findall(r"^ID: (\d+)", listed, re.MULTILINE) == [str(n) for n in range(25, 5, -1)], "at most 20"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "usage: worker-manager stats"),
        ("begin", "invalid choice"),
        ("stats a.db b.db", "b.db"),
        ("list a.db sending", "'sending' is no status"),
        ("enqueue", "<job_type> <message>"),
        ("enqueue user_created", "<job_type> <message>"),
        ("enqueue user_make 'a message'", "'user_make' is no job type"),
        ("enqueue a.db user_make 'a message'", "'user_make' is no job type"),
        ("enqueue user_created 'a message' 16", "priority cannot be '16'"),
        ("enqueue user_created 'a message' high", "priority cannot be 'high'"),
        ("clear a.db processing", "belong to their worker"),
    ],
)
def test_wrong_usage_is_said_and_stores_nothing(managed: Managed, tmp_path: Path, line: str, said: str) -> None:
    code, printed = managed(line)
    assert (code, said in printed) == (2, True), printed
    assert list(tmp_path.glob("*.db")) == []


def test_clear_asks_before_anything_is_lost(managed: Managed, scripts: Scripts, tmp_path: Path) -> None:
    """S3-69: in a script it wants --yes, at a terminal a yes; what is completed goes without."""
    managed("enqueue data_analysis one")
    code, said = managed("clear pending")
    assert (code, "say --yes" in said) == (2, True)
    assert asked(scripts, "worker-manager clear workers.db pending", tmp_path, "n\n") == 1
    assert managed("clear workers.db completed") == (0, "Cleared 0 completed jobs\n")
    assert managed("list pending")[1].endswith("1 pending job\n")
    assert managed("clear pending --yes") == (0, "Cleared 1 pending job\n")
    assert managed("list pending")[1] == "0 pending jobs\n"


def asked(scripts: Scripts, line: str, home: Path, typed: str) -> int:
    """The exit code of a command that asks somebody at a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(["bash", "-c", line], cwd=home, env=scripts.environ(), stdin=theirs, stdout=theirs)
    close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += read(ours, 1000)
    write(ours, typed.encode())
    code = process.wait(PATIENCE)
    close(ours)
    return code


# --------------------------------------------------------------------------------------------- make example


def test_the_api_and_a_worker_together(scripts: Scripts, backend: str, url: str, tmp_path: Path) -> None:
    """`make example NAME=users`: says what to try, welcomes a user, and stops both when asked."""
    port = free_port()
    environ = where(backend, url) | {"PORT": str(port)}
    with scripts.running("python -m users_example", tmp_path, **environ) as example:
        example.until_said("Ctrl-C stops both")
        body = {"name": "Ada", "email": "ada@users.example", "additional_props": {"hobby": "chess"}}
        posted = asked_of(port, "/users", body)
        until(lambda: asked_of(port, f"/users/{posted['id']}")["profile"], "a profile")
        (mail,) = until(lambda: list((tmp_path / "outbox").glob("*.eml")), "a mail")
        assert "Hello Ada, you are user 1." in mail.read_text("utf-8")
        assert example.stop() == 0
        assert "Worker 3 stopped" in example.said


def asked_of(port: int, path: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


# --------------------------------------------------------------------------------------------------- the files


def test_the_dockerfile_has_two_stages_certificates_the_worker_and_its_database() -> None:
    """S3-119."""
    text = (USERS / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    steps = [line.split(None, 1) for line in text.splitlines() if line and not line.startswith("#")]
    assert [word for word, _ in steps].count("FROM") == 2
    assert steps[0][1].endswith(" AS builder")
    last = steps[[word for word, _ in steps].index("FROM", 1) :]
    said = dict(last)
    assert "ca-certificates" in said["RUN"]
    assert said["COPY"].startswith("--from=builder ")
    assert json.loads(said["ENTRYPOINT"]) == ["worker"]
    assert json.loads(said["CMD"]) == ["/data/workers.db"]
    copied = [
        Path(part) for word, rest in steps[: len(steps) - len(last)] if word == "COPY" for part in rest.split()[:-1]
    ]
    assert copied
    assert all((USERS.parents[1] / path).exists() for path in copied)


def test_the_unit_runs_the_worker_on_the_production_database_and_waits_for_it_to_stop() -> None:
    """S3-117, S3-118: `./worker /var/lib/app/production.db`, `journalctl -u worker -f`."""
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(USERS / "worker.service")
    program, database = unit["Service"]["ExecStart"].split()
    assert (Path(program).name, database) == ("worker", "/var/lib/app/production.db")
    assert int(unit["Service"]["TimeoutStopSec"]) > 25
    for stream in ("StandardOutput", "StandardError"):
        assert unit["Service"].get(stream, "journal") == "journal", "where journalctl finds it"
    assert unit["Service"]["Restart"] == "on-failure"


SEED = [
    "go run cmd/worker/main.go",
    "WORKER_COUNT=5 go run cmd/worker/main.go /path/to/custom.db",
    'go run cmd/worker-manager/main.go enqueue user_created "Test job" 5',
    "go build -o worker cmd/worker/main.go",
    "go build -o worker-manager cmd/worker-manager/main.go",
    "./worker /var/lib/app/production.db",
    "journalctl -u worker -f",
    "worker [database_path]",
    "worker-manager stats",
    "worker-manager stats [database_path]",
    "worker-manager list [database_path] [status]",
    "worker-manager enqueue [database_path] <job_type> <message> [priority]",
    "worker-manager clear [database_path] [status]",
    "worker-manager <command> [database_path] [args...]",
]


@pytest.mark.parametrize("line", SEED)
def test_the_readme_says_what_became_of_the_seed_s_command(line: str) -> None:
    assert f"| `{line}` |" in README.read_text("utf-8")


def test_a_new_type_is_added_in_three_steps(scripts: Scripts, tmp_path: Path) -> None:
    """S3-93: exactly what the README says, done to a copy of the example."""
    blocks = re.findall(r"^   ```python\n(.*?)^   ```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    named, written, registered = map(textwrap.dedent, blocks)
    copy = tmp_path / "users_example"
    shutil.copytree(USERS / "users_example", copy)
    added = {
        copy / "payload.py": [('    DATA_EXPORT = "data_export"\n', named.splitlines(keepends=True)[2])],
        copy / "processors.py": [
            ("    JobType.DATA_EXPORT: data_export,\n", registered.splitlines(keepends=True)[2]),
            ("    return str(path)\n", f"\n\n{written}"),
        ],
    }
    for path, steps in added.items():
        text = path.read_text("utf-8")
        for after, new in steps:
            assert text.count(after) == 1
            text = text.replace(after, after + new)
        path.write_text(text, "utf-8")
    path = f"PYTHONPATH={shlex.quote(str(tmp_path))}:$PYTHONPATH"
    assert "Enqueued job 1" in scripts.run(f"{path} worker-manager enqueue new_type 'the first' 3", tmp_path)
    with scripts.running(f"{path.replace('$PYTHONPATH', scripts.environ()['PYTHONPATH'])} worker", tmp_path) as worker:
        worker.until_said("Worker 1: Processing job 1 (type: new_type)")
        worker.until_said("Worker 1: Job 1 completed successfully")
        assert worker.stop() == 0

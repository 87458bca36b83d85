"""The small parts of a daemon, each by itself: guardrail, restarts, systemd, the lock, loading, statistics."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from todoku.app import App
from todoku.core.errors import CannotStart, DatabaseUnavailable, InvalidSetting
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.banner import command
from todoku.daemon.children import describe_exit, restart_delay
from todoku.daemon.file_lock import FileLock, lock_holder
from todoku.daemon.guardrail import Guardrail
from todoku.daemon.health_view import any_tripped_and_none_claims
from todoku.daemon.http_thread import listen, listening_url
from todoku.daemon.start import sqlite_file
from todoku.daemon.statistics import format_job_stats
from todoku.daemon.systemd import Notify
from todoku.engine.observability.log import LOGGER
from todoku.engine.worker.health import Health
from todoku.store.statistics import Count, Counts

# --------------------------------------------------------------------------------------------- guardrail


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The events that are logged."""
    events: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: events.append(record.msg.name)  # type: ignore[method-assign, attr-defined]
    LOGGER.addHandler(handler)
    yield events
    LOGGER.removeHandler(handler)


def test_n_failures_in_a_row_trip_it_and_one_answer_resets_it() -> None:
    """S2-22, S2-23."""
    guardrail = Guardrail(3)
    for _ in range(2):
        guardrail.record_failure("gone")
        assert not guardrail.tripped
    guardrail.record_answer()
    for _ in range(3):
        assert not guardrail.tripped
        guardrail.record_failure("gone")
    assert guardrail.tripped
    assert guardrail.why == "gone"
    guardrail.record_answer()
    assert not guardrail.tripped
    assert guardrail.why == ""


def test_a_night_without_a_database_is_a_bounded_number_of_lines(said: list[str]) -> None:
    """The first failure, the trip, one a minute, the recovery."""
    clock = Clock()
    guardrail = Guardrail(3, monotonic=clock)
    guardrail.record_answer()
    for _ in range(600):  # ten minutes, a ping a second
        guardrail.record_failure("gone")
        clock.now += 1
    guardrail.record_answer()
    guardrail.record_answer()
    assert said == ["DATABASE_FAILED", "GUARDRAIL_TRIPPED", *["DATABASE_STILL_FAILING"] * 9, "DATABASE_RECOVERED"]


def _health(*, tripped: bool) -> Health:
    return Health(
        state="running", worker_id=uuid4(), database_ok=not tripped, tripped=tripped, blocked=None,
        held=0, running=0, settled=0, breakers=(), pings=(),
    )  # fmt: skip


@pytest.mark.parametrize("others", [[], [None], [_health(tripped=True)]])
def test_a_daemon_is_tripped_when_no_worker_claims_because_of_the_database(others: list[Health | None]) -> None:
    """S2-22. A second process that waits at its start for the same database does not make the daemon ready."""
    assert any_tripped_and_none_claims([_health(tripped=True), *others])


@pytest.mark.parametrize("workers", [[], [None], [_health(tripped=True), _health(tripped=False)]])
def test_a_daemon_is_not_tripped_while_a_worker_claims_or_all_are_starting(workers: list[Health | None]) -> None:
    assert not any_tripped_and_none_claims(workers)


# ---------------------------------------------------------------------------------------------- restarts


def test_a_worker_that_dies_once_is_replaced_at_once_and_one_that_keeps_dying_later_and_later() -> None:
    assert [restart_delay(deaths) for deaths in range(6)] == [0, 0, 0.5, 1, 2, 4]
    assert restart_delay(1000) == 30


@pytest.mark.parametrize(
    ("code", "words"), [(0, "exited with 0"), (70, "exited with 70"), (-9, "was killed by SIGKILL")]
)
def test_an_end_is_told_in_words(code: int, words: str) -> None:
    assert describe_exit(code) == words


# ----------------------------------------------------------------------------------------------- systemd


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path: Path, abstract: bool) -> None:
    name = f"@todoku-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name[1:]}" if abstract else name)
        systemd.settimeout(10)
        notify = Notify({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())})
        notify.status("running; 1 of 1")
        notify.status("running; 1 of 1")  # said once
        notify.ready()
        notify.ready()
        notify.feed_watchdog()
        notify.feed_watchdog()  # fed a third of the interval ago at the earliest
        notify.stopping()
        said = [systemd.recv(1024).decode() for _ in range(4)]
    assert said == ["STATUS=running; 1 of 1", f"READY=1\nMAINPID={os.getpid()}", "WATCHDOG=1", "STOPPING=1"]


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "/nowhere/at/all"}])
def test_without_systemd_nothing_happens(environ: dict[str, str]) -> None:
    notify = Notify({**environ, "WATCHDOG_USEC": "soon"})
    notify.ready()
    notify.feed_watchdog()
    notify.stopping()


def test_a_watchdog_of_another_process_is_not_fed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(10)
        notify = Notify({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"})
        notify.feed_watchdog()
        notify.stopping()
        assert systemd.recv(1024) == b"STOPPING=1"


# ------------------------------------------------------------------------------------------------ the lock


def test_a_file_is_served_once(tmp_path: Path) -> None:
    file = tmp_path / "todoku.db"
    first = FileLock(file)
    first.write_holder("pid 42, http://127.0.0.1:8320")
    with pytest.raises(CannotStart, match=r"pid 42, http://127\.0\.0\.1:8320"):
        FileLock(file)
    assert lock_holder(file) == "pid 42, http://127.0.0.1:8320"
    first.release()
    assert lock_holder(file) is None
    assert list(tmp_path.iterdir()) == []
    FileLock(file).release()


def test_the_kernel_releases_it_when_its_holder_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "todoku.db"
    hold = (
        "import pathlib, sys; from todoku.daemon.file_lock import FileLock;"
        " lock = FileLock(pathlib.Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CannotStart):
            FileLock(file)
        holder.kill()
        holder.wait()
    FileLock(file).release()


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"cannot be opened.*check that .*nowhere exists"):
        FileLock(tmp_path / "nowhere" / "todoku.db")


def test_a_url_names_its_file(tmp_path: Path) -> None:
    assert sqlite_file(f"sqlite:///{tmp_path}/a b.db?x=1") == tmp_path / "a b.db"
    assert sqlite_file("postgresql://localhost/shop") is None


# ------------------------------------------------------------------------------------------------ the port


def test_a_taken_port_is_one_clear_error() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert listening_url(first) == f"http://127.0.0.1:{port}"
        with pytest.raises(CannotStart, match=rf"port {port} .*in use.*--port"):
            listen("127.0.0.1", port)


def test_an_address_that_is_not_ours_too() -> None:
    for host in ("203.0.113.1", "no.such.host.invalid"):
        with pytest.raises(CannotStart):
            listen(host, 0)


# ------------------------------------------------------------------------------------------------- loading


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"app_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import todoku\nbox = todoku.App('sqlite:///x.db')\nnumber = 5\nclass shop:\n    box = box\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    return name


def test_an_app_is_found_in_the_current_directory(module: str) -> None:
    for attribute in ("box", "shop.box"):
        found = load_app(f"{module}:{attribute}")
        assert isinstance(found, App)
        assert found.settings.database == "sqlite:///x.db"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("{}", "does not name an App"),
        ("{}:", "does not name an App"),
        (":box", "does not name an App"),
        ("{}:nothing", "has no 'nothing'"),
        ("{}:number", "is a int, not a todoku.App"),
        ("nowhere_at_all:box", "there is no module 'nowhere_at_all'"),
        ("nowhere_at_all.deeper:box", "there is no module 'nowhere_at_all.deeper'"),
    ],
)
def test_a_name_that_leads_nowhere_is_a_clear_error(module: str, name: str, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said) as caught:
        load_app(name.format(module))
    assert caught.value.hint


def test_a_module_that_breaks_says_how(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}_broken.py").write_text("import nothing_like_this\n")
    with pytest.raises(InvalidSetting, match="ModuleNotFoundError: No module named 'nothing_like_this'"):
        load_app(f"{module}_broken:box")
    (tmp_path / f"{module}_zero.py").write_text("1 / 0\n")
    with pytest.raises(InvalidSetting, match="ZeroDivisionError"):
        load_app(f"{module}_zero:box")


def test_the_app_is_named_by_argument_then_environment_then_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """§7."""
    monkeypatch.chdir(tmp_path)
    assert find_app_name() is None
    (tmp_path / "pyproject.toml").write_text('[tool.todoku]\napp = "project:box"\n')
    assert find_app_name() == "project:box"
    monkeypatch.setenv("TODOKU_APP", "environment:box")
    assert find_app_name() == "environment:box"
    assert find_app_name("given:box") == "given:box"


@pytest.mark.parametrize("text", ["[tool.todoku]\napp = 5\n", "[tool"])
def test_a_project_file_that_makes_no_sense_is_a_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(InvalidSetting, match=r"pyproject\.toml"):
        find_app_name()


# ---------------------------------------------------------------------------------------------- statistics


def test_statistics_are_in_the_words_of_the_job_system() -> None:
    """S3-77: what waits for its back-off is pending there, and failed means for good (DESIGN §2)."""
    rows = (Count("pending", "a", "", 10), Count("failed", "a", "TIMEOUT", 5), Count("sending", "b", "", 3))
    counts = Counts((*rows, Count("aborted", "a", "BAD_PAYLOAD", 5)), 142, exact=True)
    assert format_job_stats(counts) == "Job Stats - Pending: 15, Processing: 3, Completed: 142, Failed: 5"


# ------------------------------------------------------------------------------------------------- commands to try


def test_the_program_is_told_by_its_path_unless_the_shell_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 12: `make up` does not put its program on the PATH."""
    place = tmp_path / "my clone" / ".venv" / "bin"
    place.mkdir(parents=True)
    (place / "todoku").write_text("#!/bin/sh\n")
    (place / "todoku").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(place / "python"))
    monkeypatch.setenv("PATH", "/nowhere")
    assert command("show", "7") == f"'{place}/todoku' show 7"
    monkeypatch.chdir(tmp_path / "my clone")
    assert command("show", "7") == ".venv/bin/todoku show 7"
    monkeypatch.setenv("PATH", str(place))
    assert command("show", "7") == "todoku show 7"
    (place / "todoku").unlink()
    assert command("list") == ".venv/bin/python -m todoku list"


def test_a_command_to_try_repeats_the_database_but_not_its_password() -> None:
    text = command("list", database="postgresql://ada:sesame@host/shop", schema="my queue")
    assert text.endswith("list --db 'postgresql://ada:***@host/shop' --schema 'my queue'")


# ----------------------------------------------------------------------------------------------------- make up


def make(*arguments: str, **environ: str) -> str:
    given, ours = {"PATH": os.environ["PATH"], **environ}, Path(__file__).parents[2]
    return subprocess.run(["make", *arguments], cwd=ours, env=given, capture_output=True, text=True, check=True).stdout


def test_make_says_what_it_installs(tmp_path: Path) -> None:
    """Issue 12: a newcomer looks at it for a minute."""
    (tmp_path / ".stamp-venv").touch()
    said = make("setup-runtime", f"VENV={tmp_path}", "PIP_INSTALL=true")
    told, pins = " ".join(said.split()), (Path(__file__).parents[2] / "requirements/runtime.txt").read_text()
    pinned = re.findall(r"^([a-z0-9-]+(?:\[[^]]+\])?)==(\S+)", pins, re.MULTILINE)
    assert len(pinned) > 10
    assert told.startswith(f"installing {len(pinned)} packages into {tmp_path}, what todoku needs to run:")
    assert [one for one in pinned if " ".join(one) not in told] == []
    assert told.endswith("installing todoku itself, from this directory …")


def test_make_up_runs_the_demonstration_on_every_start_but_never_on_a_database_that_somebody_named(
    tmp_path: Path,
) -> None:
    for stamp in (".stamp-venv", ".stamp-runtime"):
        (tmp_path / stamp).touch()
    assert make("-n", "up", f"VENV={tmp_path}").splitlines()[-1].endswith("-m todoku up --open --demo")
    for name in ("TODOKU_APP", "TODOKU_DATABASE", "TODOKU_DATABASE_FILE", "DATABASE_URL"):
        assert "--demo" not in make("-n", "up", f"VENV={tmp_path}", **{name: "x"})

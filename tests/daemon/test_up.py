"""`todoku up`, as a newcomer meets it: one command, and messages arrive. And what refuses to start, in one line."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.running import KEPT, Daemon, Shop, shop_at, until
from tests.support.ports import free_port
from todoku.daemon.http_thread import listen

pytestmark = pytest.mark.slow


def refused(daemon: Daemon) -> str:
    """The one line of a daemon that did not start."""
    assert daemon.exit_code() == 1
    assert daemon.out == ""
    (line,) = daemon.err.splitlines()
    assert line.startswith("todoku: "), line
    assert line.endswith(")"), "an error has a hint"
    return line


def shown(daemon: Daemon, topic: str) -> list[dict[str, Any]]:
    status, body = daemon.ask("/api/messages?limit=500")
    return [row for row in body["deliveries"] if row["topic"] == topic] if status == 200 else []


def statuses(daemon: Daemon, topic: str) -> list[str]:
    return [row["status"] for row in shown(daemon, topic)]


def asked(shop: Shop, *arguments: str, **environ: str) -> list[str]:
    """What a command prints beside a running daemon."""
    given = {name: os.environ[name] for name in KEPT if name in os.environ} | {"TODOKU_DATABASE": shop.url} | environ
    done = subprocess.run(
        [sys.executable, "-m", "todoku", *arguments],
        cwd=shop.home,
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_in_an_empty_directory_messages_arrive(sqlite_shop: Shop, tmp_path: Path) -> None:
    """Issue 3: a browser or curl sees them; one fails on purpose, is retried, and becomes a dead letter.

    Within ten seconds on a machine that does nothing else: how long it took is printed.
    """
    began = time.monotonic()
    daemon = sqlite_shop.start("up", "--open", TODOKU_DATABASE="")
    until(lambda: "succeeded" in statuses(daemon, "demo.greeting"), "a message to arrive")
    print(f"first_delivery_after_sec: {time.monotonic() - began:.2f}")
    daemon.until_ready()
    assert "demo.greeting" in daemon.ask("/deliveries")[1]
    until(lambda: "aborted" in statuses(daemon, "demo.refund"), "the dead letter")
    dead = [row for row in shown(daemon, "demo.refund") if row["status"] == "aborted"]
    assert {row["attempts"] for row in dead} == {3}, "it was retried"
    assert set(statuses(daemon, "demo.order.created")) <= {"succeeded", "pending", "sending"}
    lines = daemon.out.splitlines()
    assert lines[0] == f"todoku is running on {daemon.url}"
    assert {"status", "list", "tail"} <= set(re.findall(r"todoku'? (\w+)  ", daemon.out)), "three commands to try"
    assert "demo.refund" in daemon.ask("/dead-letters")[1], "the dead letter stays in sight"
    assert f"not needed from this machine (--open): {daemon.url}/" in " ".join(daemon.out.split())
    (told,) = [json.loads(line) for line in asked(sqlite_shop, "status", "--json", TODOKU_DATABASE="")]
    assert (told["address"], told["workers"]) == (daemon.url, 1)
    (dead_letter,) = [line for line in asked(sqlite_shop, "status", TODOKU_DATABASE="") if "dead letter " in line]
    assert "demo.refund → demo.refunds: INTERNAL_ERROR, PermissionError: 42 stays in the till" in dead_letter
    for part in ("sqlite:///todoku.db", "demo.*", f"kill -TERM {daemon.process.pid}", f"delete {tmp_path}/todoku.db"):
        assert part in daemon.out
    assert daemon.stop() == 0
    assert sorted(path.name for path in tmp_path.glob("todoku.db*"))[0] == "todoku.db"
    assert not (tmp_path / "todoku.db.up.lock").exists()


def test_a_database_that_was_there_gets_no_demonstration(sqlite_shop: Shop) -> None:
    """Issue 3: a user's database never gets any; and what waits in it for others is not given up on."""
    sqlite_shop.enqueue("quick", 1)
    daemon = sqlite_shop.start("up", TODOKU_UNKNOWN_AFTER_SEC="1", TODOKU_RECLAIM_INTERVAL_SEC="0.2")
    daemon.until_ready()
    time.sleep(3)  # nothing must happen, which cannot be awaited
    assert daemon.ask("/api/messages")[1]["counts"] == {
        "pending": 1, "sending": 0, "succeeded": 0, "failed": 0, "aborted": 0,
    }  # fmt: skip
    assert "--app" in daemon.out
    assert daemon.stop() == 0


def test_with_demo_it_also_runs_on_the_second_start_and_the_dead_letter_of_the_first_is_on_the_banner(
    sqlite_shop: Shop,
) -> None:
    """What failed stays in sight."""
    sqlite_shop.box.migrate()
    asked(sqlite_shop, "publish", "demo.old", "--to", "elsewhere")
    asked(sqlite_shop, "cancel", "1", "--why", "a test")
    daemon = sqlite_shop.start("up", "--demo")
    until(lambda: "succeeded" in statuses(daemon, "demo.greeting"), "the demonstration")
    until(lambda: "start over" in daemon.out, "what it says")
    assert "dead letter  #1 demo.old → elsewhere: CANCELLED" in daemon.out
    assert re.search(r"todoku'? show 1 ", daemon.out)
    assert daemon.stop() == 0
    assert "leave out --demo" in refused(sqlite_shop.start("up", "--demo", "--app", "shop:box"))


def test_as_text_it_prints_one_short_line_an_attempt_and_as_json_all_fields(sqlite_shop: Shop) -> None:
    """Issue 12: as `todoku dev` does."""
    for style in ("text", "json"):
        sqlite_shop.enqueue("quick", 1)
        daemon = sqlite_shop.start("up", "--app", "shop:box", "--log", style)
        line = until(lambda: [line for line in daemon.err.splitlines() if "succeeded" in line], style)[0]  # noqa: B023
        if style == "text":
            assert re.fullmatch(r"\d\d:\d\d:\d\d #\d+ quick  succeeded  \(attempt 1 of \d+, \d+ ms\)", line)
        else:
            assert {"message_id", "outbox_id", "latency_ms", "worker"} <= set(json.loads(line))
        assert daemon.stop() == 0


@pytest.mark.postgres
def test_status_finds_a_daemon_by_its_workers_if_no_file_names_it(tmp_path: Path, postgres_url: str) -> None:
    with shop_at(tmp_path, postgres_url) as shop:
        shop.box.migrate()
        daemon = shop.run()
        here = {"TODOKU_PORT": str(daemon.port)}
        assert asked(shop, "status", **here)[0] == f"todoku is running on {daemon.url}"
        assert asked(shop, "status", TODOKU_PORT=str(free_port()))[0].startswith("no page of todoku was found")
        assert daemon.stop() == 0
        assert asked(shop, "status", **here)[0].startswith("no page of todoku was found")


@pytest.mark.postgres
def test_neither_does_a_database_on_a_server(tmp_path: Path, postgres_url: str) -> None:
    with shop_at(tmp_path, postgres_url) as shop:
        daemon = shop.start("up")
        daemon.until_ready()
        time.sleep(2)  # nothing must happen, which cannot be awaited
        assert sum(daemon.ask("/api/messages")[1]["counts"].values()) == 0
        assert daemon.stop() == 0


def test_up_migrates_and_runs_an_app(shop: Shop) -> None:
    daemon = shop.start("up", "--app", "shop:box", "--workers", "2")
    daemon.until_ready()
    shop.enqueue("quick", 1)
    until(lambda: shop.noted("quick 1"), "it to arrive")
    until(lambda: "shop:box in 2 worker processes" in daemon.out, "what it says")
    assert daemon.stop() == 0


@pytest.mark.parametrize("where", ["environment", "project"])
def test_the_app_may_be_named_elsewhere(sqlite_shop: Shop, tmp_path: Path, where: str) -> None:
    """§7."""
    environ = {"TODOKU_APP": "shop:box"} if where == "environment" else {}
    if where == "project":
        (tmp_path / "pyproject.toml").write_text('[tool.todoku]\napp = "shop:box"\n')
    daemon = sqlite_shop.start("up", **environ)
    daemon.until_ready()
    sqlite_shop.enqueue("quick", 1)
    until(lambda: sqlite_shop.noted("quick 1"), "it to arrive")
    assert daemon.stop() == 0


def test_up_says_aloud_which_journal_it_uses_and_why(sqlite_shop: Shop) -> None:
    """§5: an old SQLite can lose acknowledged writes in WAL."""
    from todoku.store.sqlite.writer import wal_is_safe

    daemon = sqlite_shop.start("up", "--app", "shop:box")
    daemon.until_ready()
    until(lambda: "start over" in daemon.out, "what it says")
    assert ("journal wal" in daemon.out) == wal_is_safe()
    assert ("WAL can lose" in daemon.out) != wal_is_safe()
    assert daemon.stop() == 0


@pytest.mark.postgres
def test_a_password_is_never_shown(tmp_path: Path, postgres_url: str) -> None:
    secret = postgres_url.replace("postgres@", "postgres:sesame@", 1)
    if secret == postgres_url:
        pytest.skip("this server's URL has no place for a password: `env -u TODOKU_TEST_POSTGRES make test`")
    with shop_at(tmp_path, secret) as shop:
        daemon = shop.start("up", "--app", "shop:box")
        daemon.until_ready()
        until(lambda: "start over" in daemon.out, "what it says")
        assert "***" in daemon.out
        shown = daemon.out + daemon.err + daemon.ask("/")[1] + str(daemon.ask("/readyz?verbose"))
        assert f"{daemon.url}/sign-in" in " ".join(daemon.out.split()), "how a person gets in"
        commands = [Path(f"/proc/{worker['pid']}/cmdline").read_text() for worker in daemon.workers()]
        assert "sesame" not in shown + "".join(commands)
        assert daemon.stop() == 0


# ---------------------------------------------------------------------------------------------------- http


def test_a_page_on_the_internet_that_points_its_name_here_learns_nothing(sqlite_shop: Shop) -> None:
    """Served to this machine alone; health checks pass under any name (SEC-5)."""
    daemon = sqlite_shop.start("up", "--app", "shop:box", "--open")
    daemon.until_ready()
    for path in ("/", "/api/messages", "/metrics", "/readyz?verbose"):
        assert daemon.ask(path, Host="evil.example")[0] == 403
        assert daemon.ask(path, Host=f"localhost:{daemon.port}")[0] == 200
    for path in ("/healthz", "/readyz"):
        assert daemon.ask(path, Host="evil.example")[0] == 200
    assert daemon.stop() == 0


def test_what_is_asked_wrongly_is_refused(sqlite_shop: Shop) -> None:
    daemon = sqlite_shop.start("up", "--app", "shop:box")
    daemon.until_ready()
    for limit in ("0", "501", "x", "-1", "1e3"):
        assert daemon.ask(f"/api/messages?limit={limit}")[0] == 400
    assert daemon.ask("/nowhere")[0] == 404
    request = urllib.request.Request(daemon.url + "/readyz", method="POST")
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(request, timeout=60)
    assert daemon.stop() == 0


# ------------------------------------------------------------------------------------------- not starting


@pytest.mark.parametrize("url", ["mysql://u:sesame@h/x", "todoku.db", "sqlite:///", "sqlite:///:memory:", "://"])
def test_a_database_that_nobody_knows_is_one_line(sqlite_shop: Shop, tmp_path: Path, url: str) -> None:
    line = refused(sqlite_shop.start("up", "--db", url))
    assert "sqlite:///name.db" in line
    assert "sesame" not in line
    assert list(tmp_path.glob("*.db*")) == []


def test_a_file_of_somebody_elses_is_left_alone(sqlite_shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "todoku.db").write_bytes(b"dear diary, " * 1000)
    assert "is not a database" in refused(sqlite_shop.start("up"))
    assert (tmp_path / "todoku.db").read_bytes() == b"dear diary, " * 1000


def test_a_busy_port_is_one_line(sqlite_shop: Shop) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        line = refused(sqlite_shop.start("up", "--port", str(port)))
        assert f"cannot listen on port {port} of 127.0.0.1" in line
        assert "--port" in line


def test_a_second_start_on_the_same_file_is_one_line(sqlite_shop: Shop, tmp_path: Path) -> None:
    first = sqlite_shop.start("up", "--app", "shop:box")
    first.until_ready()
    line = refused(sqlite_shop.start("up", "--app", "shop:box"))
    assert f"pid {first.process.pid}, {first.url}" in line
    # by another name of the same file, too
    (tmp_path / "other.db").symlink_to(tmp_path / "todoku.db")
    assert "another `todoku up`" in refused(
        sqlite_shop.start("up", "--app", "shop:box", TODOKU_DATABASE=f"sqlite:///{tmp_path}/other.db")
    )
    first.process.kill()
    first.exit_code()
    third = sqlite_shop.start("up", "--app", "shop:box")
    third.until_ready()
    assert third.stop() == 0


def test_run_without_an_app_is_one_line_with_a_hint(sqlite_shop: Shop) -> None:
    for more in ([], ["--once"]):
        line = refused(sqlite_shop.start("run", *more))
        assert "there is no app to run" in line
        assert "--app" in line


def test_an_app_that_is_not_there_or_on_another_database_is_one_line(sqlite_shop: Shop, tmp_path: Path) -> None:
    assert "there is no module 'nowhere'" in refused(sqlite_shop.start("run", "--app", "nowhere:box"))
    (tmp_path / "fixed.py").write_text("import todoku\nbox = todoku.App('sqlite:///mine.db')\n")
    line = refused(sqlite_shop.start("run", "--app", "fixed:box", "--db", "sqlite:///yours.db"))
    assert "fixed:box uses sqlite:///mine.db, but --db is sqlite:///yours.db" in line


def test_without_the_server_extra_it_says_what_to_install(sqlite_shop: Shop, tmp_path: Path) -> None:
    """A base install has neither uvicorn nor starlette; `run --no-http` needs neither."""
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import sys\n"
        "for name in ('uvicorn', 'starlette', 'uvloop', 'prometheus_client'):\n"
        "    sys.modules[name] = None\n"
    )
    line = refused(sqlite_shop.start("up", "--app", "shop:box", PYTHONPATH=str(hide)))
    assert 'pip install "todoku[server]"' in line
    sqlite_shop.enqueue("quick", 1)
    daemon = sqlite_shop.start("run", "--app", "shop:box", "--no-http", PYTHONPATH=str(hide))
    until(lambda: sqlite_shop.noted("quick 1"), "it to arrive")
    assert daemon.stop() == 0


# ------------------------------------------------------------------------------------------------ systemd


def test_systemd_is_told_what_happens(sqlite_shop: Shop, tmp_path: Path) -> None:
    """Issue 3: notify when NOTIFY_SOCKET is set."""
    sqlite_shop.box.migrate()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(60)
        daemon = sqlite_shop.start(
            "run", "--app", "shop:box", NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="900000"
        )
        said: list[str] = []
        while not any(text.startswith("READY=1") for text in said):
            said.append(systemd.recv(4096).decode())
        assert daemon.ask("/readyz")[0] == 200, "READY is said when it is"
        while said.count("WATCHDOG=1") < 5:
            said.append(systemd.recv(4096).decode())
        assert daemon.stop() == 0
        while "STOPPING=1" not in said:
            said.append(systemd.recv(4096).decode())
    assert "STATUS=running; 1 of 1 worker processes" in said


# ---------------------------------------------------------------------------------------------------- once


def once(shop: Shop, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {name: os.environ[name] for name in KEPT if name in os.environ}
    return subprocess.run(
        [sys.executable, "-m", "todoku", "run", "--app", "shop:box", "--once", *arguments],
        cwd=shop.home, env=environ | {"TODOKU_DATABASE": shop.url}, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_one_pass_takes_a_batch_and_says_what_it_did(shop: Shop) -> None:
    """S1-29, S1-47: run it twice in a row."""
    for n in range(30):
        shop.enqueue("quick", n)
    done = once(shop)
    assert done.returncode == 0, done.stderr
    assert shop.counts()["succeeded"] == 20
    assert re.match(r"20 attempts: 20 succeeded\n", done.stdout), done.stdout
    assert done.stdout.count("quick") == 20
    done = once(shop, "--json", "--batch", "100")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["settled"], answer["succeeded"]) == (10, 10)
    assert {row["destination"] for row in answer["deliveries"]} == {"quick"}
    assert shop.counts() == {"pending": 0, "sending": 0, "succeeded": 30, "failed": 0, "aborted": 0}
    assert once(shop).stdout == "nothing was due\n"


def test_one_pass_needs_its_database(sqlite_shop: Shop, tmp_path: Path) -> None:
    done = once(sqlite_shop)
    assert (done.returncode, done.stdout) == (1, "")
    assert "todoku migrate" in done.stderr
    assert not (tmp_path / "todoku.db").exists()

"""The program as people run it: what it says, how it exits, and that it never shows a traceback."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import psycopg
import pytest

from tests.cli.program import Run, refused, said
from todoku.cli.main import cli
from todoku.store.migrate import migrations

VERSIONS = [step.version for step in migrations("todoku.store.sqlite")]
UP_TO_DATE = f"up to date at version {VERSIONS[-1]}"
MIGRATED = f"migrated to version {VERSIONS[-1]} (applied: {', '.join(map(str, VERSIONS))})"

# ----------------------------------------------------------------------------------------------- migrate


def test_migrate_applies_once_and_then_says_that_nothing_is_to_do(run: Run, sqlite_url: str) -> None:
    assert said(run("migrate", "--db", sqlite_url)) == [MIGRATED]
    assert said(run("migrate", "--db", sqlite_url)) == [UP_TO_DATE]


def test_migrate_speaks_json(run: Run) -> None:
    assert json.loads(said(run("migrate", "--json"))[0]) == {"applied": VERSIONS, "version": VERSIONS[-1]}
    assert json.loads(said(run("migrate", "--json"))[0]) == {"applied": [], "version": VERSIONS[-1]}


def test_migrate_print_is_for_people_who_apply_sql_with_their_own_tools(run: Run, tmp_path: Path) -> None:
    script = run("migrate", "--print")
    said(script)
    assert not (tmp_path / "todoku.db").exists()
    connection = sqlite3.connect(tmp_path / "todoku.db")
    connection.executescript(script.stdout)
    connection.close()
    assert said(run("migrate")) == [UP_TO_DATE]
    said(run("migrate"))


def test_migrate_print_asks_no_server(run: Run) -> None:
    printed = said(run("migrate", "--print", "--db", "postgresql://nobody@127.0.0.1:1/x", "--schema", 'a"b'))
    assert printed[:3] == ["begin;", 'create schema if not exists "a""b";', 'set local search_path = "a""b";']
    assert printed[-1] == "commit;"


def test_a_newer_schema_is_refused_in_one_clear_line(run: Run, tmp_path: Path) -> None:
    """Issue 2: an older program refuses a newer schema."""
    said(run("migrate"))
    connection = sqlite3.connect(tmp_path / "todoku.db")
    with connection:
        connection.execute("insert into todoku_migration values (99, 'from the future', 'x', 0)")
    connection.close()
    for command in ("migrate",):
        line = refused(run(command))
        assert f"the schema is at version 99, this todoku knows {VERSIONS[-1]}" in line
        assert "upgrade" in line


# ---------------------------------------------------------------------------------------------- database


@pytest.mark.parametrize(
    "where",
    [
        {"TODOKU_DATABASE": "sqlite:///here.db"},
        {"DATABASE_URL": "sqlite:///here.db"},
        {"TODOKU_DATABASE": "sqlite:///here.db", "DATABASE_URL": "mysql://elsewhere/x"},
    ],
)
def test_the_environment_names_the_database(run: Run, tmp_path: Path, where: dict[str, str]) -> None:
    """§7."""
    said(run("migrate", **where))
    assert (tmp_path / "here.db").is_file()


def test_so_does_a_file_in_the_working_directory(run: Run, tmp_path: Path) -> None:
    (tmp_path / "todoku.toml").write_text('database = "sqlite:///filed.db"\n')
    said(run("migrate"))
    assert (tmp_path / "filed.db").is_file()
    said(run("migrate", "--db", "sqlite:///given.db"))
    assert (tmp_path / "given.db").is_file()


def test_a_secret_may_be_in_a_file_of_its_own(run: Run, tmp_path: Path) -> None:
    """§7: NAME_FILE."""
    (tmp_path / "secret").write_text("sqlite:///secret.db\n")
    said(run("migrate", TODOKU_DATABASE_FILE="secret"))
    assert (tmp_path / "secret.db").is_file()


def test_a_path_may_have_a_space_and_any_letter(run: Run, tmp_path: Path) -> None:
    """Issue 2: also in a path with a space."""
    place = tmp_path / "my data, 届く"
    place.mkdir()
    said(run("migrate", cwd=place, PYTHONUTF8="1"))
    assert (place / "todoku.db").is_file()
    said(run("migrate", "--db", f"sqlite:///{place}/other one.db", PYTHONUTF8="1"))
    assert (place / "other one.db").is_file()


UNKNOWN = [
    "mysql://u:sesame@h/x",
    "todoku.db",
    "sqlite://todoku.db",
    "sqlite:///",
    "sqlite:///:memory:",
    "://",
    "x://y",
]


@pytest.mark.parametrize("url", UNKNOWN)
@pytest.mark.parametrize("command", ["stats", "migrate"])
def test_a_database_that_nobody_knows_is_refused(run: Run, command: str, url: str, tmp_path: Path) -> None:
    line = refused(run(command, "--db", url))
    assert "sqlite:///name.db" in line
    assert "sesame" not in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["stats", "migrate"])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:sesame@127.0.0.1:1/x",
        "postgresql://127.0.0.1:1/x?user=u&password=sesame",
        "postgresql+psycopg://u:sesame@127.0.0.1:1/x",
        "postgresql://u:sesame@/x?host=/nowhere",
    ],
)
def test_a_server_that_does_not_answer_is_said_at_once(run: Run, command: str, url: str) -> None:
    line = refused(run(command, "--db", url))
    assert "PostgreSQL does not answer" in line
    assert "sesame" not in line


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/x?nonsense=1", "postgresql://127.0.0.1:many/x"])
def test_a_url_that_makes_no_sense_is_one_line_too(run: Run, url: str) -> None:
    done = run("migrate", "--db", url)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("todoku: ")


def test_a_directory_that_is_not_there_is_named(run: Run, tmp_path: Path) -> None:
    line = refused(run("migrate", "--db", f"sqlite:///{tmp_path}/nowhere/todoku.db"))
    assert "cannot be opened" in line
    assert f"does {tmp_path}/nowhere exist" in line


def test_a_directory_is_no_database(run: Run, tmp_path: Path) -> None:
    assert "cannot be opened" in refused(run("migrate", "--db", f"sqlite:///{tmp_path}"))


def test_a_file_of_somebody_elses_is_left_alone(run: Run, tmp_path: Path) -> None:
    (tmp_path / "todoku.db").write_bytes(b"dear diary, " * 1000)
    assert "is not a database" in refused(run("migrate"))
    assert (tmp_path / "todoku.db").read_bytes() == b"dear diary, " * 1000


# ---------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("environ", "about"),
    [
        ({"TODOKU_LEASE_SEC": "soon"}, "lease_sec"),
        ({"OUTBOX_BACKOFF_SEC": "5;10"}, "back-off"),
        ({"TODOKU_DATABASE_FILE": "nowhere"}, "TODOKU_DATABASE_FILE"),
        ({"TODOKU_DATABASE_FILE": "binary"}, "TODOKU_DATABASE_FILE"),
    ],
)
def test_a_setting_that_cannot_be_read_is_one_line(
    run: Run, tmp_path: Path, environ: dict[str, str], about: str
) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert about in refused(run("migrate", **environ))
    assert not (tmp_path / "todoku.db").exists()


@pytest.mark.parametrize("content", [b"lease_sec = ", b"leese_sec = 5\n", b'lease_sec = "soon"\n', b"\xff\xfe"])
def test_so_is_a_file_that_cannot_be_read(run: Run, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "todoku.toml").write_bytes(content)
    refused(run("migrate"))


def test_a_directory_called_todoku_toml_is_not_our_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "todoku.toml").mkdir()
    said(run("migrate"))


# ------------------------------------------------------------------------------------------------- usage


def test_a_command_of_a_group_is_not_one_of_the_program() -> None:
    assert not {"add", "next", "rotate"} & set(cli.commands)
    assert {"--app", "--workers"} <= {name for option in cli.commands["run"].params for name in option.opts}


def test_the_version_is_that_of_the_package(run: Run) -> None:
    assert said(run("--version")) == [f"todoku, version {version('todoku')}"]


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["up", "--help"], ["list", "-h"]])
def test_help_is_there(run: Run, arguments: list[str]) -> None:
    assert said(run(*arguments))[0].startswith("Usage: todoku")


SECTIONS = {
    "Look": "status stats list search show explain tail reasons workers schedules limits batch hooks ledger settings "
    "doctor verify",
    "Act": "publish enqueue replay edit cancel settle clear limit pause resume release-expired schedule flow "
    "projection capture dlq-sync dlq-rerun spool-forward",
    "Run": "up run dev",
    "Set up": "migrate copy tokens users signing-keys encryption-keys debezium-config",
}


def test_the_commands_are_these_and_run_starts_a_worker(run: Run) -> None:
    """By what one wants to do. A command of a group (`schedule run`) must not become one of `todoku` itself."""
    _, *sections = re.split(r"^(?=Look|Act|Run|Set up)", run("--help", COLUMNS="80").stdout, flags=re.MULTILINE)
    found = {re.split(r"[;:]", part)[0]: re.findall(r"^  ([a-z-]+)", part, re.MULTILINE) for part in sections}
    assert found == {title: names.split() for title, names in SECTIONS.items()}
    assert "--workers N" in run("run", "--help").stdout


@pytest.mark.parametrize(
    "group", [[], ["schedule"], ["flow"], ["capture"], ["tokens"], ["signing-keys"], ["encryption-keys"]]
)
def test_every_summary_of_a_command_is_a_whole_sentence_at_80_columns(run: Run, group: list[str]) -> None:
    _, _, commands = run(*group, "--help", COLUMNS="80").stdout.partition("-h, --help")
    summaries = re.findall(r"^  [a-z-]+  +(.*)$", commands, re.MULTILINE)
    assert summaries
    assert [text for text in summaries if not re.fullmatch(r"[A-Z].*[^.]\.", text)] == []


@pytest.mark.parametrize(
    "arguments", [["upp"], ["up", "--dbb", "x"], ["stats", "--db"], ["migrate", "extra"], ["--db", "x"]]
)
def test_wrong_usage_exits_with_2(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """API: exit 0 done, 1 found a problem, 2 wrong usage."""
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_installed_program_is_the_same(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("todoku")
    if not program.exists():
        pytest.skip("todoku is not installed as a program: `make clean setup`")
    done = subprocess.run([program, "migrate"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{MIGRATED}\n", "")


# -------------------------------------------------------------------------------------------- PostgreSQL


def with_password(url: str) -> str:
    """The URL with a password that the server does not ask for."""
    return url.replace("postgres@", "postgres:sesame@", 1)


@pytest.mark.postgres
@pytest.mark.parametrize("form", ["in front", "behind"])
def test_a_password_is_never_shown(run: Run, postgres_url: str, form: str) -> None:
    url = with_password(postgres_url) if form == "in front" else f"{postgres_url}&password=sesame"
    if "sesame" not in url or "?" not in postgres_url:
        pytest.skip("this server's URL has no place for a password: `env -u TODOKU_TEST_POSTGRES make test`")
    for command in ("stats", "doctor", "migrate"):
        done = run(command, "--db", url)
        assert (done.returncode in (0, 1), done.stderr) == (True, "")
        assert "sesame" not in done.stdout + done.stderr


@pytest.mark.postgres
def test_a_schema_is_its_own_todoku(run: Run, postgres_url: str) -> None:
    assert said(run("migrate", "--db", postgres_url)) == [UP_TO_DATE]
    applied = MIGRATED
    assert said(run("migrate", "--db", postgres_url, "--schema", "My Queue")) == [applied]
    said(run("publish", "a", "--to", "b", "--db", postgres_url, TODOKU_SCHEMA="My Queue"))
    assert json.loads(said(run("stats", "--json", "--db", postgres_url))[0])["pending"] == 0
    assert json.loads(said(run("stats", "--json", "--db", postgres_url, "--schema", "My Queue"))[0])["pending"] == 1


@pytest.mark.postgres
def test_a_printed_migration_is_the_one_that_would_be_applied(run: Run, postgres_url: str) -> None:
    script = run("migrate", "--print", "--db", postgres_url, "--schema", "printed")
    said(script)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(script.stdout)
    assert said(run("migrate", "--db", postgres_url, "--schema", "printed")) == [UP_TO_DATE]


@pytest.mark.postgres
def test_a_database_that_is_not_there_is_one_line(run: Run, postgres_url: str) -> None:
    line = refused(run("migrate", "--db", with_password(re.sub(r"/todoku_\w+", "/nowhere", postgres_url))))
    assert 'database "nowhere" does not exist' in line
    assert "sesame" not in line

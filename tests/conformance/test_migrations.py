"""Migrations: applied once, recorded, refused when they do not fit; and the schema they make, committed as a dump.

After a new migration: `TODOKU_TEST_WRITE_SCHEMA=1 python -m pytest tests/conformance/test_migrations.py -k dump`
writes tests/schema/ anew, so that the diff shows what the migration does.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tests.support.postgres import fresh_database
from tests.support.world import SOMEBODY, Backend, World, aborted
from todoku.app import App
from todoku.core.errors import DatabaseUnavailable, SchemaError
from todoku.store.database import Migrated
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed, lose
from todoku.store.migrate import migrations
from todoku.store.postgres.database import MIGRATION_TABLE as POSTGRES_MIGRATIONS
from todoku.store.sqlite.database import MIGRATION_TABLE as SQLITE_MIGRATIONS
from todoku.store.sqlite.database import file_path

DUMPS = Path(__file__).resolve().parents[1] / "schema"
PATIENCE = 120.0
STEPS = [
    (1, "initial"),
    (2, "limits"),
    (3, "gates"),
    (4, "endings"),
    (5, "data_keys"),
    (6, "schedules"),
    (7, "inbox"),
    (8, "http"),
    (9, "plans"),
    (10, "partitions"),
    (11, "tracebacks"),
    (12, "sign_in"),
    (13, "inspection"),
    (14, "labels"),
    (15, "run_times"),
    (16, "causes"),
    (17, "projections"),
    (18, "captures"),
    (19, "workflows"),
    (20, "http_runs"),
    (21, "http_webhooks"),
    (22, "claim_lists"),
]
LATEST = STEPS[-1][0]
ALL = tuple(version for version, _ in STEPS)


@pytest.fixture
def empty_url(backend: Backend, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in which nobody has migrated anything."""
    if backend == "sqlite":
        yield f"sqlite:///{request.getfixturevalue('tmp_path')}/empty.db"
        return
    with fresh_database(request.getfixturevalue("postgres_dsn")) as url:
        yield url


@pytest.fixture
def empty(backend: Backend, empty_url: str) -> Iterator[World]:
    """A world on a database that is not migrated."""
    world = World(backend, empty_url)
    yield world
    world.close()


def todoku(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The program, in a process of its own; with failpoints, the one that obeys them."""
    program = "todoku.testing.armed" if "TODOKU_FAILPOINTS" in environ else "todoku"
    return subprocess.run(
        [sys.executable, "-m", program, *arguments],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip


def recorded(world: World) -> list[tuple[int, str]]:
    """The versions on record, with their names."""
    return [(version, name) for version, name in world.sql("select version, name from todoku_migration order by 1")]


# ------------------------------------------------------------------------------------------------------- once


def test_a_migration_is_applied_once_and_recorded(empty: World) -> None:
    """Migrations: the second time finds nothing to do, whoever asks."""
    assert empty.store.migrate() == Migrated(applied=ALL, version=LATEST)
    assert empty.store.migrate() == Migrated(applied=(), version=LATEST)
    assert empty.another_store().migrate() == Migrated(applied=(), version=LATEST)
    assert recorded(empty) == STEPS
    empty.publish()
    assert len(empty.claim(empty.worker())) == 1


MIGRATES = """
import sys
from concurrent.futures import ThreadPoolExecutor
from todoku.app import App

def migrate(number):
    box = App(sys.argv[1])
    try:
        return len(box.migrate().applied)
    finally:
        box.close()

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(5) as threads:
    print(*threads.map(migrate, range(5)), flush=True)
"""


@pytest.mark.slow
def test_a_hundred_that_start_at_once_migrate_once(empty: World, empty_url: str) -> None:
    """Migrations: twenty processes with five threads each; all of them succeed, one of them did it."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", MIGRATES, empty_url]
    with ExitStack() as stack:
        processes = [
            stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
            for _ in range(20)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        answers = [process.communicate(timeout=PATIENCE) for process in processes]
    # Debian's server takes 100 connections, those of other tests included: it refuses some, and the pool tries again.
    refused = "too many clients already"
    said = [line for _, text in answers for line in text.splitlines() if refused not in line]
    assert ({process.returncode for process in processes}, said) == ({0}, [])
    assert sorted(" ".join(output for output, _ in answers).split()) == ["0"] * 99 + [str(len(STEPS))]
    assert recorded(empty) == STEPS


def test_a_schema_of_the_first_version_is_brought_up_to_date_with_what_is_in_it(empty: World) -> None:
    """Migrations: what was paused stays paused, what was queued is claimed, and there is no limit yet."""
    sqlite = empty.backend == "sqlite"
    now = 1_700_000_000_000_000 if sqlite else datetime.fromtimestamp(1_700_000_000, UTC)
    (first, *_) = migrations(f"todoku.store.{empty.backend}")
    with closing(empty.connect()) as db:
        db.executescript(first.sql) if sqlite else db.execute(first.sql)
        db.execute(SQLITE_MIGRATIONS if sqlite else POSTGRES_MIGRATIONS)
        db.commit()
    recorded = "insert into todoku_migration (version, name, checksum, applied_at) values (1, 'initial', ?, ?)"
    empty.sql(recorded, first.checksum, now)
    empty.sql("insert into todoku_queue (name, paused, updated_at) values ('mail', true, ?)", now)
    empty.sql(
        "insert into todoku_message (seq, id, topic, type, payload, content_type, created_at) "
        "values (1, ?, 'order.created', 'order.created', '{}', 'application/json', ?)",
        str(uuid4()), now,
    )  # fmt: skip
    empty.sql(
        "insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, next_run_at, "
        "updated_at) values (1, 'warehouse', 'warehouse', 0, 'pending', 6, ?, ?)",
        now, now,
    )  # fmt: skip
    assert empty.store.migrate() == Migrated(applied=ALL[1:], version=LATEST)
    assert [(limit.name, limit.paused, limit.rate) for limit in empty.store.limits.read().queues] == [
        ("mail", True, None)
    ]
    assert [claim.topic for claim in empty.claim(empty.worker())] == ["order.created"]


def test_a_migration_that_does_not_commit_leaves_nothing(empty: World) -> None:
    """Migrations: one transaction, tables and record together; the next one begins anew."""
    with armed("migrate.before_commit", lose), pytest.raises(DatabaseUnavailable):
        empty.store.migrate()
    with pytest.raises(SchemaError, match="not migrated"):
        empty.publish()
    assert empty.store.migrate().applied == ALL
    with armed("migrate.after_commit", lose), pytest.raises(DatabaseUnavailable):
        empty.store.migrate()
    assert empty.store.migrate().applied == ()


def test_a_program_killed_while_it_migrates_leaves_nothing(empty: World, empty_url: str) -> None:
    """Migrations: kill -9 just before the commit; no lock is left behind either."""
    killed = todoku("migrate", "--db", empty_url, TODOKU_FAILPOINTS="migrate.before_commit=kill")
    assert killed.returncode == -signal.SIGKILL
    told = f"migrated to version {LATEST} (applied: {', '.join(map(str, ALL))})\n"
    done = todoku("migrate", "--db", empty_url)
    assert (done.returncode, done.stdout, done.stderr) == (0, told, "")
    assert recorded(empty) == STEPS


# ---------------------------------------------------------------------------------------------------- refused


def test_an_older_program_refuses_a_newer_schema_in_one_clear_line(world: World, url: str) -> None:
    """Migrations: it says which version it met, which it knows, and what to do; and it changes nothing."""
    values = "9999, 'of the future', 'x', " + ("0" if world.backend == "sqlite" else "now()")
    world.sql(f"insert into todoku_migration (version, name, checksum, applied_at) values ({values})")
    with pytest.raises(SchemaError) as refused:
        world.store.migrate()
    assert str(refused.value) == (
        f"the schema is at version 9999, this todoku knows {LATEST} (a newer todoku migrated it: upgrade this one)"
    )
    for command in ("migrate", "up"):
        done = todoku(command, "--db", url, TODOKU_PORT="0")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"todoku: {refused.value}\n"
    assert recorded(world) == [*STEPS, (9999, "of the future")]


def test_a_migration_whose_text_changed_after_it_was_applied_is_refused(world: World, url: str) -> None:
    """Migrations: the checksum on record is not the program's: somebody edited history."""
    world.sql("update todoku_migration set checksum = 'another' where version = 1")
    with pytest.raises(SchemaError, match=r"migration 1 \(initial\) was changed after it was applied"):
        world.store.migrate()
    done = todoku("migrate", "--db", url)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)


# ------------------------------------------------------------------------------------------------ by hand


def apply_by_hand(url: str, script: str) -> None:
    """As somebody does who applies SQL with tools of their own."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(file_path(url))
        connection.executescript(script)
        connection.close()
    else:
        with psycopg.connect(url, autocommit=True) as connected:
            connected.execute(script)


def test_the_printed_script_makes_the_same_schema_and_leaves_nothing_to_do(
    empty: World, empty_url: str, backend: Backend, url: str, world: World
) -> None:
    """`migrate --print`: touches no database itself; applied by hand, `migrate` finds it up to date."""
    printed = todoku("migrate", "--print", "--db", empty_url)
    assert (printed.returncode, printed.stderr) == (0, "")
    with pytest.raises(SchemaError):
        empty.publish()
    apply_by_hand(empty_url, printed.stdout)
    assert dump(backend, empty_url, days=True) == dump(backend, url, days=True)
    done = todoku("migrate", "--db", empty_url)
    assert (done.returncode, done.stdout) == (0, f"up to date at version {LATEST}\n")
    empty.publish()
    assert empty.settle(empty.claim(empty.worker())).lost == ()
    assert len(empty.history()) == 1


# ------------------------------------------------------------------------------------------- a schema of its own

STRANGE = ["jobs-1", 'Größe "x" 1', "select", "o'clock", "100%s"]


@pytest.mark.postgres
@pytest.mark.parametrize("schema", STRANGE)
def test_everything_works_in_a_schema_of_any_name_with_the_search_path_elsewhere(
    postgres_dsn: str, schema: str
) -> None:
    """PostgreSQL: a schema is a setting; its name is quoted everywhere, and nobody's search path is relied on."""
    with fresh_database(postgres_dsn) as url:
        world = World("postgres", url, schema=schema)
        assert world.store.migrate() == Migrated(applied=ALL, version=LATEST)
        assert world.store.migrate() == Migrated(applied=(), version=LATEST)
        assert len(tables_of(url, schema)) > 15
        assert tables_of(url, "public") == set()
        go_the_whole_way(world)
        world.close()


def tables_of(url: str, schema: str) -> set[str]:
    with psycopg.connect(url) as connection:
        query = "select tablename from pg_tables where schemaname = %s and tablename like 'todoku%%'"
        return {name for (name,) in connection.execute(query, (schema,)).fetchall()}


def go_the_whole_way(world: World) -> None:
    """Publish, claim, settle and everything beside it."""
    world.publish(idempotency_key="once")
    world.publish(2)
    world.publish(3, to=["ordered"], ordered=True, key="k")
    worker = world.worker()
    assert world.store.leases.renew(worker, lease=60)
    first, second, third = world.claim(worker)
    assert world.store.claims.release([third]) == ()
    assert world.settle([first]).lost == ()
    assert world.settle([second], aborted()).lost == ()
    assert world.settle(world.claim_lanes(worker)).lost == ()
    assert len(world.claim(worker)) == 1
    assert world.store.leases.end(worker, lost=True).freed == 1
    assert len(world.claim_suspect(world.worker())) == 1
    assert world.store.leases.reclaim().workers == 0
    assert len(world.store.acts.replay(Filter(status="aborted"), SOMEBODY).changed) == 1
    assert len(world.store.acts.cancel(Filter(status="pending"), SOMEBODY).changed) == 1
    assert len(world.store.acts.purge(Filter(status="aborted"), SOMEBODY).changed) == 1
    world.store.queues.pause("warehouse", SOMEBODY, paused=True)
    world.store.limits.set_breaker("warehouse", open_for=1)
    world.store.destinations.set_on_abort("ordered", skip=True)
    world.store.destinations.announce(["warehouse"])
    assert world.store.retention.expire(unknown_after=600) == (0, 0)
    assert world.store.retention.prune(history_ttl=3600).stray == 0
    assert (world.store.statistics.counts().of("sending"), world.store.statistics.counts().of("succeeded")) == (1, 4)


@pytest.mark.postgres
def test_a_caller_publishes_into_the_schema_whatever_its_own_search_path(postgres_dsn: str) -> None:
    """I2: the caller's connection looks elsewhere; the message goes where the App says, in the caller's transaction."""
    with fresh_database(postgres_dsn) as url:
        box = App(url, schema="jobs-1")
        box.migrate()
        box.route("**", to="warehouse")
        with psycopg.connect(url) as connection:
            connection.execute("create schema shop")
            connection.execute("set search_path = shop")
            connection.execute("create table orders (id integer)")
            box.publish("order.created", {"id": 1}, tx=connection, idempotency_key="k")
            connection.rollback()
            assert connection.execute('select count(*) from "jobs-1".todoku_message').fetchall() == [(0,)]
            box.publish("order.created", {"id": 1}, tx=connection, idempotency_key="k")
            connection.commit()
        assert box.store.statistics.counts().of("pending") == 1
        box.close()


@pytest.mark.postgres
def test_two_schemas_of_one_database_do_not_know_each_other(postgres_dsn: str) -> None:
    """PostgreSQL: two installations side by side; each migrates, claims and counts its own."""
    with fresh_database(postgres_dsn) as url:
        one, other = (World("postgres", url, schema=schema) for schema in ("one", "other"))
        for world in (one, other):
            assert world.store.migrate().applied == ALL
        one.publish(3)
        assert other.store.claims.waiting(None).groups == ()
        assert len(one.claim(one.worker())) == 3
        assert (one.store.statistics.counts().of("sending"), other.store.statistics.counts().of("sending")) == (3, 0)
        one.close()
        other.close()


@pytest.mark.postgres
def test_the_printed_script_of_a_schema_goes_into_that_schema(postgres_dsn: str) -> None:
    """`migrate --print --schema`: and leaves the session's search path as it was."""
    with fresh_database(postgres_dsn) as url:
        printed = todoku("migrate", "--print", "--db", url, "--schema", "jobs-1")
        with psycopg.connect(url, autocommit=True) as connection:
            before = connection.execute("show search_path").fetchall()
            connection.execute(printed.stdout)
            assert connection.execute("show search_path").fetchall() == before
        assert len(tables_of(url, "jobs-1")) > 15
        done = todoku("migrate", "--db", url, "--schema", "jobs-1")
        assert (done.returncode, done.stdout) == (0, f"up to date at version {LATEST}\n")


# ------------------------------------------------------------------------------------------------------ dumps


def dump(backend: Backend, url: str, *, days: bool = False) -> str:
    """The schema as the database itself tells it. `days`: with the partitions of single days."""
    return _dump_sqlite(url) if backend == "sqlite" else _dump_postgres(url, days=days)


def _dump_sqlite(url: str) -> str:
    connection = sqlite3.connect(file_path(url))
    query = (
        "select sql from sqlite_master where sql is not null and name not like 'sqlite\\_%' escape '\\' order by name"
    )
    statements = [f"{sql};\n" for (sql,) in connection.execute(query)]
    connection.close()
    return "\n".join(statements)


_TABLES = """
select c.relname, case c.relkind when 'v' then 'view' else '' end, coalesce(pg_get_partkeydef(c.oid), ''),
       coalesce(pg_get_expr(c.relpartbound, c.oid), ''),
       coalesce(array_to_string(c.reloptions, ', '), '')
  from pg_class c
 where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p', 'v') and {wanted} order by c.relname
"""
_COLUMNS = """
select a.attname, format_type(a.atttypid, a.atttypmod), case when a.attnotnull then 'not null' else '' end,
       coalesce('default ' || pg_get_expr(d.adbin, d.adrelid), ''),
       case a.attidentity when 'd' then 'identity by default' when 'a' then 'identity always' else '' end
  from pg_attribute a left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
 where a.attrelid = %s::regclass and a.attnum > 0 and not a.attisdropped order by a.attnum
"""
_REST = (
    """select conname || ': ' || pg_get_constraintdef(oid) from pg_constraint
        where conrelid = %s::regclass and contype <> 'n' order by 1""",  # since 18 "not null" is a constraint too
    "select pg_get_indexdef(indexrelid) from pg_index where indrelid = %s::regclass order by 1",
    "select pg_get_triggerdef(oid) from pg_trigger where tgrelid = %s::regclass and not tgisinternal order by 1",
)
_FUNCTIONS = """
select pg_get_functiondef(oid) from pg_proc where pronamespace = 'public'::regnamespace order by proname
"""


def _dump_postgres(url: str, *, days: bool) -> str:
    wanted = "true" if days else "c.relname !~ '_[0-9]{8}$'"
    lines: list[str] = []
    with psycopg.connect(url) as connection:
        rows: Callable[..., list[Any]] = lambda *query: connection.execute(*query).fetchall()  # noqa: E731
        for name, *about in rows(_TABLES.format(wanted=wanted)):
            lines.append(_line(name, *about))
            lines += [f"    {_line(*column)}" for column in rows(_COLUMNS, (name,))]
            lines += [f"  {text}" for query in _REST for (text,) in rows(query, (name,))]
            lines.append("")
        lines += [text for (text,) in rows(_FUNCTIONS)]
    return "\n".join(lines)


def _line(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def test_the_committed_dump_is_the_schema(backend: Backend, url: str, world: World) -> None:
    """Migrations: one that changes the schema shows its effect in the diff of tests/schema/."""
    committed = DUMPS / {"sqlite": "sqlite.sql", "postgres": "postgres.txt"}[backend]
    now = dump(backend, url)
    if os.environ.get("TODOKU_TEST_WRITE_SCHEMA"):
        committed.write_text(now, "utf-8")
    assert committed.read_text("utf-8") == now

"""Encrypted at rest (S3-101): what was sealed is in no byte that is stored or logged, and arrives as it was."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from tests.encryption.conftest import new_key
from tests.support.world import World
from todoku.store.sqlite.database import file_path

ROOT = Path(__file__).resolve().parents[2]


def python(world: World, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, on the world's database."""
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "TODOKU_DATABASE": world.url, "TODOKU_BY": "ada", **environ},
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def stored_in(world: World, canary: str) -> list[str]:
    """The files of the database, journals and logs too, in which the text stands; on a server that is elsewhere, the
    tables."""
    needle = canary.encode()
    if world.backend == "sqlite":
        file = Path(file_path(world.url))
        return [path.name for path in file.parent.glob(f"{file.name}*") if needle in path.read_bytes()]
    with psycopg.connect(world.url, autocommit=True) as db:
        db.execute("checkpoint")
        ((folder, oid),) = db.execute(
            "select current_setting('data_directory'), (select oid from pg_database where datname = current_database())"
        ).fetchall()
        data = Path(folder)
        if os.access(data / "base", os.R_OK):
            files = [*(data / "base" / str(oid)).iterdir(), *_last(data / "pg_wal", 8), data / "log"]
            return [path.name for path in files if path.is_file() and needle in path.read_bytes()]
        tables = db.execute("select tablename from pg_tables where tablename like 'todoku%'").fetchall()
        return [name for (name,) in tables if _in_table(db, name, canary)]


def _last(folder: Path, number: int) -> list[Path]:
    """The files written last: a segment that is used again keeps what another test wrote into it."""
    return sorted((path for path in folder.iterdir() if path.is_file()), key=lambda path: path.stat().st_mtime)[
        -number:
    ]


def _in_table(db: psycopg.Connection[tuple[object, ...]], table: str, canary: str) -> bool:
    hexed = canary.encode().hex()
    rows = db.execute(f'select t::text from "{table}" t').fetchall()  # type: ignore[arg-type]
    return any(canary in str(row) or hexed in str(row) for (row,) in rows)


@pytest.fixture
def canary() -> str:
    return f"CANARY{uuid4().hex}"


def test_the_search_finds_what_is_not_encrypted(world: World, canary: str) -> None:
    """A test that cannot fail proves nothing."""
    world.publish(payload=lambda _: {"name": canary})
    assert stored_in(world, canary)


def test_a_canary_is_in_no_byte_that_is_stored_or_logged_and_still_arrives(world: World, canary: str) -> None:
    """Payloads, results, errors: of handlers in the loop, in threads, in processes and in transactions, of consumers
    and of destinations."""
    keys = {"TODOKU_MASTER_KEYS": new_key("2026-11")}
    done = python(world, "tests.encryption", canary, **keys)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    seen = hashlib.sha256(canary.encode()).hexdigest()
    assert told["results"] == dict.fromkeys(("in_loop", "in_thread", "in_process", "in_transaction"), seen)
    assert told["arrived"] == dict.fromkeys(("consumer", "sender", "function", "bytes"), seen)
    assert told["errors"] == {
        "fails_in_loop": "BUSY: BUSY",
        "fails_in_thread": "INTERNAL_ERROR: ValueError",
        "fails_in_process": "INTERNAL_ERROR: RuntimeError",
        "fails_in_transaction": "REFUSED: REFUSED",
        "never_decodes": "BAD_PAYLOAD: BAD_PAYLOAD",
    }
    assert "raise ValueError(" in told["tracebacks"]["fails_in_thread"]
    for name in ("fails_in_loop", "fails_in_thread", "fails_in_process", "fails_in_transaction"):
        assert canary in told["tracebacks"][name], "a program with the key reads it whole"
    assert "settled" in done.stderr
    assert canary not in done.stderr
    assert stored_in(world, canary) == []
    digests = world.sql("select digest from todoku_message where digest is not null")
    assert len(digests) == 4
    assert all(digest.startswith("k1:2026-11:") for (digest,) in digests)
    (message,) = world.sql("select id from todoku_message where topic = 'in_loop'")[0]
    whole = python(world, "todoku", "show", "--json", str(message), **keys).stdout
    assert '"payload":"encrypted (' in whole
    assert '"result":"encrypted (' in whole
    for command in (["list", "--json"], ["show", str(message)]):
        shown = python(world, "todoku", *command, **keys)
        assert canary not in shown.stdout + shown.stderr + whole
        assert "encrypted (" in shown.stdout

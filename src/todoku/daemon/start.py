"""Putting a daemon together: `todoku up` and `todoku run`."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Final

import msgspec

from todoku.app import App
from todoku.core.development_credentials import is_public
from todoku.core.errors import CannotStart, SchemaError, TodokuError
from todoku.core.settings import Settings
from todoku.daemon.alert_thread import alert_thread
from todoku.daemon.app_loader import load_app, named_app
from todoku.daemon.database_start import Opening
from todoku.daemon.demo import Demonstration, demonstration
from todoku.daemon.file_lock import OnlyOne
from todoku.daemon.health_view import View
from todoku.daemon.http_thread import HttpThread, bound, is_local, url_of
from todoku.daemon.statistics import StatisticsThread
from todoku.daemon.supervisor import Supervisor
from todoku.daemon.systemd import Notify
from todoku.engine.diagnostics.summary import without_password
from todoku.engine.http.api_tokens import first
from todoku.engine.http.signing_keys import signing_keys
from todoku.engine.observability.log import Log, Style, configure_logging
from todoku.store.store import Store


def refuse_public_credentials(settings: Settings, listening: socket.socket) -> None:
    """CannotStart if the token or a signing key is a public one, and others can reach the server."""
    if is_public(settings.token, settings.signing_keys) and not is_local(listening):
        listening.close()
        raise CannotStart(
            "the credentials of development are known to everybody, and others could reach this server",
            hint="listen on 127.0.0.1, or set TODOKU_TOKEN and TODOKU_SIGNING_KEYS of your own",
        )


def made_credentials(store: Store, settings: Settings, address: str) -> list[str]:
    """Lines that say what was made now: the first token, the signing keys. Nothing, if they were there.

    What cannot be made is logged; everything that needs none works without.
    """
    try:
        token, keys = first(store, settings), signing_keys(store, settings)
    except TodokuError as error:
        Log(part="http").error("NO_CREDENTIALS", error=str(error))
        return []
    lines = [] if token is None else [f"  QSTASH_URL={address}", f"  QSTASH_TOKEN={token}"]
    if keys.made:
        lines += [f"  QSTASH_CURRENT_SIGNING_KEY={keys.current}", f"  QSTASH_NEXT_SIGNING_KEY={keys.next}"]
    return ["todoku made these, and says them only now:", *lines] if lines else []


if TYPE_CHECKING:
    from todoku.api.ingest_fast_path import Served

_FOREVER: Final = 100 * 365 * 86_400.0
_LEAVES_WITHIN: Final = 10.0


class DaemonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the command line asked for; None: the settings decide."""

    database: str | None = None
    schema: str | None = None
    app: str | None = None
    host: str | None = None
    port: int | None = None
    workers: int | None = None
    http: bool = True
    log: Style = "auto"


def hand_down(wanted: DaemonOptions) -> None:
    """Put what the command line said where the App of the user, and worker processes, read it: the environment."""
    said = {"DATABASE": wanted.database, "SCHEMA": wanted.schema}
    os.environ.update({f"TODOKU_{name}": value for name, value in said.items() if value is not None})
    if wanted.database is not None:
        os.environ.pop("TODOKU_DATABASE_FILE", None)  # it would come before what the command line says


def checked_app(wanted: DaemonOptions) -> tuple[str, App] | None:
    """The App to run with its name, or None if nobody named one. Its database is the one asked for, or an error."""
    hand_down(wanted)
    if (name := named_app(wanted.app)) is None:
        return None
    box = load_app(name)
    if wanted.database is not None and box.settings.database != wanted.database:
        raise CannotStart(
            f"{name} is on {without_password(box.settings.database)}, --db says {without_password(wanted.database)}",
            hint="make it with todoku.App() without a database, or leave out --db",
        )
    return name, box


def up(wanted: DaemonOptions, say: Callable[..., None]) -> int:
    """Everything by one command: migrate, worker processes, HTTP. Without an App, the demonstration."""
    found = checked_app(wanted)
    if found is None:  # others' messages are not the demonstration's to give up on
        os.environ["TODOKU_UNKNOWN_AFTER_SEC"] = str(_FOREVER)
    name, box = found or (None, demonstration())
    file = sqlite_file(box.settings.database)
    with ExitStack() as stack:
        lock = None if file is None else OnlyOne(file)
        if lock is not None:
            stack.callback(lock.release)
        is_new = file is not None and not file.exists()
        daemon = Daemon(wanted, name, box, migrates=True)
        if lock is not None:
            lock.say(f"pid {os.getpid()}, {daemon.address}")
        if found is None and is_new:
            daemon.when_opened(Demonstration(box).run)
        daemon.when_opened(lambda: say(*greeting(daemon, file, demo=found is None, new=is_new), *daemon.made))
        return daemon.run()


def run(wanted: DaemonOptions) -> int:
    """Worker processes for an App, and HTTP; the database must have been migrated, or is waited for."""
    found = checked_app(wanted)
    if found is None:
        raise CannotStart(
            "there is no app to run", hint="pass --app module:attribute, or set TODOKU_APP or [tool.todoku] app"
        )
    daemon = Daemon(wanted, *found, migrates=False)
    daemon.when_opened(lambda: _say_made(daemon))
    return daemon.run()


class Daemon:
    """A supervisor with what is around it: HTTP, statistics, systemd."""

    child: ClassVar[tuple[str, ...]] = ("todoku.daemon.child",)
    """What `python -m` runs as a worker process; the testing kit starts its own, with failpoints armed."""

    def __init__(self, wanted: DaemonOptions, name: str | None, box: App, *, migrates: bool) -> None:
        settings = box.settings
        self.name, self.box, self._log = name, box, wanted.log
        configure_logging(wanted.log, masked=settings.mask_fields)
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # of a database that is gone the guardrail tells
        self._when_opened: list[Callable[[], None]] = []
        self.made: list[str] = []
        """What is to be said once, because it was made now."""
        self.processes = wanted.workers or settings.processes or _processes(box)
        prepare = self._migrate if migrates else self._check
        self.supervisor = Supervisor(
            box.store,
            settings,
            box.telemetry,
            processes=self.processes,
            command=self._command,
            # A SQLite file that cannot be opened will not appear by itself; a server may.
            opening=Opening(
                prepare, waits_for_schema=not migrates, waits_for_server=sqlite_file(settings.database) is None
            ),
            opened=self._opened,
            notify=Notify(os.environ),
        )
        self._statistics = StatisticsThread(
            lambda: box.store.statistics.counts(max_age=settings.stats_interval_sec), settings.stats_interval_sec
        )
        self._alerts = alert_thread(self.supervisor, box)
        self._http: HttpThread | None = None
        self.address = "no HTTP"
        if wanted.http:
            host = settings.host if wanted.host is None else wanted.host
            listening = bound(host, settings.port if wanted.port is None else wanted.port)
            refuse_public_credentials(settings, listening)
            self.address = url_of(listening)
            view = View(self.supervisor, box, without_password(settings.database))
            self._http = HttpThread(lambda: served(box, view, local=is_local(listening)), listening)

    def when_opened(self, act: Callable[[], None]) -> None:
        """Do this once the database is there, in a thread of its own."""
        self._when_opened.append(act)

    def run(self) -> int:
        """Until it is stopped; returns the exit code."""
        if self._http is not None:
            self._http.start()
        code = 1
        try:
            code = self.supervisor.run()
            return code
        finally:
            _in_thread(lambda: _insist(code))
            self._statistics.stop()
            self._alerts.stop()
            if self._http is not None:
                self._http.stop()
            _in_thread(self.box.close).join(2.0)  # a database that is gone may take long

    def _opened(self) -> None:
        Log(address=self.address, workers=len(self.supervisor.places)).info("STARTED")
        self._statistics.start()
        self._alerts.start()
        for act in self._when_opened:
            _in_thread(act)

    def _migrate(self) -> None:
        if (done := self.box.store.migrate()).applied:
            Log(version=done.version).info("MIGRATED")
        self._make_credentials()

    def _check(self) -> None:
        check_migrated(self.box)
        self._make_credentials()

    def _make_credentials(self) -> None:
        """Before any worker could make them, who would not say so."""
        if self._http is not None:
            self.made = made_credentials(self.box.store, self.box.settings, self.address)

    def _command(self, number: int, line: int, memory: int) -> list[str]:
        app = [] if self.name is None else ["--app", self.name]
        given = ["--fd", str(line), "--started", str(memory), "--number", str(number), "--log", self._log]
        return [sys.executable, "-m", *self.child, *given, *app]


def check_migrated(box: App) -> None:
    """SchemaError unless the database has what this program needs. Looking makes no SQLite file."""
    file = sqlite_file(box.settings.database)
    if file is not None and not file.exists():
        raise SchemaError(f"there is no database {file}", hint="`todoku migrate` makes it")
    facts = box.store.facts()
    if facts.version is None or facts.version < facts.latest:
        found = "is not migrated" if facts.version is None else f"is at version {facts.version}"
        raise SchemaError(f"the database {found}, this todoku needs {facts.latest}", hint="run `todoku migrate`")


def greeting(daemon: Daemon, file: Path | None, *, demo: bool, new: bool) -> list[str]:
    """What `up` says once it runs."""
    box = daemon.box
    try:
        detail = f" ({box.about().detail})"
    except TodokuError:
        detail = ""
    over = "drop the database and create it again" if file is None else f"delete {file}*"
    if not demo:
        runs = f"{daemon.name} in {daemon.processes} worker process{'es' if daemon.processes > 1 else ''}"
    elif new:
        runs = "a small demonstration (topics demo.*, one message fails on purpose); your own: --app module:attribute"
    else:
        runs = "nothing of yours: name your App with --app module:attribute"
    return [
        f"todoku is running on {daemon.address}",
        f"  database    {without_password(box.settings.database)}{detail}",
        f"  running     {runs}",
        f"  stop        Ctrl-C, or kill -TERM {os.getpid()}",
        f"  start over  stop, then {over}",
    ]


def sqlite_file(url: str) -> Path | None:
    """The file of a `sqlite:///…` URL; None for a server."""
    rest = url.removeprefix("sqlite:///")
    return None if rest == url else Path(os.path.realpath(rest.split("?", 1)[0]))


def _processes(box: App) -> int:
    """How many there are when nobody says: SQLite has one writer anyway, else one for each core we may use."""
    if sqlite_file(box.settings.database) is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def served(box: App, watched: View, *, local: bool) -> Served:
    """Everything a daemon serves. Imported late: it is an extra."""
    from todoku.api.server import server_app  # noqa: PLC0415

    return server_app(box, watched, local=local)


def _say_made(daemon: Daemon) -> None:
    sys.stdout.writelines(f"{line}\n" for line in daemon.made)
    sys.stdout.flush()


def _in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def _insist(code: int) -> None:
    """A thread that the user's module started must not keep us once everything is done."""
    time.sleep(_LEAVES_WITHIN)
    os._exit(code)

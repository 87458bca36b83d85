"""Puts the daemon of `todoku up` and `todoku run` together."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from todoku.app import App, load_settings
from todoku.core.errors import CannotStart, SchemaError, TodokuError
from todoku.core.settings import Settings
from todoku.daemon.alert_thread import create_alert_thread
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.banner import Banner, FoundDaemon, banner, command, read_facts
from todoku.daemon.database_start import Opening
from todoku.daemon.demo import DemoPublisher, DemoReceiver
from todoku.daemon.demo_shop import create_demo_app
from todoku.daemon.file_lock import FileLock
from todoku.daemon.health_view import HealthView
from todoku.daemon.http_start import (
    create_http_app,
    create_rates,
    refuse_open,
    refuse_public_credentials,
    refuse_serving_together,
)
from todoku.daemon.http_thread import HttpThread, is_local, listen_for, listening_url
from todoku.daemon.serving import ServingProcesses
from todoku.daemon.statistics import COUNTED_FOR_THE_LOG, StatisticsThread
from todoku.daemon.supervisor import Supervisor
from todoku.daemon.systemd import Notify
from todoku.engine.diagnostics.summary import migrate_command, without_password
from todoku.engine.http.api_tokens import create_first
from todoku.engine.http.signing_keys import signing_keys
from todoku.engine.observability.log import Log, Style, configure_logging
from todoku.store.store import Store


def create_credentials(store: Store, settings: Settings, address: str) -> list[str]:
    """Creates the first token and the signing keys unless they exist. Returns the lines that show the new ones.

    If that fails it is logged, and everything that needs no credentials works.
    """
    try:
        token, keys = create_first(store, settings), signing_keys(store, settings)
    except TodokuError as error:
        Log(part="http").error("NO_CREDENTIALS", error=str(error))
        return []
    lines = [] if token is None else [f"  QSTASH_URL={address}", f"  QSTASH_TOKEN={token}"]
    if keys.made:
        lines += [f"  QSTASH_CURRENT_SIGNING_KEY={keys.current}", f"  QSTASH_NEXT_SIGNING_KEY={keys.next}"]
    return ["todoku created these credentials. Copy them now, they are not shown again:", *lines] if lines else []


_FOREVER: Final = 100 * 365 * 86_400.0
_EXIT_WITHIN: Final = 10.0


class DaemonOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the command line. None: the settings decide."""

    database: str | None = None
    schema: str | None = None
    app: str | None = None
    host: str | None = None
    port: int | None = None
    workers: int | None = None
    serve_workers: int | None = None
    http: bool = True
    log: Style = "auto"
    is_open: bool = False
    """The dashboard needs no sign-in; only this machine may reach it."""


def export_options(options: DaemonOptions) -> None:
    """Writes options into the environment, where the user's App and worker processes read them."""
    given = {"DATABASE": options.database, "SCHEMA": options.schema}
    os.environ.update({f"TODOKU_{name}": value for name, value in given.items() if value is not None})
    if options.database is not None:
        os.environ.pop("TODOKU_DATABASE_FILE", None)  # it would take precedence over the command line


def refuse_without_processes(command: str) -> None:
    """Raises CannotStart on a system without process groups, which is Windows."""
    if not hasattr(os, "killpg"):
        raise CannotStart(
            f"`todoku {command}` needs process groups and signals, which Windows does not have",
            hint="run it in WSL or in a container; on Windows itself, box.lifespan runs a worker inside your program, "
            "and `todoku run --once` makes one pass",
        )


def load_named_app(options: DaemonOptions) -> tuple[str, App] | None:
    """The App to run with its name, or None if none is named. CannotStart: it uses another database than --db."""
    export_options(options)
    if (name := find_app_name(options.app)) is None:
        return None
    box = load_app(name)
    if options.database is not None and box.settings.database != load_settings(database=options.database).database:
        raise CannotStart(
            f"{name} uses {without_password(box.settings.database)}, but --db is {without_password(options.database)}",
            hint="create it by todoku.App() without a database, or leave out --db",
        )
    return name, box


def up(options: DaemonOptions, show: Callable[[Banner, Sequence[str]], None], *, demo: bool = False) -> int:
    """Migrates the database, runs worker processes and serves HTTP. `show` prints the banner and new credentials.

    Without an App it runs the demonstration's, which publishes if the SQLite file is new or with `demo`.
    """
    refuse_without_processes("up")
    found = load_named_app(options)
    if found is None:  # the demonstration must not abort messages of destinations it does not know
        os.environ["TODOKU_UNKNOWN_AFTER_SEC"] = str(_FOREVER)
    elif demo:
        raise CannotStart(f"--demo runs an App of its own, and {found[0]} is named", hint="leave out --demo")
    name, box = found or (None, create_demo_app())
    file = sqlite_file(box.settings.database)
    with ExitStack() as stack:
        lock = None if file is None else FileLock(file)
        if lock is not None:
            stack.callback(lock.release)
        publishes = found is None and (demo or (file is not None and not file.exists()))
        daemon = Daemon(options, name, box, migrates=True)
        if lock is not None:
            lock.write_holder(f"pid {os.getpid()}, {daemon.address}")
        if publishes:
            _demonstrate(daemon, stack)
        daemon.when_opened(lambda: show(greeting(daemon, options, publishes=publishes), daemon.credential_lines))
        return daemon.run()


def _demonstrate(daemon: Daemon, stack: ExitStack) -> None:
    """Lets the demonstration publish while the daemon runs. Its receiver listens before the workers start."""
    receiver, publisher = DemoReceiver(), DemoPublisher(daemon.box)
    receiver.start()
    stack.callback(receiver.stop)
    daemon.when_opened(publisher.run)
    daemon.when_stopped(publisher.stop)


def run(options: DaemonOptions) -> int:
    """Runs worker processes for an App and serves HTTP. Waits until the database has been migrated."""
    refuse_without_processes("run")
    found = load_named_app(options)
    if found is None:
        raise CannotStart(
            "there is no app to run", hint="pass --app module:attribute, or set TODOKU_APP or [tool.todoku] app"
        )
    daemon = Daemon(options, *found, migrates=False)
    daemon.when_opened(lambda: _print_credentials(daemon))
    return daemon.run()


class Daemon:
    """A supervisor with its HTTP server, statistics, alerts and systemd notification."""

    child: ClassVar[tuple[str, ...]] = ("todoku.daemon.child",)
    """The module that `python -m` runs as a worker process. The testing kit starts its own, with failpoints armed."""

    def __init__(self, options: DaemonOptions, name: str | None, box: App, *, migrates: bool) -> None:
        settings = box.settings
        self.name, self.box, self._log = name, box, options.log
        configure_logging(options.log, masked=settings.mask_fields)
        logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # the guardrail reports a lost database
        self._when_opened: list[Callable[[], None]] = []
        self._when_stopped: list[Callable[[], None]] = [box.close]
        self.credential_lines: list[str] = []
        """Lines that show credentials created by this start; to be printed once."""
        self.processes = options.workers or settings.processes or _default_processes(box)
        prepare = self._migrate if migrates else self._check
        self.supervisor = Supervisor(
            box.store,
            settings,
            box.telemetry,
            processes=self.processes,
            command=self._command,
            # Waiting helps with a server that does not answer, not with a SQLite file that cannot be opened.
            opening=Opening(
                prepare, waits_for_schema=not migrates, waits_for_server=sqlite_file(settings.database) is None
            ),
            opened=self._on_opened,
            notify=Notify(os.environ),
        )
        self._statistics = StatisticsThread(
            lambda: box.store.statistics.counts(max_age=settings.stats_interval_sec, exactly=COUNTED_FOR_THE_LOG),
            settings.stats_interval_sec,
        )
        self._alerts = create_alert_thread(self.supervisor, box)
        self._http: HttpThread | None = None
        self.address = "no HTTP"
        if options.http:
            self._http = self._serve_http(options)

    def _serve_http(self, options: DaemonOptions) -> HttpThread:
        """Binds the sockets. Raises CannotStart if the port is taken, or if the address would serve strangers."""
        box, settings = self.box, self.box.settings
        number = options.serve_workers or settings.serve_workers
        if number > 1:
            refuse_serving_together(settings, number, is_sqlite=sqlite_file(settings.database) is not None)
        host = settings.host if options.host is None else options.host
        listening, *others = listen_for(host, settings.port if options.port is None else options.port, number)
        refuse_public_credentials(settings, listening)
        if options.is_open:
            refuse_open(listening)
        self.address = listening_url(listening)
        rates = create_rates() if others else None
        view = HealthView(self.supervisor, box, without_password(settings.database))
        http = HttpThread(
            lambda: create_http_app(box, view, local=is_local(listening), is_open=options.is_open, rates=rates),
            listening,
        )
        if rates is not None:
            self.supervisor.serving = ServingProcesses(http, others, partial(self._serving_command, rates), (rates,))
        return http

    @property
    def serving(self) -> int:
        """How many processes serve HTTP."""
        if self._http is None:
            return 0
        return 1 if self.supervisor.serving is None else len(self.supervisor.serving.places) + 1

    def when_opened(self, act: Callable[[], None]) -> None:
        """Registers `act` to run in a thread once the database can be used."""
        self._when_opened.append(act)

    def when_stopped(self, act: Callable[[], None]) -> None:
        """Registers `act` to run when the workers have stopped, before the database is closed."""
        self._when_stopped.insert(0, act)

    def run(self) -> int:
        """Runs until stopped; returns the exit code."""
        if self._http is not None:
            self._http.start()
        if self.supervisor.serving is not None:
            self.supervisor.serving.cover_all()
        code = 1
        try:
            code = self.supervisor.run()
            return code
        finally:
            _in_thread(lambda: _exit_later(code))
            self._statistics.stop()
            self._alerts.stop()
            if self._http is not None:
                self._http.stop()
            _in_thread(self._close).join(2.0)  # it may hang if the database is gone

    def _close(self) -> None:
        for act in self._when_stopped:
            act()

    def _on_opened(self) -> None:
        Log(address=self.address, workers=len(self.supervisor.places), serving=self.serving).info("STARTED")
        self._statistics.start()
        self._alerts.start()
        for act in self._when_opened:
            _in_thread(act)

    def _migrate(self) -> None:
        if (done := self.box.store.migrate()).applied:
            Log(version=done.version).info("MIGRATED")
        self._create_credentials()

    def _check(self) -> None:
        check_migrated(self.box)
        self._create_credentials()

    def _create_credentials(self) -> None:
        """Creates credentials before a worker does: a worker would not print them."""
        if self._http is not None:
            self.credential_lines = create_credentials(self.box.store, self.box.settings, self.address)

    def _command(self, number: int, line: int, memory: int) -> list[str]:
        return self._child_command(self.child, number, {"--fd": line, "--started": memory})

    def _serving_command(self, rates: int, number: int, line: int, listening: int, hand_over: int) -> list[str]:
        descriptors = {"--fd": line, "--listening": listening, "--hand-over": hand_over, "--rates": rates}
        return self._child_command(("todoku.daemon.serving_child",), number, descriptors)

    def _child_command(self, module: Sequence[str], number: int, descriptors: Mapping[str, int]) -> list[str]:
        app = [] if self.name is None else ["--app", self.name]
        given = [word for name, descriptor in descriptors.items() for word in (name, str(descriptor))]
        return [sys.executable, "-m", *module, *given, "--number", str(number), "--log", self._log, *app]


def check_migrated(box: App) -> None:
    """Raises SchemaError unless the schema is up to date. Creates no SQLite file."""
    file = sqlite_file(box.settings.database)
    if file is not None and not file.exists():
        raise SchemaError(f"there is no database {file}", hint=f"create it: {migrate_command(box.settings)}")
    facts = box.store.facts()
    if facts.version is None or facts.version < facts.latest:
        found = "is not migrated" if facts.version is None else f"is at version {facts.version}"
        raise SchemaError(
            f"the database {found}; this todoku needs version {facts.latest}",
            hint=f"run {migrate_command(box.settings)}",
        )


def greeting(daemon: Daemon, options: DaemonOptions, *, publishes: bool) -> Banner:
    """The banner that `up` prints once it runs, with how to stop it and how to start over."""
    file = sqlite_file(daemon.box.settings.database)
    over = "drop the database and create it again" if file is None else f"delete {file}*"
    if daemon.name is not None:
        running = f"{daemon.name} in {daemon.processes} worker process{'es' if daemon.processes > 1 else ''}"
    elif publishes:
        running = "a demonstration (topics demo.*, one message fails on purpose); run yours with --app module:attribute"
    else:
        running = "no App; name yours with --app module:attribute, or see a demonstration with --demo"
    entering = ("sign in", _describe_sign_in(daemon, options))
    ending = (entering, ("stop", f"Ctrl-C, or kill -TERM {os.getpid()}"), ("start over", f"stop, then {over}"))
    try:
        shown = banner(
            read_facts(daemon.box, FoundDaemon(daemon.address, daemon.serving)),
            running=running,
            database=options.database,
            schema=options.schema,
        )
    except TodokuError:  # the database went away: the guardrail reports it
        shown = Banner(f"todoku is running on {daemon.address}", (("running", running),))
    return Banner(shown.title, (*shown.lines, *ending))


def _describe_sign_in(daemon: Daemon, options: DaemonOptions) -> str:
    """How a person gets into the dashboard."""
    if options.is_open:
        return f"not needed from this machine (--open): {daemon.address}/"
    create = command("users", "create", "NAME", database=options.database, schema=options.schema)
    return f"{daemon.address}/sign-in with a token of the scope read, operate or admin, or as a user: {create}"


def sqlite_file(url: str) -> Path | None:
    """The file of a `sqlite:///…` URL; None for another database."""
    rest = url.removeprefix("sqlite:///")
    return None if rest == url else Path(os.path.realpath(rest.split("?", 1)[0]))


def _default_processes(box: App) -> int:
    """The default number of processes: 1 on SQLite, which has one writer; else one per available core."""
    if sqlite_file(box.settings.database) is not None:
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _print_credentials(daemon: Daemon) -> None:
    sys.stdout.writelines(f"{line}\n" for line in daemon.credential_lines)
    sys.stdout.flush()


def _in_thread(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def _exit_later(code: int) -> None:
    """Ends the process even if a thread of the user's module still runs."""
    time.sleep(_EXIT_WITHIN)
    os._exit(code)

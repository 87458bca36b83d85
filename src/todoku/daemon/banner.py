"""The lines that `todoku up` prints when it runs and `todoku status` repeats: where it is, and what to try."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path
from typing import Final

import msgspec

from todoku.app import App
from todoku.core.msgspec_warmup import warm_up
from todoku.core.status import Status
from todoku.daemon.file_lock import lock_holder
from todoku.daemon.terminal import route_text
from todoku.engine.diagnostics.summary import without_password
from todoku.store.deliveries import Delivery

_ANSWERS_WITHIN: Final = 1.0

# ---------------------------------------------------------------------------------------------------- commands


def program() -> str:
    """How a person calls this program here: `todoku` if the shell finds this one, else by its path."""
    beside = Path(sys.executable).with_name("todoku")
    if not beside.exists():
        return shlex.join([_from_here(Path(sys.executable)), "-m", "todoku"])
    found = shutil.which("todoku")
    return "todoku" if found is not None and Path(found).samefile(beside) else shlex.quote(_from_here(beside))


def _from_here(path: Path) -> str:
    """The path from the current directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def command(*words: str, database: str | None = None, schema: str | None = None) -> str:
    """A command of todoku to copy, on the same database as this one. A password is left out."""
    shown = None if database is None else without_password(database)
    options = [word for name, given in (("--db", shown), ("--schema", schema)) if given for word in (name, given)]
    return f"{program()} {shlex.join([*words, *options])}"


# ---------------------------------------------------------------------------------------------------- the lines


class FoundDaemon(msgspec.Struct, frozen=True):
    """A daemon that works on a database: its address, and how many processes serve HTTP there. None: not found."""

    address: str | None = None
    serving: int | None = None


class BannerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says of todoku: its address, its workers, the number of deliveries, the newest dead letter."""

    address: str | None
    serving: int | None
    database: str
    detail: str
    workers: int
    counts: dict[str, int]
    exact: bool
    dead: Delivery | None


def read_facts(box: App, daemon: FoundDaemon) -> BannerFacts:
    """Reads it."""
    counts = box.store.statistics.counts(max_age=1.0)  # first, because the summary may use older ones
    about, dead = box.about(), box.store.deliveries.newest_dead(1)
    return BannerFacts(
        address=daemon.address, serving=daemon.serving, database=about.database, detail=about.detail,
        workers=len(box.store.limits.read().workers),
        counts={status.value: counts.of(status.value) for status in Status}, exact=counts.exact,
        dead=dead[0] if dead else None,
    )  # fmt: skip


class Banner(msgspec.Struct, frozen=True):
    """A title, and lines with a label each."""

    title: str
    lines: tuple[tuple[str, str], ...]


def banner(
    facts: BannerFacts, *, running: str | None = None, database: str | None = None, schema: str | None = None
) -> Banner:
    """The banner: where todoku is and how it is, three commands to try. `running`: what the daemon runs.

    `database` and `schema` are those of the command line, which the commands have to repeat.
    """
    numbers = ", ".join(f"{number} {status}" for status, number in facts.counts.items())
    lines = [("database", f"{facts.database} ({facts.detail})")]
    lines += [("running", running)] if running else [("workers", f"{facts.workers} alive")]
    if facts.serving is not None and facts.serving > 1:
        lines.append(("serving", f"HTTP in {facts.serving} processes"))
    lines.append(("deliveries", numbers + ("" if facts.exact else " (sampled)")))
    if facts.dead is not None:
        lines.append(("dead letter", _describe_dead(facts.dead)))
    tries = [(command(*words, database=database, schema=schema), what) for words, what in _tries(facts.dead)]
    widest = max(len(text) for text, _ in tries)
    lines += [("try" if place == 0 else "", f"{text:<{widest}}  {what}") for place, (text, what) in enumerate(tries)]
    title = f"todoku is running on {facts.address}" if facts.address else _NOT_FOUND
    return Banner(title, tuple(lines))


_NOT_FOUND: Final = "no page of todoku was found: `todoku up` and `todoku run` serve one"


def _describe_dead(dead: Delivery) -> str:
    error = " ".join((dead.error or "").split())
    text = f"#{dead.id} {route_text(dead.topic, dead.destination)}: {dead.reason}" + (f", {error}" if error else "")
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


_LONGEST: Final = 120


def _tries(dead: Delivery | None) -> list[tuple[tuple[str, ...], str]]:
    """Three commands, as words and what each does."""
    if dead is None:
        return [
            (("status",), "this screen again, with new numbers"),
            (("list",), "the newest deliveries"),
            (("tail",), "what happens, as it happens"),
        ]
    return [
        (("status",), "this screen again, with new numbers"),
        (("show", str(dead.id)), "the dead letter: its error, its attempts, what to do"),
        (("replay", str(dead.id)), "send it again"),
    ]


# ----------------------------------------------------------------------------------------------- a daemon elsewhere


def find_daemon(box: App, file: Path | None) -> FoundDaemon:
    """Finds the daemon that works on this database: `todoku up` on the file, else where the settings say.

    An address from the settings counts only if the daemon there runs a worker that this database knows. If none was
    found, a daemon with another port, or on another machine, may still run.
    """
    if file is not None and (holder := lock_holder(file)) is not None:
        return FoundDaemon(holder.rpartition(", ")[2], 1)  # on SQLite there are never more
    known = {str(row.id) for row in box.store.leases.workers()}
    host, port = box.settings.host, box.settings.port
    there = _ask(host, port) if known else None
    if there is None or not known & {worker.worker_id for worker in there.workers}:
        return FoundDaemon()
    return FoundDaemon(f"http://{host}:{port}", max(1, len(there.serving)))


def _ask(host: str, port: int) -> _Readiness | None:
    """What the daemon there tells programs on the same machine; None if it does not."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415 - only `todoku status` asks

    connection = HTTPConnection(host, port, timeout=_ANSWERS_WITHIN)
    try:
        connection.request("GET", "/readyz?verbose")
        return msgspec.json.decode(connection.getresponse().read(), type=_Readiness)
    except (OSError, HTTPException, msgspec.DecodeError):
        return None
    finally:
        connection.close()


class _WorkerThere(msgspec.Struct):
    worker_id: str | None = None


class _ServingThere(msgspec.Struct):
    state: str


class _Readiness(msgspec.Struct):
    workers: list[_WorkerThere] = []
    serving: list[_ServingThere] = []


warm_up(_Readiness)

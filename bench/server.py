"""What the server pays for a job, and what it could do without any client: its processor time, its log, and pgbench.

pgbench runs the statements of the product, from its .sql files. It comes with Debian's package of PostgreSQL; where it
is missing, it is named and passed over. Processor time is read from /proc, so only of a server on this machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import uuid4

import psycopg

from bench.bare import PG_PLANS
from tests.support.postgres import debian_binaries
from todoku.store.sql import load

T = TypeVar("T")
_TICK: Final = os.sysconf("SC_CLK_TCK")
_BATCH: Final = 500
_MORE: Final = 1.2
"""Claims beyond those that would do: two that list at once leave rows to a later one."""

_VARIABLES: Final = {
    "queues": "{bench}", "destinations": "{bench}", "priorities": "{0}", "after_ats": "{0}", "after_ids": "{0}",
    "mosts": f"{{{_BATCH}}}", "most": str(_BATCH), "listable": "{bench}", "fewest": "1",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Paid:
    """What the server paid: seconds of processor time (None: it is not on this machine), and bytes of its log."""

    seconds: float | None
    wal_bytes: int

    def a_job(self, number: int) -> str:
        """The same for each of so many jobs, in words."""
        cpu = "" if self.seconds is None else f"server {self.seconds / number * 1e6:.1f} µs, "
        return f"{cpu}WAL {self.wal_bytes / number:,.0f} B a job"


class ServerMeter:
    """Reads what the server has paid so far, all of its processes and those that ended."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True)
        self._server = _local_server(self._connection.info.backend_pid)

    def paid(self, work: Callable[[], T]) -> tuple[Paid, T]:
        """What the server pays while `work` runs, and what it returns."""
        seconds, wal = self._seconds(), self._wal()
        result = work()
        later = self._seconds()
        spent = None if seconds is None or later is None else later - seconds
        return Paid(spent, self._wal() - wal), result

    def close(self) -> None:
        """Closes its connection."""
        self._connection.close()

    def _wal(self) -> int:
        ((bytes_,),) = self._connection.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
        return int(bytes_)

    def _seconds(self) -> float | None:
        if self._server is None:
            return None
        while True:
            server = _times(self._server)
            total = sum(server[1:]) + sum(_seconds_below(self._server))
            if _times(self._server)[3:] == server[3:]:  # else one of them ended meanwhile, and was counted nowhere
                return total


def _seconds_below(server: int) -> Iterator[float]:
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parent, user, system, *_ = _times(int(entry.name))
        except OSError:  # it has ended, and its parent has its time
            continue
        if parent == server:
            yield user + system


def _times(pid: int) -> tuple[int, float, float, float, float]:
    """Of a process: its parent; user and system time; the same of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    user, system, ended_user, ended_system = (int(field) / _TICK for field in fields[11:15])
    return int(fields[1]), user, system, ended_user, ended_system


def _local_server(backend: int) -> int | None:
    """The server that this backend belongs to; None: no process of this machine is a backend with that number."""
    try:
        server = _times(backend)[0]
        names = {Path(f"/proc/{pid}/comm").read_text("utf-8").strip() for pid in (backend, server)}
    except OSError:
        return None
    return server if names == {"postgres"} else None


# ------------------------------------------------------------------------------------------------------- pgbench


def pgbench_rate(url: str, number: int, processes: int) -> float | None:
    """How many jobs a second the server claims and settles for so many clients that do nothing else.

    `number` jobs wait in the queue and for the destination `bench`. None: there is no pgbench.
    """
    binaries = debian_binaries()
    if binaries is None or not (binaries / "pgbench").exists():
        return None
    workers = [str(uuid4()) for _ in range(processes)]
    with psycopg.connect(url, autocommit=True) as connection, tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "drain.sql"
        script.write_text(_script(connection), "utf-8")
        for worker in workers:
            connection.execute(
                "insert into todoku_worker (id, name, started_at, expires_at, lists)"
                " values (%s, 'pgbench', now(), 'infinity', true)",
                (worker,),
            )
        ((before,),) = connection.execute("select count(*) from todoku_history").fetchall()
        times = int(_MORE * number / _BATCH / processes)
        command = [str(binaries / "pgbench"), "-n", "-M", "prepared", "-f", str(script), "-t", str(times)]
        began = time.perf_counter()
        running = [_started([*command, *_variables(worker), url]) for worker in workers]
        said = [process.communicate()[0] for process in running]
        took = time.perf_counter() - began
        ((after,),) = connection.execute("select count(*) from todoku_history").fetchall()
        connection.execute("delete from todoku_worker where name = 'pgbench'")
    if any(process.returncode for process in running) or after - before != number:
        raise RuntimeError(f"pgbench settled {after - before} of {number}: {said}")
    return number / took


def _started(command: list[str]) -> subprocess.Popen[str]:
    plans = " ".join(f"-c {setting}" for setting in re.findall(r"set (\w+ = \w+)", PG_PLANS)).replace(" = ", "=")
    environment = {**os.environ, "PGOPTIONS": plans}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _variables(worker: str) -> list[str]:
    return [word for name, value in {**_VARIABLES, "worker": worker}.items() for word in ("-D", f"{name}={value}")]


def _script(connection: psycopg.Connection[Any]) -> str:
    """The product's claim by list, whose rows stay in the server but for ids and position, and its settle."""
    queries = load("todoku.store.postgres")
    claim, select, columns = queries["claim_list"].rpartition("\nselect t.list,")
    names = ", ".join(f"c{place}" for place in range(_width(connection, queries["claim_list"])))
    kept = """
select coalesce('{' || string_agg(c2::text, ',' order by c2) || '}', '{}') as ids,
       coalesce('{' || string_agg(c0::text, ',') || '}', '{}') as lists,
       coalesce('{' || string_agg('1', ',') || '}', '{}') as times, '{' || coalesce(min(c0)::text, '') || '}' as over,
       '{' || coalesce(max(c12), 0) || '}' as after_ats,
       '{' || coalesce((array_agg(c2 order by c12 desc, c2 desc))[1], 0) || '}' as after_ids, count(*) as number
  from claimed"""
    claimed = f"claimed({names}) as materialized ({select.strip()}{columns})"
    return f"{claim}, {claimed}{kept} \\gset\n{queries['settle_listed']};\n"


def _width(connection: psycopg.Connection[Any], query: str) -> int:
    """How many columns a claim returns; nothing is claimed."""
    given = {**_VARIABLES, "worker": str(uuid4()), "most": "0"}
    described = re.sub(r"(?<!:):(\w+)", lambda name: f"'{given[name[1]]}'", query)
    return len(connection.execute(described.encode()).description or ())

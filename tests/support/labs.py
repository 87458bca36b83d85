"""The labs of docs/runbook.md as programs: the page's own blocks, run in one shell, compared with what it promises.

A fenced block belongs to a lab by its info string: ```sh lab-1 is typed, ```sql lab-1 is asked, and the ```text lab-1
after one of them is what it prints. A second word, `sqlite` or `postgres`, leaves a block to that database.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.support import postgres
from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
RUNBOOK = ROOT / "docs" / "runbook.md"
SECONDS = 240
"""A lab takes 5 to 20 s here; what hangs is ended after this."""

_FENCE = re.compile(r"^```(?P<kind>sh|sql|text) (?P<lab>[\w-]+)(?: (?P<only>sqlite|postgres))?\n(?P<code>.*?)^```$",
                    re.MULTILINE | re.DOTALL)  # fmt: skip
_BETWEEN = "=====block====="


@dataclass(frozen=True)
class Block:
    """Something to type or to ask, and what the page says it prints (None: it does not say)."""

    kind: str
    code: str
    promised: str | None


def blocks(lab: str, backend: str, page: Path = RUNBOOK) -> list[Block]:
    """The blocks of a lab, in the page's order."""
    found: list[Block] = []
    for match in _FENCE.finditer(page.read_text("utf-8")):
        if match["lab"] != lab or match["only"] not in (None, backend):
            continue
        if match["kind"] == "text":
            assert found, f"{lab}: a promise before any command"
            assert found[-1].promised is None, f"{lab}: two promises for one block"
            found[-1] = Block(found[-1].kind, found[-1].code, match["code"])
        else:
            found.append(Block(match["kind"], match["code"], None))
    return found


def keeps(promised: str, printed: str) -> bool:
    """Whether what was printed is what was promised; `…` is anything on a line, and widths do not count.

    On a busy machine a loop may be blocked for a second while it starts, which is logged; no page promises that.
    """
    wanted = [" ".join(line.split()) for line in promised.splitlines() if line.strip()]
    found = [" ".join(line.split()) for line in printed.splitlines() if line.strip() and '"event":"LOOP_' not in line]
    patterns = [re.escape(line).replace("…", ".*") for line in wanted]
    return len(found) == len(patterns) and all(map(re.fullmatch, patterns, found))


class Lab:
    """One lab, run from an empty folder on a database."""

    def __init__(
        self, number: int, backend: str, url: str, home: Path, *, page: Path = RUNBOOK, seconds: float = SECONDS,
        **environ: str,
    ) -> None:  # fmt: skip
        self.blocks = [*blocks("setup", backend, page), *blocks(f"lab-{number}", backend, page)]
        self.folder = home / "todoku-labs"
        self._home = home
        self._seconds = seconds
        kept = {name: os.environ[name] for name in ("HOME", "LD_LIBRARY_PATH") if name in os.environ}
        self._environ = kept | {
            "CHECKOUT": str(ROOT),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TODOKU_PORT": str(free_port()),
            "LABS_DEPENDENCY": f"http://127.0.0.1:{free_port()}",
        }
        if backend == "postgres":
            self._environ["DATABASE_URL"] = url
        self._environ |= environ

    def run(self) -> list[str]:
        """Type and ask everything; returns what each block printed, having compared it with the page."""
        process = subprocess.Popen(
            ["bash", "-c", self._script()],
            cwd=self._home, env=self._environ, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=self._seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, _ = process.communicate()
        parts = [part.removeprefix("\n") for part in printed.split(_BETWEEN)[1:]]
        for block, part in zip(self.blocks, parts, strict=False):
            assert block.promised is None or keeps(block.promised, part), (
                f"{block.code}\nprinted\n{part}\nand the page promises\n{block.promised}\nlog:\n{self.log()}"
            )
        assert process.returncode == 0, f"it ended with {process.returncode}\n{printed}\nlog:\n{self.log()}"
        return parts

    def _script(self) -> str:
        """Everything in one shell, as a person has one; whatever goes wrong, nothing stays behind."""
        ends = "code=$?; touch go 2>/dev/null; jobs -p | xargs -r kill 2>/dev/null; wait; exit $code"
        lines = ["set -eu", f"trap '{ends}' EXIT"]
        for block in self.blocks:
            lines += [f"echo; echo {_BETWEEN}", block.code if block.kind == "sh" else _question(block.code)]
        return "\n".join(lines)

    def log(self) -> str:
        """What the daemon said last."""
        file = self.folder / "run.log"
        return file.read_text("utf-8")[-5000:] if file.exists() else "(none)"

    def answer(self, parts: list[str], beginning: str) -> list[str]:
        """The columns of the last answer of the query that begins so."""
        at = max(n for n, block in enumerate(self.blocks) if block.code.startswith(beginning))
        return [cell for line in parts[at].split() for cell in line.split("|")]


def _question(sql: str) -> str:
    return f"python -m tests.support.labs query {shlex.quote(sql)}"


def answered(sql: str, backend: str, url: str) -> list[Any]:
    """The rows a query finds."""
    if backend == "postgres":
        with psycopg.connect(url) as server:
            return server.execute(sql).fetchall()  # type: ignore[arg-type]
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
        return file.execute(sql).fetchall()


def query(sql: str) -> None:
    """Ask the lab's database, and print rows as `sqlite3` and `psql -At` do."""
    url = os.environ.get("DATABASE_URL") or "sqlite:///todoku.db"
    rows = answered(sql, url.partition(":")[0].replace("postgresql", "postgres"), url)
    for row in rows:
        print("|".join("" if value is None else str(value) for value in row))


def server(act: str, home: str) -> None:
    """Stop or start the PostgreSQL server that lives in `home`."""
    if act == "stop":
        postgres.stop_at_once(Path(home))
    else:
        postgres.start_again(Path(home))


if __name__ == "__main__":
    {"query": query, "server": server}[sys.argv[1]](*sys.argv[2:])

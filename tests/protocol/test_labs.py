"""Seed 002's ladder, v1 to v4, as the six labs of docs/runbook.md (S2-37).

Each test types the page's own commands in a shell, in an empty folder, with real processes, and compares everything
that is printed with what the page promises. What the page leaves open (`…`) is bounded here.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from tests.daemon.own_server import own_server
from tests.support.labs import RUNBOOK, SECONDS, Lab, answered, blocks, keeps
from todoku.app import App
from todoku.cli.main import cli

LABS = range(1, 7)


def events(lab: Lab, name: str) -> list[dict[str, Any]]:
    lines = (lab.folder / "run.log").read_text("utf-8").splitlines()
    return [said for line in lines if (said := json.loads(line))["event"] == name]


def began(lab: Lab, job: str) -> list[str]:
    """The messages of a job, each as often as an attempt of it began."""
    lines = (lab.folder / "ran.log").read_text("utf-8").splitlines()
    return [n for _, what, n, _ in map(str.split, lines) if what == job]


def seconds(interval: str) -> float:
    """An interval as SQLite (microseconds) or psycopg (h:mm:ss.ffffff) prints it."""
    if ":" not in interval:
        return int(interval) / 1e6
    hours, minutes, rest = interval.split(":")
    return int(hours) * 3600 + int(minutes) * 60 + float(rest)


@pytest.mark.slow
def test_lab_1_a_killed_worker_heals(backend: str, url: str, tmp_path: Path) -> None:
    """v1, S2-3, S2-4, W-103: what it held runs again before its lease would have ended; everything arrives once.

    Every invariant holds that `todoku verify` can see.
    """
    lab = Lab(1, backend, url, tmp_path)
    assert any("export TODOKU_LEASE_SEC=3600\n" in block.code for block in lab.blocks), "longer than the lab may take"
    assert SECONDS < 3600
    parts = lab.run()
    (after,) = re.findall(r"the first after (.*) s", "".join(parts))
    print(f"runs_again_after_sec: {after}")  # no promise: it depends on what else the machine does
    (died,) = events(lab, "WORKER_DIED")
    (ended,) = events(lab, "LEASE_ENDED")
    assert died["pid"] == ended["pid"]
    assert died["ts"] <= ended["ts"], "the supervisor saw it die, and then ended its lease"
    (reason, lost) = lab.answer(parts, "select reason")
    assert (reason, int(lost)) == ("WORKER_LOST", ended["freed"])
    assert 1 <= int(lost) <= 6
    assert set(began(lab, "slow")) == {str(n) for n in range(1, 7)}
    assert len(began(lab, "slow")) <= 6 + int(lost), "nothing runs twice that was not lost (I13)"


@pytest.mark.slow
def test_lab_2_a_dependency_that_is_down_is_not_stormed(backend: str, url: str, tmp_path: Path) -> None:
    """v2, S2-8 … S2-10, S2-40: back-off with jitter, a breaker, convergence, every message once."""
    lab = Lab(2, backend, url, tmp_path)
    parts = lab.run()
    *_, different, shortest, longest = lab.answer(parts, "select status, attempts")
    print(f"waits_sec: {different} different, {seconds(shortest):.2f} to {seconds(longest):.2f}")
    assert int(different) > 95, "each waits for itself (two may draw the same microsecond)"
    assert seconds(shortest) >= 10.0, "jitter never makes an attempt earlier"
    assert seconds(longest) <= 11.0
    assert seconds(longest) - seconds(shortest) > 0.5, "they are spread over a tenth of the back-off"
    calls = dict(zip(*[iter(lab.answer(parts, "select reason"))] * 2, strict=True))
    print(f"calls_while_down: {calls}")
    assert 100 <= int(calls["INDEX_DOWN"]) <= 200
    assert 10 <= int(calls["NETWORK"]) <= 60, "the breaker: 200 messages wait and burn no attempts"
    spread = float(re.findall(r"100 calls of 100 messages within (.*) s,", "".join(parts))[0])
    print(f"second_attempts_within_sec: {spread}")  # a machine that stalls for a second makes them meet all the same
    assert events(lab, "BREAKER_OPEN")
    assert events(lab, "BREAKER_CLOSED")


@pytest.mark.slow
def test_lab_3_a_deterministic_failure_is_terminal_at_once_with_its_reason(
    backend: str, url: str, tmp_path: Path
) -> None:
    """v2, S2-11 … S2-13, S2-16: one attempt, a reason that can be counted, a readable error; neighbours arrive."""
    lab = Lab(3, backend, url, tmp_path)
    lab.run()
    assert sorted(began(lab, "mail")) == ["1", "2", "3", "4", "5"], "what does not decode is not run at all"
    assert len(began(lab, "ok")) == 10
    assert "Expected `int`, got `str`" in (lab.folder / "refused").read_text("utf-8")


@pytest.mark.slow
def test_lab_4_attempts_that_run_out_are_terminal(backend: str, url: str, tmp_path: Path) -> None:
    """v2, v3, S2-14: after max_attempts failures, or max_lost dead owners, a dead letter that stays one."""
    lab = Lab(4, backend, url, tmp_path)
    lab.run()
    assert sorted(began(lab, "broken")) == sorted("1234" * 3)
    assert began(lab, "killer") == ["1"] * 3
    assert [died["how"] for died in events(lab, "WORKER_DIED")] == ["exited with 9"] * 3
    assert len(began(lab, "ok")) == 10, "whoever comes after a killer arrives"


@pytest.mark.slow
def test_lab_5_a_replay_is_audited(backend: str, url: str, tmp_path: Path) -> None:
    """v3, S2-15 … S2-20, I9: dry run, replay with who and why, each once, acceptance by query."""
    lab = Lab(5, backend, url, tmp_path)
    lab.run()
    assert sorted(began(lab, "mail")) == sorted("12345" * 2), "once before the replay, once after it"


@pytest.mark.slow
def test_lab_6_draining_readiness_and_the_guardrail_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    """v4, S2-21 … S2-25, S2-33, I11; the guardrail by a lock that somebody keeps."""
    lab = Lab(6, "sqlite", sqlite_url, tmp_path)
    _the_same_daemon_went_on(lab, lab.run())


@pytest.mark.slow
@pytest.mark.postgres
def test_lab_6_draining_readiness_and_the_guardrail_on_postgres(tmp_path: Path) -> None:
    """The same; the guardrail by a server that is stopped as a power failure stops it, and started again."""
    with own_server() as server:
        command = f"{shlex.quote(sys.executable)} -m tests.support.labs server"
        home = server._home
        lab = Lab(6, "postgres", server.url, tmp_path,
                  DATABASE_STOP=f"{command} stop {home}", DATABASE_START=f"{command} start {home}")  # fmt: skip
        parts = lab.run()
    _the_same_daemon_went_on(lab, parts)
    tripped = [line.get("worker", "supervisor") for line in events(lab, "GUARDRAIL_TRIPPED")]
    assert tripped
    assert len(tripped) == len(set(tripped)), "each process says so once"


def _the_same_daemon_went_on(lab: Lab, parts: list[str]) -> None:
    *_, given_back = lab.answer(parts, "select status, attempts")
    assert 14 <= int(given_back) <= 17, "three slots had begun at least, six at most; the rest was given back (I11)"
    (succeeded,) = re.findall(r'"sending":0,"succeeded":(\d+),"failed":0,"aborted":0,"workers"', "".join(parts))
    assert int(succeeded) + int(given_back) == 20, "what had begun was awaited"
    assert len(events(lab, "STARTED")) == 1
    assert events(lab, "WORKER_DIED") == []
    assert events(lab, "DATABASE_FAILED")
    assert events(lab, "DATABASE_RECOVERED")
    assert len(began(lab, "slow")) == 20, "drained or not, each ran once (I13)"
    other = [line for line in (lab.folder / "run.log").read_text("utf-8").splitlines() if '"settled"' not in line]
    assert len(other) < 60, "\n".join(other)


# ------------------------------------------------------------------------------------------------------- the page


@pytest.mark.parametrize("lab", LABS)
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_every_lab_has_commands_an_acceptance_query_and_the_command_that_says_the_same(lab: int, backend: str) -> None:
    """S2-19, S2-20: nobody has to guess from logs."""
    of_this = blocks(f"lab-{lab}", backend)
    assert any(block.kind == "sql" and block.promised for block in of_this)
    said = "\n".join(block.code for block in of_this if block.kind == "sh" and block.promised)
    assert re.search(r"^todoku (stats|reasons|list|show|verify)", said, re.MULTILINE)


def test_a_promise_is_compared() -> None:
    assert keeps("a|…|3\n", "a|2|3\n")
    assert keeps("id  x\n…   1\n", "id       x\n7        1   \n")
    assert not keeps("a|…|3\n", "a|2|4\n")
    assert not keeps("a\n", "a\nb\n")


def test_the_queries_for_operators_run_on_both_databases(backend: str, url: str, tmp_path: Path) -> None:
    asked = re.findall(r"^```sql\n(.*?)^```$", RUNBOOK.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(asked) >= 2
    box = App(url)
    box.migrate()
    box.close()
    for sql in asked:
        assert answered(sql, backend, url) == []


def commands() -> list[str]:
    """Every `todoku …` that the page lets somebody type."""
    found = re.findall(r"^```sh[^\n]*\n(.*?)^```$", RUNBOOK.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return sorted({line for block in found for line in re.findall(r"\btodoku [a-z][^|>&#\n]*", block)})


@pytest.mark.parametrize("line", commands())
def test_the_page_uses_commands_and_options_that_exist(line: str) -> None:
    words = shlex.split(line)[1:]
    command = cli.commands[words[0]]
    with click.Context(command) as context:
        options = {name for parameter in command.get_params(context) for name in parameter.opts}
    assert {word.split("=")[0] for word in words if word.startswith("--")} <= options

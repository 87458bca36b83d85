"""examples/capture: a program that never imports todoku, and its changes at a handler, a webhook, Kafka."""

from __future__ import annotations

import ast
import json
import os
import random
import re
import signal
import urllib.request
from pathlib import Path

import pytest
from capture_example.arrivals import Arrival, note, noted
from capture_example.servers import missing_kafka
from capture_example.settings import read_settings
from capture_example.shop import open_shop, work
from capture_example.verdict import judge

import todoku
from tests.daemon.running import PATIENCE, until
from tests.examples.capture_at_work import EXAMPLE, run_in, running_example
from tests.support.ports import free_port
from tests.support.postgres import fresh_database
from tests.support.services import KafkaServer, skip_without


def test_the_shop_imports_nothing_of_todoku() -> None:
    tree = ast.parse((EXAMPLE / "capture_example" / "shop.py").read_text("utf-8"))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert imported == {"__future__", "argparse", "os", "random", "sys", "psycopg"}


def test_one_line_captures_it() -> None:
    """The README shows the line that stands in the program."""
    program = (EXAMPLE / "capture_example" / "application.py").read_text("utf-8")
    (line,) = [line.strip() for line in program.splitlines() if "box.capture(" in line]
    assert line.replace("settings.shop", "SHOP_DATABASE_URL") in (EXAMPLE / "README.md").read_text("utf-8")


def life(*steps: tuple[str, int | None], id: int = 7) -> list[Arrival]:
    """The arrivals of one order: (op, revision)."""
    return [
        Arrival(
            f"m{place}",
            {"op": op, "row": None if revision is None else {"id": id, "revision": revision}, "old": {"id": id}},
        )
        for place, (op, revision) in enumerate(steps)
    ]  # fmt: skip


GOOD = [
    (life(("insert", 1), ("update", 2), ("update", 3)), {7: 3}),
    (life(("snapshot", 4), ("update", 5)), {7: 5}),
    (life(("insert", 1), ("snapshot", 1), ("update", 2)), {7: 2}),
    (life(("insert", 1), ("delete", None)), {}),
    (life(("insert", 1), ("update", 2))[:1] + life(("insert", 1), ("update", 2)), {7: 2}),
]
BAD = [
    (life(("insert", 1), ("update", 3)), {7: 3}, "revisions"),
    (life(("insert", 1), ("update", 3), ("update", 2)), {7: 3}, "revisions"),
    (life(("insert", 1), ("update", 2)), {7: 3}, "the table has 3"),
    (life(("insert", 1), ("delete", None)), {7: 1}, "the table has it"),
    (life(("insert", 1)), {}, "does not have it"),
    (life(("delete", None), ("insert", 1)), {7: 1}, "the table has it"),
    ([], {7: 1}, "never arrived"),
]


@pytest.mark.parametrize(("arrivals", "table"), GOOD)
def test_the_verdict_passes_what_is_complete_and_in_order(arrivals: list[Arrival], table: dict[int, int]) -> None:
    assert judge("here", arrivals, table).line().startswith("PASS here")


@pytest.mark.parametrize(("arrivals", "table", "why"), BAD)
def test_the_verdict_finds_what_was_planted(arrivals: list[Arrival], table: dict[int, int], why: str) -> None:
    verdict = judge("here", arrivals, table)
    assert verdict.line().startswith("FAIL here")
    assert why in verdict.line()


def test_what_is_noted_is_read_again(tmp_path: Path) -> None:
    assert noted(tmp_path / "none") == []
    note(tmp_path / "file", "m1", {"op": "insert", "row": {"id": 3}, "old": None})
    (arrival,) = noted(tmp_path / "file")
    assert (arrival.message, arrival.order) == ("m1", 3)


def test_settings_that_cannot_be_are_refused_by_name() -> None:
    for url in ("", "sqlite:///shop.db"):
        with pytest.raises(todoku.InvalidSetting, match="SHOP_DATABASE_URL"):
            read_settings({"SHOP_DATABASE_URL": url})
    with pytest.raises(todoku.InvalidSetting, match="PORT"):
        read_settings({"SHOP_DATABASE_URL": "postgresql://x/y", "PORT": "http"})


@pytest.mark.postgres
def test_the_shop_has_orders_in_every_state(postgres_dsn: str) -> None:
    with fresh_database(postgres_dsn) as url, open_shop(url) as connection:
        placed = work(connection, 40, random.Random(1))
        rows = connection.execute("select id, state, revision from orders").fetchall()
        assert {state for _, state, _ in rows} == {"open", "paid", "packed", "sent"}
        assert len(placed) - 5 <= len(rows) < len(placed) == 40


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.timeout(600)
def test_the_changes_arrive_at_every_place_also_after_a_kill(tmp_path: Path) -> None:
    """I10 at a handler, a webhook and Kafka; then the daemon's processes are killed, and the shop goes on."""
    skip_without(KafkaServer)
    daemon = free_port()
    with running_example(tmp_path, PORT=str(free_port()), TODOKU_PORT=str(daemon)) as printed:
        passed = re.findall(r"^PASS (\w+): (\d+) changes of 58 orders, in order by key$", printed, re.MULTILINE)
        assert [place for place, _ in passed] == ["handler", "webhook", "kafka"]
        assert len({number for _, number in passed}) == 1
        names = dict(re.findall(r"(\w+)='([^']*)'", re.search(r"export (.*)", printed)[1]))  # type: ignore[index]
        kill_workers(daemon)
        assert run_in(tmp_path, "capture_example.shop", "--orders", "30", **names).stdout == "30 orders placed\n"
        until(lambda: _streams(tmp_path, names), "a new process reads the log")
        verdicts = until(lambda: _passing(tmp_path, names), "every place has the 30 orders, too")
        assert verdicts.count("PASS") == 3
        assert "of 88 orders" in verdicts


def _streams(home: Path, names: dict[str, str]) -> bool:
    """Whether the capture streams; until the killed reader's successor has begun it says `starting`."""
    shown = run_in(home, "todoku", "capture", "show", "main", "--json", **names)
    assert shown.returncode == 0, shown.stderr
    return '"streaming"' in shown.stdout.replace(" ", "")


def kill_workers(port: int) -> None:
    """kill -9 of the daemon's worker processes, which read the log."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz?verbose", timeout=PATIENCE) as answer:
        pids = [worker["pid"] for worker in json.load(answer)["workers"] if worker["pid"]]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def _passing(home: Path, names: dict[str, str]) -> str | None:
    found = run_in(home, "capture_example.verdict", **names)
    return found.stdout if found.returncode == 0 else None


@pytest.mark.slow
@pytest.mark.postgres
def test_without_kafka_it_says_so(tmp_path: Path) -> None:
    """A PATH without Java."""
    bare = tmp_path / "bin"
    bare.mkdir()
    for program in ("env", "sh"):
        (bare / program).symlink_to(f"/usr/bin/{program}")
    with running_example(tmp_path, PATH=str(bare), PORT=str(free_port()), TODOKU_PORT=str(free_port())) as printed:
        assert "there is no Kafka" in printed
        assert printed.count("PASS") == 2


def test_kafka_is_there_or_a_sentence_says_why_not() -> None:
    sentence = missing_kafka()
    assert (sentence is None) == (KafkaServer.missing() is None or KafkaServer.given() is not None)
    assert sentence is None or "KAFKA_SERVERS" in sentence

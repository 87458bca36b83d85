"""The frame of `make bench`, with todoku's own program and some hundred jobs. No time is asserted."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bench import compare, servers
from bench.compare import Bench
from bench.drains import Sizes
from bench.engine import limits
from bench.peers.catalogue import PEERS, chosen
from bench.peers.installing import install
from bench.peers.peer import PROGRAMS, Installed, Node, NotInstalled, Own, Peer, Row, Server, Venv
from bench.programs import Failed, Program
from tests.support.postgres import DEBIAN, VERSION

FEW = Sizes(jobs=300, published=80, paced=20, handled=200, dead=300, after=200, future=200)


def own(name: str) -> Peer:
    return next(peer for peer in PEERS if peer.name == name)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench(FEW, 1, VERSION, "-c shared_buffers=64MB -c fsync=off")
    yield made
    made.stop()


def run(bench: Bench, *rows: Row, names: tuple[str, ...] = ("todoku",)) -> dict[tuple[Row, str], dict[str, float]]:
    """One round of rows; it must not pass over anything."""
    peers = bench.start(bench.install([own(name) for name in names]))
    for row in rows:
        bench.row(row, peers)
    assert bench.missing == {}
    return {place: figures[0].values for place, figures in bench.found.items()}


def test_a_drain_on_sqlite_is_counted_verified_and_paid_for(bench: Bench) -> None:
    found = run(bench, Row.SQLITE, names=("todoku-sqlite",))[Row.SQLITE, "todoku-sqlite"]
    assert found["rate"] > 0
    assert found["bulk_rate"] > 0
    assert found["memory_mb"] > 1


@pytest.mark.postgres
def test_a_drain_on_postgres_has_two_processes_and_the_servers_costs(bench: Bench) -> None:
    found = run(bench, Row.DRAIN)[Row.DRAIN, "todoku"]
    assert found["rate"] > 0
    assert found["wal"] > 100


@pytest.mark.slow
@pytest.mark.postgres
def test_every_other_row_of_todoku_has_figures(bench: Bench) -> None:
    rows = [row for row in Row if row not in (Row.SQLITE, Row.HTTP, Row.BARE, Row.DRAIN)]
    found = run(bench, *rows, names=("todoku", "todoku-daemon"))
    measured = {row for row, _ in found}
    assert measured == set(rows)
    assert len(bench.found[Row.LATENCY, "todoku"][0].samples) == FEW.paced


@pytest.mark.slow
@pytest.mark.postgres
def test_the_bare_loop_and_todoku_drain_all_jobs_and_leave_the_environment_alone(bench: Bench) -> None:
    before = dict(os.environ)
    bench.beside("the limit", Server.POSTGRES, lambda url: limits(url, 5_000, 1, bench.limit.append))
    assert bench.missing == {}
    assert [bar.required for bar in bench.more] == [0.9, 0.75, 1.0]
    assert all(bar.measured > 0 for bar in bench.more)
    assert [line.partition(",")[0] for line in bench.limit[2:]] == ["bare loop", "bare loop", "todoku"]
    assert dict(os.environ) == before


# ------------------------------------------------------------------------------------------------------- passed over


def test_a_peer_that_cannot_be_had_is_named_and_passed_over(bench: Bench) -> None:
    wanted = replace(own("pgqueuer"), install=Venv(("pgqueuer==0",), python=(99, 0)), home="of-a-test-that-has-none")
    assert bench.install([wanted]) == []
    assert bench.missing == {"PgQueuer": "it needs Python 99.0 or newer, and none is here"}
    with pytest.raises(NotInstalled):
        install(wanted)


def test_a_server_that_is_missing_is_named_and_passed_over(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "debian_binaries", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    bench.version = DEBIAN
    on_redis = replace(own("todoku"), server=Server.REDIS)
    assert bench.start([own("todoku"), on_redis]) == []
    assert "make system-packages" in bench.missing["the server postgres"]
    assert "make system-packages" in bench.missing["the server redis"]


def program(script: Path, text: str) -> Program:
    script.write_text(text)
    peer = replace(own("todoku"), name="made")
    return Program(peer, Installed((sys.executable, str(script)), ()), "nowhere", Row.DRAIN)


def test_a_role_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="made fill failed: the disk is full"):
        program(tmp_path / "made.py", "import sys\nsys.exit('the disk is full')").do("fill", 1)


def test_a_worker_that_ends_by_itself_says_why(tmp_path: Path) -> None:
    failing = program(tmp_path / "made.py", "import sys\nprint('hello')\nsys.exit('no such table')")
    with pytest.raises(Failed, match="did not become ready: no such table"), failing.workers(1):
        raise AssertionError("it became ready")


def test_lines_that_are_not_json_are_not_the_frames(tmp_path: Path) -> None:
    talking = program(tmp_path / "made.py", "print('Welcome!')\nprint('{\"seconds\": 1}')\nprint('{not json')")
    assert talking.do("fill", 1) == [{"seconds": 1}]


# --------------------------------------------------------------------------------------------------------- catalogue


def test_every_peer_is_pinned_has_a_program_and_a_name_of_its_own() -> None:
    names = [peer.name for peer in PEERS]
    assert len(set(names)) == len(names)
    for peer in PEERS:
        assert (PROGRAMS / peer.program).exists(), peer.name
        assert peer.unfinished, peer.name
        if isinstance(peer.install, Venv):
            assert all("==" in package for package in peer.install.packages), peer.name
        if isinstance(peer.install, Node):
            pinned = json.loads((PROGRAMS / "node" / "package.json").read_text())["dependencies"]
            names_of_packages = {package.rpartition("@")[0] or package for package in peer.install.packages}
            assert all(pinned[package][0].isdigit() for package in names_of_packages), peer.name
        assert bool(peer.history) == isinstance(peer.install, Own), peer.name


def test_only_takes_the_beginning_of_names_and_names_what_there_is() -> None:
    assert [peer.name for peer in chosen("todoku")] == ["todoku", "todoku-daemon", "todoku-sqlite"]
    with pytest.raises(ValueError, match=r"--only sidekiq: there is no such peer; there is todoku"):
        chosen("sidekiq")


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--rows", "speed"], "there is no such row"), (["--rounds", "0"], "at least 1")]
)
def test_a_wrong_option_is_explained(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        compare.options_of(arguments)
    assert said in capsys.readouterr().err

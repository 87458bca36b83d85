"""`make bench`: todoku beside its peers, in turns, with the same payload, durability and counting.

Each peer is a program (bench/peers/program.py has the contract), installed in an environment of its own below
bench/.envs. Every measurement has a fresh database; in a round every peer has its turn, and the median of the rounds
counts. A peer that is more than three times behind the best one after the first round of a row has no second one,
unless a bar names it (bench/judging.py). What is missing is named with the reason and passed over. The run ends with
bench/RESULTS.md and its plots.

`--only pgqueuer,river` chooses peers (by the beginning of their names), `--rows drain,bulk` rows, `--rounds 1` fewer
rounds; `--quick` is a fifth of the work, in one round, with fewer peers. `--postgres 18` takes the server from PyPI
instead of Debian's.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.bars import Bar
from bench.drains import QUICK, Figures, Sizes, Stage
from bench.engine import limits
from bench.http import beside, delivery, ingest
from bench.judging import Run, contenders
from bench.killing import killed_together
from bench.peers.catalogue import chosen
from bench.peers.installing import install
from bench.peers.peer import Installed, NotInstalled, Peer, Row, Server
from bench.programs import Failed
from bench.results import machine, write
from bench.rows import MEASURES, PRELOADED
from bench.servers import NotHere, Running, started

ROUNDS = 3
_PASSED_OVER = (OSError, RuntimeError, AssertionError, subprocess.SubprocessError, NotHere, NotInstalled)
"""What a benchmark that stands beside the rows may end with: the others go on."""
TARGET = Path(__file__).resolve().parent


@dataclass
class Bench:
    """One run: what is here, what was found, what was passed over."""

    sizes: Sizes
    rounds: int
    version: str
    more_options: str
    installed: dict[str, Installed] = field(default_factory=dict)
    servers: dict[Server, Running] = field(default_factory=dict)
    found: dict[tuple[Row, str], list[Figures]] = field(default_factory=dict)
    more: list[Bar] = field(default_factory=list)
    limit: list[str] = field(default_factory=list)
    """What the server could do by itself, and the bare loop, in words."""
    missing: dict[str, str] = field(default_factory=dict)
    """Of a peer or a server (or of a peer in one row): why it was passed over."""

    def install(self, peers: Sequence[Peer]) -> list[Peer]:
        """Have them here; those that can be had."""
        for peer in peers:
            print(f"  {peer.name}: ", end="", flush=True)
            try:
                self.installed[peer.name] = install(peer)
            except NotInstalled as error:
                self.missing[peer.title] = str(error)
                print(f"passed over: {error}", flush=True)
            else:
                print(", ".join(self.installed[peer.name].versions) or "here", flush=True)
        return [peer for peer in peers if peer.name in self.installed]

    def start(self, peers: Sequence[Peer]) -> list[Peer]:
        """Start the servers that they need; the peers whose server runs."""
        for kind in dict.fromkeys(peer.server for peer in peers):
            try:
                self.servers[kind] = started(kind, self.version, self.more_options)
            except NotHere as error:
                self.missing[f"the server {kind}"] = str(error)
                print(f"  {kind}: passed over: {error}", flush=True)
            else:
                print(f"  {self.servers[kind].about}", flush=True)
        return [peer for peer in peers if peer.server in self.servers]

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    def run(self, peers: Sequence[Peer], seconds: float) -> Run:
        """What was found so far."""
        return Run(
            machine=machine(), servers=tuple(server.about for server in self.servers.values()), peers=tuple(peers),
            versions={name: installed.versions for name, installed in self.installed.items()}, sizes=self.sizes,
            rounds=self.rounds, found=self.found, missing=self.missing, seconds=seconds, more=tuple(self.more),
            limit=tuple(self.limit),
        )  # fmt: skip

    def row(self, row: Row, peers: Sequence[Peer]) -> None:
        """All rounds of one row."""
        began = time.monotonic()
        stages = [
            Stage(peer, self.installed[peer.name], self.servers[peer.server], self.sizes)
            for peer in peers
            if row in peer.rows
        ]
        if row is Row.KILL and stages:
            killed_together(stages, lambda one, it: self.note(row, one, it), lambda one, it: self.skip(row, one, it))
        else:
            for turn in range(1 if row in PRELOADED else self.rounds):
                if turn == 1:
                    stages = self.contending(row, stages)
                for stage in stages:
                    if row in PRELOADED and stage.peer.jobs < self.sizes.after:
                        self.skip(row, stage, Failed("too slow for what would have to be run before"))
                    elif f"{stage.peer.title}, {row}" not in self.missing:
                        self.turn(row, stage)
        print(f"  ({row}: {time.monotonic() - began:.0f} s)", flush=True)

    def contending(self, row: Row, stages: Sequence[Stage]) -> list[Stage]:
        """Those that are run again after the first round."""
        names = contenders(self.run([stage.peer for stage in stages], 0.0), row)
        return [stage for stage in stages if stage.peer.name in names]

    def over_http(self, *, quick: bool) -> None:
        """Ingest and delivery, by the benchmark that knows them, on both databases.

        First what the issue asks for: ingest beside the endpoint that a user would write by hand, in turns with it.
        """
        seconds, number = (3.0, 4_000) if quick else (5.0, 10_000)
        for kind in (Server.SQLITE, Server.POSTGRES):
            for part in (beside, delivery, ingest):
                name = f"HTTP, {part.__name__.rpartition('.')[2]} on {kind}"
                bars = partial(part.bars, name=str(kind), seconds=seconds, number=number, rounds=self.rounds)
                self.beside(name, kind, bars)

    def limits(self, url: str) -> list[Bar]:
        """The bars of the bare loop, and what the server could do by itself."""
        found = limits(url, self.sizes.jobs, self.rounds, self.limit.append)
        print(*(f"  {line}" for line in self.limit), sep="\n", flush=True)
        return found

    def beside(self, name: str, kind: Server, bars: Callable[[str], list[Bar]]) -> None:
        """The bars of another benchmark, on a fresh database; or why it was passed over."""
        began = time.monotonic()
        try:
            with self._fresh(kind) as url:
                self.more += bars(url)
        except _PASSED_OVER as error:
            self.missing[name] = str(error)
            print(f"  {name}: passed over: {error}", flush=True)
        print(f"  ({name}: {time.monotonic() - began:.0f} s)", flush=True)

    @contextmanager
    def _fresh(self, kind: Server) -> Iterator[str]:
        """An address for `bench.http`: empty for SQLite, where it makes a file of its own."""
        if kind is Server.SQLITE:
            yield ""
            return
        if kind not in self.servers:
            self.servers[kind] = started(kind, self.version, self.more_options)
        with self.servers[kind].fresh() as url:
            yield url

    def turn(self, row: Row, stage: Stage) -> None:
        try:
            found = PRELOADED[row](stage, self.rounds) if row in PRELOADED else [MEASURES[row](stage, row)]
        except Failed as error:
            self.skip(row, stage, error)
        else:
            for figures in found:
                self.note(row, stage, figures)

    def note(self, row: Row, stage: Stage, figures: Figures) -> None:
        rounds = self.found.setdefault((row, stage.peer.name), [])
        rounds.append(figures)
        print(f"  {row}, round {len(rounds)} of {self.rounds}: {stage.peer.name} {said(figures)}", flush=True)

    def skip(self, row: Row, stage: Stage, error: Failed) -> None:
        self.missing[f"{stage.peer.title}, {row}"] = str(error)
        print(f"  {row}: {stage.peer.name} passed over: {error}", flush=True)


def said(figures: Figures) -> str:
    """One line of what was found."""
    parts = [f"{name} {value:,.0f}" if value >= 10 else f"{name} {value:.2f}" for name, value in figures.values.items()]
    if figures.samples:
        ordered = sorted(figures.samples)
        parts.append(f"p50 {ordered[len(ordered) // 2]:.2f} ms, p99 {ordered[len(ordered) * 99 // 100]:.2f} ms")
    return ", ".join([*parts, *figures.notes])


def rows_of(names: str | None) -> list[Row]:
    if names is None:
        return list(Row)
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in set(Row)]
    if unknown:
        raise ValueError(f"--rows {', '.join(unknown)}: there is no such row; there is {', '.join(Row)}")
    return [Row(name) for name in wanted]


def options_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="these peers, by the beginning of their names, separated by commas")
    parser.add_argument("--rows", help=f"these rows: {', '.join(Row)}")
    parser.add_argument("--rounds", type=int, help=f"each so often, in turn; the median counts ({ROUNDS}; --quick: 1)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the work, in one round")
    parser.add_argument("--postgres", choices=("debian", "18", "16"), default="debian", help="which server (debian)")
    parser.add_argument("--options", default="", help="more options of the server: --options='-c jit=off'")
    parser.add_argument("--to", type=Path, default=TARGET, help="where RESULTS.md is written (bench)")
    options = parser.parse_args(arguments)
    if options.rounds is None:
        options.rounds = 1 if options.quick else ROUNDS
    if options.rounds < 1:
        parser.error("--rounds is at least 1")
    try:
        options.peers, options.chosen = chosen(options.only), rows_of(options.rows)
    except ValueError as error:
        parser.error(str(error))
    if options.quick and options.only is None:
        options.peers = tuple(peer for peer in options.peers if peer.quick)
    return options


def main(arguments: Sequence[str] = sys.argv[1:]) -> Run:
    """Install, start, measure, write. A run that is cut off leaves the rows that it has."""
    options = options_of(arguments)
    began = time.monotonic()
    bench = Bench(QUICK if options.quick else Sizes(), options.rounds, options.postgres, options.options)
    wanted = [peer for peer in options.peers if peer.rows & set(options.chosen)]
    try:
        peers = bench.start(bench.install(wanted))
        for row in options.chosen:
            if row not in (Row.BARE, Row.HTTP):
                filled = row is Row.BULK and Row.DRAIN in options.chosen  # the fills of the drains are measured
                bench.row(row, [peer for peer in peers if peer.bulk_jobs] if filled else peers)
                write(bench.run(peers, time.monotonic() - began), options.to)
        if options.only is None or options.rows is not None:
            if Row.BARE in options.chosen:
                bench.beside("the limit", Server.POSTGRES, bench.limits)
            if Row.HTTP in options.chosen:
                bench.over_http(quick=options.quick)
    finally:
        bench.stop()
    run = bench.run(peers, time.monotonic() - began)
    print(f"  wrote {write(run, options.to)} after {run.seconds / 60:.1f} minutes", flush=True)
    return run


if __name__ == "__main__":
    main()

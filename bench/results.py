"""bench/RESULTS.md and its plots, written by the run of `make bench`; losses as plainly as wins."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from bench.drains import Sizes
from bench.judging import CONTENDING, Judged, Middle, Run, judged, middle, percentile
from bench.peers.peer import Row, Server
from bench.plots import Length, chart, number

PLOTS = "plots"

TITLES: dict[Row, str] = {
    Row.DRAIN: "Drain: no-op jobs, two processes",
    Row.DAEMON: "Drain through `todoku run`, logs on",
    Row.SQLITE: "Drain on SQLite, synchronous=FULL, one process",
    Row.BULK: "Bulk enqueue",
    Row.PUBLISH: "Enqueue: 8 publishers, a transaction each",
    Row.CALLER: "Enqueue: 8 publishers, in the caller's transaction, which inserts a row, too",
    Row.LATENCY: "Idle latency: from the return of an enqueue to the start of its handler",
    Row.HANDLERS: "Handlers of 10 ms, 200 at once over two processes (the ideal is 20,000/s)",
    Row.SNAPSHOT: "Beside a held snapshot",
    Row.FUTURE: "Beside future jobs",
    Row.LANES: "Ordered over 1,000 keys beside unordered",
    Row.KILL: "Recovery after kill -9 of a worker that held 20 jobs",
}

COLUMNS: dict[Row, tuple[tuple[str, str], ...]] = {
    Row.DRAIN: (
        ("rate", "jobs/s"), ("worker_us", "worker CPU µs"), ("server_us", "server CPU µs"), ("wal", "log bytes a job"),
        ("wal_mb", "log MB"), ("memory_mb", "MB a worker"),
    ),
    Row.DAEMON: (("rate", "jobs/s"), ("worker_us", "worker CPU µs"), ("server_us", "server CPU µs")),
    Row.SQLITE: (("rate", "jobs/s"), ("worker_us", "worker CPU µs"), ("memory_mb", "MB a worker")),
    Row.BULK: (
        ("rate", "jobs/s"), ("client_us", "client CPU µs"), ("server_us", "server CPU µs"), ("wal", "log bytes a job"),
    ),
    Row.HANDLERS: (("rate", "jobs/s"), ("worker_us", "worker CPU µs"), ("server_us", "server CPU µs")),
    Row.SNAPSHOT: (("rate", "jobs/s beside it"), ("without", "jobs/s without"), ("share", "share")),
    Row.FUTURE: (("rate", "jobs/s beside them"), ("without", "jobs/s without"), ("share", "share")),
    Row.LANES: (("rate", "jobs/s ordered"), ("without", "jobs/s unordered"), ("share", "share")),
    Row.KILL: (("seconds", "seconds"),),
}  # fmt: skip
COLUMNS[Row.PUBLISH] = COLUMNS[Row.CALLER] = COLUMNS[Row.BULK]
LESS_IS_BETTER = {Row.LATENCY, Row.KILL}
WHERE = {Server.POSTGRES: "", Server.REDIS: " (Redis)", Server.SQLITE: " (SQLite)"}


def machine() -> str:
    """The processor, its cores, the system and Python."""
    model = "an unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass  # not Linux: it stays unknown
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = ", ".join(f"{one:.1f}" for one in os.getloadavg())
    return (
        f"{os.cpu_count()} cores of {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}; load at the end {load}"
    )


def write(run: Run, folder: Path) -> Path:
    """Write RESULTS.md and its plots; the file's path."""
    plots = folder / PLOTS
    plots.mkdir(parents=True, exist_ok=True)
    for row in charted(run):
        (plots / f"{row}.svg").write_text(drawn(run, row), encoding="utf-8")
    target = folder / "RESULTS.md"
    target.write_text(text(run), encoding="utf-8")
    return target


def text(run: Run) -> str:
    """The whole document."""
    parts = [
        "# todoku beside its peers", _head(run), "## Bars", _bars(judged(run), run), "## Ahead of todoku",
        "\n".join(losses(run)) or "In no row that was measured is a peer ahead.", *_rows(run), *_limit(run),
        "## Peers", _peers(run), "## Passed over", _missing(run), "",
    ]  # fmt: skip
    return "\n\n".join(parts)


_ONE_ROUND = (
    f"A peer that is more than {CONTENDING:g} times behind the best one after the first round of a row (of latency: "
    "the best on PostgreSQL) has no other round there, unless a bar names it: its figures have no spread. "
)


def _head(run: Run) -> str:
    day = time.strftime("%Y-%m-%d", time.gmtime())
    servers = "\n".join(f"- {server}" for server in run.servers)
    rounds = "one round" if run.rounds == 1 else f"{run.rounds} rounds, in turns"
    if run.sizes != Sizes():
        rounds = f"a quick run with a part of the work, {rounds}, which is for trying: its figures prove little"
    return (
        f"Written by `make bench` on {day}, in {run.seconds / 60:.0f} minutes: {rounds}. A figure is the median, in "
        "parentheses the lowest and the highest round; below a quarter nothing is proven by one run. "
        f"{_ONE_ROUND if run.rounds > 1 else ''}Every measurement has a fresh database, jobs of about 200 bytes are "
        "enqueued by public calls, and a drain ends when every job has run and the database shows nothing unfinished; "
        "todoku's end with `verify` and a count of its history.\n\n"
        f"- {run.machine}\n{servers}"
    )


def _bars(found: Sequence[Judged], run: Run) -> str:
    lines = ["| row | todoku | beside | ratio | bar | |", "|---|---|---|---|---|---|"]
    for one in found:
        sign = "≤" if one.at_most else "≥"
        verdict = "holds" if one.ok else f"**short** by {one.short_by:.0%}"
        lines.append(
            f"| {one.what} | {number(one.ours)} | {one.beside}: {number(one.theirs)} | {one.ratio:.2f} | "
            f"{sign} {one.required:g} | {verdict} |"
        )
    for bar in run.more:
        sign = "≤" if bar.at_most else "≥"
        verdict = "holds" if bar.ok else "**short**"
        lines.append(
            f"| {bar.name} | {bar.measured:.2f}{bar.unit} | | | {sign} {bar.required:g}{bar.unit} | {verdict} |"
        )
    return "\n".join(lines)


def losses(run: Run) -> list[str]:
    """A sentence for each row in which a peer is ahead of todoku."""
    found = []
    for row in charted(run):
        own = [(value(run, row, name), name) for name in run.names(row) if run.peer(name).is_own]
        others = [(value(run, row, name), name) for name in run.names(row) if not run.peer(name).is_own]
        if not own or not others:
            continue
        less = row in LESS_IS_BETTER
        best = min(own)[0] if less else max(own)[0]
        ahead = sorted((one for one in others if (one[0] < best if less else one[0] > best)), reverse=not less)
        if ahead:
            who = ", ".join(f"{titled(run, name)} {number(figure)}" for figure, name in ahead)
            found.append(f"- {TITLES[row]}: todoku {number(best)}; {who}.")
    return found


def value(run: Run, row: Row, name: str) -> float:
    """The figure by which a row is compared."""
    return lengths(run, row, name).median


def lengths(run: Run, row: Row, name: str) -> Middle:
    found = percentile(run, name, 0.99) if row is Row.LATENCY else middle(run, row, name, COLUMNS[row][0][0])
    assert found is not None
    return found


def charted(run: Run) -> list[Row]:
    """The rows that have figures."""
    return [row for row in TITLES if run.names(row)]


def drawn(run: Run, row: Row) -> str:
    unit = "ms, 99th percentile" if row is Row.LATENCY else COLUMNS[row][0][1]
    bars = [Length(titled(run, name), lengths(run, row, name), run.peer(name).is_own) for name in run.names(row)]
    return chart(TITLES[row].replace("`", ""), unit, bars, less_is_better=row in LESS_IS_BETTER)


def titled(run: Run, name: str) -> str:
    peer = run.peer(name)
    return peer.title + ("" if peer.is_own or "Redis" in peer.title or "SQLite" in peer.title else WHERE[peer.server])


def _rows(run: Run) -> list[str]:
    parts = []
    for row in charted(run):
        parts += [f"## {TITLES[row]}", _latencies(run) if row is Row.LATENCY else _table(run, row)]
        parts.append(f"![{TITLES[row].replace('`', '')}]({PLOTS}/{row}.svg)")
    return parts


def _limit(run: Run) -> list[str]:
    if not run.limit:
        return []
    return ["## The limit: what the server could do without todoku", "\n".join(f"- {line}" for line in run.limit)]


def _table(run: Run, row: Row) -> str:
    columns = COLUMNS[row]
    names = sorted(run.names(row), key=lambda name: value(run, row, name), reverse=row not in LESS_IS_BETTER)
    lines = ["| | " + " | ".join(title for _, title in columns) + " | |", "|---" * (len(columns) + 2) + "|"]
    for name in names:
        cells = [_cell(middle(run, row, name, key)) for key, _ in columns]
        notes = ", ".join(dict.fromkeys(note for one in run.figures(row, name) for note in one.notes))
        lines.append(f"| {_bold(run, name)} | {' | '.join(cells)} | {notes} |")
    return "\n".join(lines)


def _latencies(run: Run) -> str:
    names = sorted(run.names(Row.LATENCY), key=lambda name: value(run, Row.LATENCY, name))
    lines = ["| | p50 ms | p99 ms | samples |", "|---|---|---|---|"]
    for name in names:
        samples = sum(len(one.samples) for one in run.figures(Row.LATENCY, name))
        cells = [_cell(percentile(run, name, share)) for share in (0.5, 0.99)]
        lines.append(f"| {_bold(run, name)} | {' | '.join(cells)} | {samples:,} |")
    return "\n".join(lines)


def _cell(found: Middle | None) -> str:
    if found is None:
        return "–"
    if found.low == found.high:
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)}–{number(found.high)})"


def _bold(run: Run, name: str) -> str:
    return f"**{titled(run, name)}**" if run.peer(name).is_own else titled(run, name)


def _peers(run: Run) -> str:
    lines = ["| | versions | settings |", "|---|---|---|"]
    for peer in run.peers:
        late = "; it cannot wait for the signal: its start is part of its drain" if peer.starts_on_go else ""
        jobs = f"; {min(run.sizes.jobs, peer.jobs):,} jobs a drain"
        versions = ", ".join(run.versions.get(peer.name, ())) or "this clone"
        lines.append(f"| {titled(run, peer.name)} | {versions} | {peer.settings}{jobs}{late} |")
    return "\n".join(lines)


def _missing(run: Run) -> str:
    return "\n".join(f"- {what}: {why}" for what, why in run.missing.items()) or "Nothing."

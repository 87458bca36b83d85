"""What a run of `make bench` found, in numbers: medians with their spread, and ratios beside the bars of issue 16."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bench.bars import Bar
from bench.drains import Figures, Sizes
from bench.peers.peer import Peer, Row, Server
from bench.rows import ALL_SLOTS, BULK, HANDLER_MS

OWN, DAEMON, OWN_SQLITE = "todoku", "todoku-daemon", "todoku-sqlite"
IDEAL = ALL_SLOTS / HANDLER_MS * 1000


@dataclass(frozen=True, slots=True)
class Run:
    """All that a run found."""

    machine: str
    servers: tuple[str, ...]
    peers: tuple[Peer, ...]
    versions: dict[str, tuple[str, ...]]
    sizes: Sizes
    rounds: int
    found: dict[tuple[Row, str], list[Figures]]
    missing: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    more: tuple[Bar, ...] = ()
    """Of other benchmarks that were run with it: HTTP, and the bare loop."""
    limit: tuple[str, ...] = ()
    """What the server could do by itself, and the bare loop, in words."""

    def figures(self, row: Row, name: str) -> list[Figures]:
        """Of one peer. What the fill of a drain cost is the row `bulk`, too."""
        own = self.found.get((row, name), [])
        if row is not Row.BULK or own:
            return own
        return [
            Figures({key.removeprefix(BULK): value for key, value in one.values.items() if key.startswith(BULK)})
            for one in self.found.get((Row.DRAIN, name), [])
        ]

    def names(self, row: Row) -> list[str]:
        """The peers that have figures in a row, todoku's own first."""
        return [peer.name for peer in self.peers if self.figures(row, peer.name)]

    def peer(self, name: str) -> Peer:
        return next(peer for peer in self.peers if peer.name == name)


@dataclass(frozen=True, slots=True)
class Middle:
    """A median with its spread."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Middle:
        return cls(statistics.median(values), min(values), max(values))

    def times(self, factor: float) -> Middle:
        return Middle(self.median * factor, self.low * factor, self.high * factor)


def middle(run: Run, row: Row, name: str, value: str) -> Middle | None:
    """Of the rounds; None: it was not measured."""
    found = [one.values[value] for one in run.figures(row, name) if value in one.values]
    return Middle.of(found) if found else None


def percentile(run: Run, name: str, share: float) -> Middle | None:
    """Of the samples of all rounds together; the spread is that of the rounds."""
    rounds = [sorted(one.samples) for one in run.figures(Row.LATENCY, name) if one.samples]
    if not rounds:
        return None
    each = [_at(samples, share) for samples in rounds]
    return Middle(_at(sorted(sample for samples in rounds for sample in samples), share), min(each), max(each))


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


CONTENDING = 3.0
"""A peer that is more than so many times behind the best peer after one round decides no bar: it is not run again."""

GRAPHILE, PGQUEUER = "graphile", "pgqueuer"
NAMED = (GRAPHILE, PGQUEUER)
"""Peers that a bar names: they have every round, however slow they are."""


def contenders(run: Run, row: Row) -> set[str]:
    """Returns the peers whose further rounds may change a bar: todoku's own, those that a bar names, the fast ones."""
    found = {name for name in run.names(row) if run.peer(name).is_own or name in NAMED}
    others = [peer for peer in run.peers if not peer.is_own]
    if row is Row.LATENCY:  # its bars name the best on PostgreSQL; on Redis some are ahead of it, and contend, too
        for share in (0.5, 0.99):
            late = [(peer, ms) for peer in others if (ms := _latency(run, share)(peer.name)) is not None]
            least = min((ms for peer, ms in late if peer.server is Server.POSTGRES), default=float("inf"))
            found |= {peer.name for peer, ms in late if ms <= least * CONTENDING}
        return found
    for value in ("rate", f"{BULK}rate"):  # what the fill of a drain came to is the row `bulk`
        rates = {peer.name: rate for peer in others if (rate := _of(run, row, value)(peer.name)) is not None}
        most = max(rates.values(), default=0.0)
        found |= {name for name, rate in rates.items() if rate * CONTENDING >= most}
    return found


# ----------------------------------------------------------------------------------------------------------- ratios


@dataclass(frozen=True, slots=True)
class Judged:
    """One line of the table: todoku beside another, and the bar."""

    what: str
    ours: float
    beside: str
    theirs: float
    required: float
    at_most: bool = False
    """Smaller is better."""

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs else float("inf")

    @property
    def ok(self) -> bool:
        return self.ratio <= self.required if self.at_most else self.ratio >= self.required

    @property
    def short_by(self) -> float:
        """How much is lacking, as a part of the bar; 0 where it holds."""
        if self.ok:
            return 0.0
        return self.ratio / self.required - 1 if self.at_most else 1 - self.ratio / self.required


Value = Callable[[str], float | None]


def judged(run: Run) -> list[Judged]:
    """Every bar for which both sides were measured."""
    found: list[Judged | None] = [
        _against(run, "drain, jobs/s", _of(run, Row.DRAIN, "rate"), GRAPHILE, 1.2),
        _against(run, "drain, jobs/s", _of(run, Row.DRAIN, "rate"), PGQUEUER, 2.5),
        _against(run, "drain, server CPU µs a job", _of(run, Row.DRAIN, "server_us"), GRAPHILE, 1.1, at_most=True),
        _daemon(run),
        _best(run, "bulk enqueue, jobs/s", _of(run, Row.BULK, "rate"), 1.2),
        _best(run, "enqueue, a transaction each, jobs/s", _of(run, Row.PUBLISH, "rate"), 1.0),
        _best(run, "enqueue, in the caller's transaction, jobs/s", _of(run, Row.CALLER, "rate"), 1.0),
        _best(run, "idle latency p50, ms", _latency(run, 0.5), 1.1, at_most=True, only=Server.POSTGRES),
        _best(run, "idle latency p99, ms", _latency(run, 0.99), 1.1, at_most=True, only=Server.POSTGRES),
        _of_itself(run, "10 ms handlers, 200 at once, jobs/s", Row.HANDLERS, "rate", ("the ideal", IDEAL), 0.8),
        _sqlite(run),
        _share(run, f"held snapshot, {run.sizes.dead:,} dead rows", Row.SNAPSHOT, 0.95),
        _share(run, f"{run.sizes.future:,} future jobs", Row.FUTURE, 0.95),
        _share(run, "lanes over 1,000 keys", Row.LANES, 0.8),
        *_recovery(run),
    ]
    return [one for one in found if one is not None]


def _of(run: Run, row: Row, value: str) -> Value:
    def of(name: str) -> float | None:
        found = middle(run, row, name, value)
        return None if found is None else found.median

    return of


def _latency(run: Run, share: float) -> Value:
    def of(name: str) -> float | None:
        found = percentile(run, name, share)
        return None if found is None else found.median

    return of


def _against(run: Run, what: str, value: Value, name: str, required: float, *, at_most: bool = False) -> Judged | None:
    """Beside one peer, by the name it has."""
    ours = value(OWN)
    for peer in run.peers:
        if peer.name == name and ours is not None and (theirs := value(peer.name)) is not None:
            return Judged(what, ours, peer.title, theirs, required, at_most)
    return None


def _best(
    run: Run,
    what: str,
    value: Value,
    required: float,
    *,
    at_most: bool = False,
    only: Server | None = None,
) -> Judged | None:
    """Beside the best of the peers."""
    ours = value(OWN)
    others = [
        (figure, peer.title)
        for peer in run.peers
        if not peer.is_own and only in (None, peer.server)
        if (figure := value(peer.name)) is not None
    ]
    if ours is None or not others:
        return None
    theirs, title = min(others) if at_most else max(others)
    return Judged(what, ours, title, theirs, required, at_most)


def _daemon(run: Run) -> Judged | None:
    through, alone = _of(run, Row.DAEMON, "rate")(DAEMON), _of(run, Row.DRAIN, "rate")(OWN)
    if through is None or alone is None:
        return None
    return Judged("drain through `todoku run`, jobs/s", through, "box.drain", alone, 0.9)


def _of_itself(run: Run, what: str, row: Row, value: str, beside: tuple[str, float], required: float) -> Judged | None:
    ours = _of(run, row, value)(OWN)
    return None if ours is None else Judged(what, ours, *beside, required)


def _sqlite(run: Run) -> Judged | None:
    value = _of(run, Row.SQLITE, "rate")
    ours = value(OWN_SQLITE)
    others = [peer for peer in run.peers if peer.server is Server.SQLITE and not peer.is_own]
    for peer in others:
        if ours is not None and (theirs := value(peer.name)) is not None:
            return Judged("drain, SQLite FULL, jobs/s", ours, peer.title, theirs, 12.0)
    return None


def _share(run: Run, what: str, row: Row, required: float) -> Judged | None:
    beside, without = _of(run, row, "rate")(OWN), _of(run, row, "without")(OWN)
    if beside is None or without is None:
        return None
    return Judged(f"{what}, jobs/s", beside, "without", without, required)


def _recovery(run: Run) -> list[Judged]:
    """In seconds at most 2, and the best of all."""
    value = _of(run, Row.KILL, "seconds")
    ours = [seconds for name in (DAEMON, OWN) if (seconds := value(name)) is not None]
    if not ours:
        return []
    found = [Judged("recovery after kill -9, s", min(ours), "2 s", 2.0, 1.0, at_most=True)]
    others = [
        (seconds, peer.title) for peer in run.peers if not peer.is_own and (seconds := value(peer.name)) is not None
    ]
    if others:
        theirs, title = min(others)
        found.append(Judged("recovery after kill -9, s", min(ours), title, theirs, 1.0, at_most=True))
    return found

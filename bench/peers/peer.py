"""What a peer is to `make bench`: how it is had, how its program is run, and the rows that it takes part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent
ENVIRONMENTS = PROGRAMS.parent / ".envs"
NONE: Mapping[str, str] = MappingProxyType({})


class Server(StrEnum):
    """What a peer keeps its jobs in."""

    POSTGRES = "postgres"
    REDIS = "redis"
    SQLITE = "sqlite"


class Row(StrEnum):
    """A row of the table; bench/rows.py and bench/killing.py have how each is measured, bench/judging.py its bar."""

    DRAIN = "drain"
    DAEMON = "daemon"
    BULK = "bulk"
    PUBLISH = "publish"
    CALLER = "caller"
    LATENCY = "latency"
    HANDLERS = "handlers"
    SQLITE = "sqlite"
    SNAPSHOT = "snapshot"
    FUTURE = "future"
    LANES = "lanes"
    KILL = "kill"
    BARE = "bare"
    HTTP = "http"


USUAL = frozenset({Row.DRAIN, Row.BULK, Row.PUBLISH, Row.LATENCY, Row.HANDLERS, Row.KILL})


class NotInstalled(Exception):
    """A peer cannot be had here; the message is the reason, for people."""


@dataclass(frozen=True, slots=True)
class Own:
    """The project itself, from its own environment: nothing to install."""


@dataclass(frozen=True, slots=True)
class Venv:
    """Packages of Python, pinned (`name==1.2`), in an environment of their own."""

    packages: tuple[str, ...]
    python: tuple[int, int] = (3, 11)
    """The lowest version it runs on."""


@dataclass(frozen=True, slots=True)
class Node:
    """Packages of Node, pinned (`name@1.2`)."""

    packages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Go:
    """A module below bench/peers, whose go.mod pins what it needs."""

    folder: str


Install: TypeAlias = Own | Venv | Node | Go


@dataclass(frozen=True, slots=True)
class Installed:
    """How its program is called, and the versions that are there (`name version`)."""

    command: tuple[str, ...]
    versions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One line-up of a library: two of the same library (fastest, default) are two peers that share `home`."""

    name: str
    title: str
    server: Server
    install: Install
    program: str
    """Its file below bench/peers (for Go: the folder)."""
    settings: str
    """What was chosen for it, in words, for RESULTS.md."""
    unfinished: str
    """How many jobs are not finished: SQL that answers one number; for Redis a Lua script that returns one."""
    rows: frozenset[Row] = USUAL
    home: str = ""
    """The environment below bench/.envs; the peer's own name where it is empty."""
    jobs: int = 100_000
    """How many a drain has: less for slow ones, so that each takes some seconds; after 20 it is cut off.

    More where the start is part of the drain (`starts_on_go`): it must not be a large part."""
    bulk_jobs: int = 0
    """How many its bulk row has, where it enqueues much faster than it runs: fewer jobs are fewer index pages. 0: the
    fill of its drain is its bulk row."""
    processes: int = 2
    quick: bool = False
    """It is one of the few that `--quick` measures."""
    environ: Mapping[str, str] = field(default_factory=lambda: NONE)
    """More of the environment of its program: a variant of the settings."""
    history: str = ""
    """SQL that counts the finished jobs it keeps: a drain of todoku's own ends with `verify` and this."""
    recovers_itself: bool = False
    """Its program kills a worker by itself (`recover N`): it is the worker of a daemon."""
    starts_on_go: bool = False
    """It cannot connect and wait: what it does at its start is part of its drain."""

    @property
    def is_own(self) -> bool:
        """It is todoku itself."""
        return isinstance(self.install, Own)

    @property
    def folder(self) -> Path:
        """Where it is installed."""
        return ENVIRONMENTS / (self.home or self.name)

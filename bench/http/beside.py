"""Ingest beside the hand-written endpoint, as bars: 64 connections, the same payload, each answer after a commit."""

from __future__ import annotations

from bench.bars import Bar
from bench.http.figures import TODOKU, ingest_rates
from bench.peers.peer import NotInstalled

REQUIRED = 2.0


def bars(url: str, name: str, *, number: int, rounds: int, serve_workers: int = 1, **_: object) -> list[Bar]:
    """How many times the requests of each hand-written endpoint todoku takes; `url` is empty for a SQLite file.

    They take turns, and the medians of the rounds are compared. NotInstalled: there is nothing to compare with.
    """
    figures = ingest_rates(url, number=number, rounds=rounds, serve_workers=serve_workers)
    for figure in figures:
        print(f"  {name}: {figure}", flush=True)
    others = [figure for figure in figures if not figure.name.startswith(TODOKU)]
    if not others:
        raise NotInstalled("the packages of the hand-written endpoint cannot be had")
    return [Bar(f"ingest/{name}/beside {other.name}", figures[0].rate / other.rate, REQUIRED, "x") for other in others]

"""The question `commits` of `bench.capture`: whether a capture slows down the source's own commits.

The source and its clients have one half of the processors, the daemon and todoku's server the other, as on two
machines. Beside it a reader that only takes what the server streams and throws it away: what any logical replication
costs the source, whoever reads.
"""

from __future__ import annotations

import multiprocessing
import time
from contextlib import ExitStack
from typing import Any

import psycopg

from bench.bars import Bar, compared
from bench.capture_bare import frames
from bench.capture_stage import Halves, Servers, on_half
from bench.engine import TEXT
from tests.daemon.running import until

CLIENTS = 4
SECONDS = 10.0


def client(source: str, place: int, seconds: float, ready: Any, done: Any) -> None:
    """Single-row commits, one after another; a process, so that clients do not wait for each other's interpreter."""
    with psycopg.connect(source) as connection:
        sql = "insert into orders (id, amount, text) values (%s, 1, %s)"
        number = place * 10_000_000
        ready.wait()
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends:
            connection.execute(sql, (number, TEXT))
            connection.commit()
            number += 1
    done.put(number - place * 10_000_000)


def commit_rate(source: str, seconds: float) -> float:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(CLIENTS), context.Queue()
    clients = [context.Process(target=client, args=(source, n, seconds, ready, done)) for n in range(CLIENTS)]
    for one in clients:
        one.start()
    number = sum(int(done.get()) for _ in clients)
    for one in clients:
        one.join()
    return number / seconds


def measure_commits(servers: Servers, rounds: int, halves: Halves) -> list[Bar]:
    """With the capture and without, in turns."""

    def captured() -> float:
        with servers.stage(own=False) as stage, ExitStack() as stack:
            with on_half(halves, 1):
                stack.enter_context(stage.daemon())
            with on_half(halves, 0):
                return commit_rate(stage.source, SECONDS)

    def alone() -> float:
        with servers.stage(own=False) as stage, on_half(halves, 0):
            return commit_rate(stage.source, SECONDS)

    def read() -> float:
        with servers.stage(own=False) as stage, psycopg.connect(stage.source, autocommit=True) as connection:
            connection.execute("create publication bare for table orders")
            connection.execute("select pg_create_logical_replication_slot('bare', 'pgoutput')")
            reader = multiprocessing.get_context("spawn").Process(target=throw_away, args=(stage.source,))
            with on_half(halves, 1):
                reader.start()
            until(lambda: connection.execute("select from pg_replication_slots where active").fetchall(), "a reader")
            with on_half(halves, 0):
                rate = commit_rate(stage.source, SECONDS)
            reader.kill()
            reader.join()
            until(lambda: drop_slot(connection), "the bare slot is free")
            return rate

    ours, without, bare = compared(
        rounds, "commits", ("with capture", captured), ("without", alone), ("with a bare reader", read)
    )
    print(
        f"commits a second of {CLIENTS} clients: {ours:,.0f} with capture, {without:,.0f} without,"
        f" {bare:,.0f} with a bare reader"
    )
    return [
        Bar("commits_with_capture_vs_without", ours / without, 0.97),
        Bar("commits_with_capture_vs_bare_reader", ours / bare, 0.97),
    ]


def throw_away(source: str) -> None:
    """Read the slot `bare` for ever."""
    for _ in frames(source, "bare"):
        pass


def drop_slot(connection: psycopg.Connection) -> bool:
    """Whether the slot `bare` could be dropped."""
    try:
        connection.execute("select pg_drop_replication_slot('bare')")
    except psycopg.errors.ObjectInUse:
        return False
    return True

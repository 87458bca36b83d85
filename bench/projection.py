"""`make bench-projection`: events into OpenSearch through the daemon, beside a bare `_bulk` loop of the same documents.

Everything is published into PostgreSQL first, an event for each document. Then `todoku run` with two worker processes
writes it to the index, and its rate is that of the deliveries settled between the first commit and the last, by the
database's clock: starting up counts for nothing. The bare loop (same client library, same server, the same mappings,
500 documents in a request, external versions, nothing else to do) writes the same documents to another index. Both
are counted afterwards.

`--number` is how many (20,000), `--json` prints one object at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import psycopg
from opensearchpy import AsyncOpenSearch

import todoku
from bench.bars import Bar, compared, report
from bench.engine import TEXT
from bench.relay import BETWEEN, LEFT, STILL_SEC
from bench.running import SERVER
from tests.daemon.running import Daemon
from tests.projections.library import MAPPINGS, ask
from tests.support.postgres import fresh_database, server_dsn, stop_server
from tests.support.services import ROOT, OpenSearchServer

ROUNDS = 3
REQUIRED = 0.6
BULK = 500
NAME = "documents"


def box_of(url: str, server: str, alias: str) -> todoku.App:
    """The App: one projection."""
    box = todoku.App(url)
    box.projection(
        NAME, topics="document.*", key="id", to=todoku.opensearch(alias, url=server, mappings=MAPPINGS, batch=BULK)
    )
    return box


if "BENCH_SEARCH" in os.environ:
    box = box_of(os.environ["TODOKU_DATABASE"], os.environ["BENCH_SEARCH"], os.environ["BENCH_ALIAS"])


@dataclass(frozen=True)
class Contest:
    """One search server, and what both write to it."""

    server: str
    dsn: str
    home: Path
    number: int
    workers: int

    def documents(self) -> list[dict[str, object]]:
        return [{"id": f"d{n:07}", "title": TEXT, "views": n} for n in range(self.number)]

    def projected(self) -> float:
        """Publish everything, then let a daemon write it."""
        alias = f"bench{uuid.uuid4().hex[:10]}"
        with fresh_database(self.dsn) as url:
            self._fill(url, alias)
            environ = {
                "TODOKU_DATABASE": url, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "TODOKU_POLL_INTERVAL_SEC": "0.5",
                "BENCH_SEARCH": self.server, "BENCH_ALIAS": alias,
            }  # fmt: skip
            daemon = Daemon(
                ("run", "--app", "bench.projection:box", "--workers", str(self.workers)), self.home, environ
            )
            try:
                rate = self._settled(url, daemon)
            finally:
                daemon.close()
        self._count(alias)
        return rate

    def bare(self) -> float:
        """Write the same documents with the client alone."""
        index = f"bare{uuid.uuid4().hex[:10]}"
        ask(self.server, "PUT", f"/{index}", {"mappings": MAPPINGS})
        rate = asyncio.run(self._loop(index))
        self._count(index)
        return rate

    async def _loop(self, index: str) -> float:
        client = AsyncOpenSearch(hosts=[self.server], timeout=60)
        documents = self.documents()
        began = time.perf_counter()
        for start in range(0, self.number, BULK):
            body: list[dict[str, object]] = []
            for place, document in enumerate(documents[start : start + BULK], start + 1):
                action = {"_index": index, "_id": document["id"], "version": place, "version_type": "external"}
                body += [{"index": action}, document]
            answer = await client.bulk(body=body)
            if answer["errors"]:
                raise RuntimeError("the server rejected a document")
        rate = self.number / (time.perf_counter() - began)
        await client.close()
        return rate

    def _fill(self, url: str, alias: str) -> None:
        made = box_of(url, self.server, alias)
        made.migrate()
        events = [("document.created", document) for document in self.documents()]
        for start in range(0, self.number, 10_000):
            made.publish_many(events[start : start + 10_000], tx=None)
        made.close()

    def _settled(self, url: str, daemon: Daemon) -> float:
        with psycopg.connect(url, autocommit=True) as looking:
            left, since = self.number, time.monotonic()
            while left:
                ((now,),) = looking.execute(LEFT, (NAME,)).fetchall()
                if now < left:
                    left, since = now, time.monotonic()
                elif time.monotonic() > since + STILL_SEC or daemon.process.poll() is not None:
                    raise RuntimeError(f"{now:,} are left, and nothing happens: {daemon.err[-3000:]}")
                time.sleep(0.25)
            ((done, rate),) = looking.execute(BETWEEN).fetchall()
        if done != self.number:
            raise RuntimeError(f"{done:,} arrived instead of {self.number:,}")
        return float(rate)

    def _count(self, index: str) -> None:
        ask(self.server, "POST", f"/{index}/_refresh")
        if (found := ask(self.server, "GET", f"/{index}/_count")["count"]) != self.number:
            raise RuntimeError(f"{index} has {found:,} documents instead of {self.number:,}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=20_000, help="how many documents (20,000)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the daemon (2)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="each so often, in turn; the median counts (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    options = parser.parse_args()
    if (why := OpenSearchServer.missing()) is not None:
        raise SystemExit(f"bench-projection: {why}")
    home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
    print(f"  load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores", flush=True)
    service = OpenSearchServer(home / "opensearch")
    try:
        if OpenSearchServer.given() is None:
            service.start()
        contest = Contest(service.url, server_dsn(home, SERVER), home, options.number, options.workers)
        ours, theirs = compared(
            options.rounds, f"{options.number:,} documents", ("todoku", contest.projected),
            ("bare _bulk loop", contest.bare),
        )  # fmt: skip
    finally:
        service.stop()
        stop_server(home)
    bar = Bar("projection_vs_bulk", ours / theirs, REQUIRED)
    if options.json:
        figures = {"todoku_per_second": ours, "bare_per_second": theirs, "number": options.number}
        print(json.dumps({**figures, "bars": {bar.name: [bar.measured, bar.required, bar.ok]}}))
        return
    print(f"{ours:,.0f}/s through the daemon, {theirs:,.0f}/s bare, {ours / theirs:.2f} of it")
    report([bar])


if __name__ == "__main__":
    main()

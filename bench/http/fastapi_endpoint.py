"""The endpoint that a user would write by hand: FastAPI behind uvicorn, a row and a commit for each request.

Runs with the interpreter of `bench/.envs/fastapi`: `fastapi_endpoint.py WAY PORT DATABASE`. The ways:

asyncpg     PostgreSQL, through asyncpg's pool of ten (32 and 64 connections were slower)
sqlite3     a SQLite file, from FastAPI's threads, each with a connection and transactions of its own
aiosqlite   a SQLite file, one connection for all requests: the first commit that runs commits the rows of all of them

SQLite has synchronous=FULL and a write-ahead log. Each does less than ingest: no signature is verified, nothing is
routed, there is no delivery and no log.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI, Request, Response

TABLE = "create table if not exists event (id text primary key, type text not null, body text not null)"
INSERT = "insert into event (id, type, body) values (?, ?, ?) on conflict do nothing"
INSERT_POSTGRES = "insert into event (id, type, body) values ($1, $2, $3) on conflict do nothing"
DURABLE = ("pragma journal_mode = wal", "pragma synchronous = full")

Row = tuple[str, str, str]
Store = Callable[[Row], Awaitable[object]]


@asynccontextmanager
async def asyncpg_store(dsn: str) -> AsyncIterator[Store]:
    """An insert that commits by itself, on a connection of the pool."""
    import asyncpg  # noqa: PLC0415 - only this way needs it

    async with asyncpg.create_pool(dsn, min_size=10, max_size=10) as pool:
        await pool.execute(TABLE)
        yield lambda row: pool.execute(INSERT_POSTGRES, *row)


@asynccontextmanager
async def sqlite3_store(path: str) -> AsyncIterator[Store]:
    """The standard library, in threads."""
    own = threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(own, "connection"):
            own.connection = sqlite3.connect(path, timeout=60)
            for line in (*DURABLE, TABLE):
                own.connection.execute(line)
        found: sqlite3.Connection = own.connection
        return found

    def store(row: Row) -> None:
        with connection() as opened:  # commits
            opened.execute(INSERT, row)

    connection()
    yield lambda row: asyncio.to_thread(store, row)


@asynccontextmanager
async def aiosqlite_store(path: str) -> AsyncIterator[Store]:
    """One connection and its thread."""
    import aiosqlite  # noqa: PLC0415 - only this way needs it

    async with aiosqlite.connect(path) as shared:
        for line in (*DURABLE, TABLE):
            await shared.execute(line)

        async def store(row: Row) -> None:
            await shared.execute(INSERT, row)
            await shared.commit()

        yield store


WAYS: dict[str, Any] = {"asyncpg": asyncpg_store, "sqlite3": sqlite3_store, "aiosqlite": aiosqlite_store}


def application(way: str, database: str) -> FastAPI:
    """One endpoint."""
    stores: list[Store] = []

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with WAYS[way](database) as store:
            stores.append(store)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/ingest/stripe", status_code=204)
    async def ingest(request: Request) -> Response:
        body = await request.body()
        event = json.loads(body)
        await stores[0]((event["id"], event["type"], body.decode()))
        return Response(status_code=204)

    return app


if __name__ == "__main__":
    uvicorn.run(
        application(sys.argv[1], sys.argv[3]),
        port=int(sys.argv[2]), http="httptools", loop="uvloop", log_level="error", access_log=False,
    )  # fmt: skip

"""todoku in a FastAPI application: lifespans side by side, and a publisher that cannot forget the session."""

import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Any

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI, HTTPException, Request
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.pool import NullPool

import todoku
from tests.support.crew import until
from tests.support.world import Backend, World
from todoku.engine.ledger import Answer
from todoku.integrations.fastapi import Publisher, lifespans, once, publisher
from todoku.testing import assert_enqueued, assert_not_enqueued, assert_not_published, assert_published


class Shop:
    """An application whose rows and jobs are in one database."""

    def __init__(self, url: str) -> None:
        self.box = box = todoku.App(url)
        self.events: list[str] = []
        driver = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
        scheme, rest = url.split("://")
        self.engine = create_async_engine(f"{driver[scheme]}://{rest}", poolclass=NullPool)
        sessions = async_sessionmaker(self.engine)

        @box.job
        async def welcome(user_id: int) -> None:
            self.events.append(f"welcome {user_id}")

        @box.on("user.created")
        async def created(event: dict[str, Any]) -> None:
            self.events.append(f"created {event['id']}")

        self.welcome = welcome

        async def get_session() -> AsyncIterator[AsyncSession]:
            async with sessions.begin() as session:
                yield session

        @asynccontextmanager
        async def own(_app: FastAPI) -> AsyncIterator[dict[str, str]]:
            async with self.engine.begin() as db:
                await db.execute(text("create table users (id integer primary key)"))
            self.events.append("begin")
            yield {"mood": "fine"}
            self.events.append("end")
            await self.engine.dispose()

        self.api = FastAPI(lifespan=lifespans(own, box.lifespan))
        joined = publisher(box, get_session)

        @self.api.post("/users/{id}")
        async def create(
            id: int,
            db: Annotated[AsyncSession, Depends(get_session)],
            outbox: Annotated[Publisher, Depends(joined)],
            request: Request,
            fail: bool = False,
        ) -> dict[str, str]:
            assert outbox.tx is db
            await db.execute(text("insert into users values (:id)"), {"id": id})
            await outbox.apublish("user.created", {"id": id}, key=str(id))
            await outbox.aenqueue(welcome.using(priority=3), id)
            if fail:
                raise ValueError("after the enqueue")
            return {"mood": request.state.mood}


@pytest.fixture
def shop(backend: Backend, url: str) -> Iterator[Shop]:
    shop = Shop(url)
    yield shop
    shop.box.close()


@contextmanager
def served(api: FastAPI) -> Iterator[httpx.Client]:
    """The API in a real server, on any free port."""
    server = uvicorn.Server(uvicorn.Config(api, port=0, log_level="critical", lifespan="on", ws="none"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive(), what="the server")
        port = server.servers[0].sockets[0].getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=60)


def test_lifespans_begin_in_order_end_in_the_other_and_share_their_state(shop: Shop) -> None:
    with served(shop.api) as client:
        assert client.post("/users/7").json() == {"mood": "fine"}
        until(lambda: len(shop.events) == 3, what="the worker beside the API")
    assert shop.events[0] == "begin"
    assert set(shop.events[1:3]) == {"created 7", "welcome 7"}
    assert shop.events[3:] == ["end"]
    assert shop.box.store.leases.workers() == ()  # the worker had ended before


def test_I2_what_a_request_publishes_commits_with_its_session_or_not_at_all(shop: Shop) -> None:
    with served(shop.api) as client:
        assert client.post("/users/7").status_code == 200
        assert client.post("/users/8?fail=true").status_code == 500
    assert_enqueued(shop.welcome, user_id=7)
    assert assert_published(shop.box, "user.created", id=7).key == "7"
    assert_not_enqueued(shop.welcome, user_id=8)
    assert_not_published(shop.box, "user.created", id=8)


# -------------------------------------------------------------------------------------------------- once


async def test_an_endpoint_does_it_once_in_the_session_of_its_request(world: World, url: str) -> None:
    """The key, the answer and the rows of the endpoint are one commit; whoever repeats has the answer."""
    box = todoku.App(url)
    world.sql("create table refund (amount integer)")
    insert = "insert into refund values (?)" if world.backend == "sqlite" else "insert into refund values (%s)"

    async def session() -> AsyncIterator[Any]:
        connection = world.connect()
        try:
            with connection:
                yield connection
        finally:
            connection.close()

    refunds = once(box, session, scope="refunds")
    api = FastAPI()

    @api.post("/refunds")
    async def refund(
        amount: int, db: Annotated[Any, Depends(session)], done: Annotated[Answer, Depends(refunds)]
    ) -> dict[str, int]:
        if done.first:
            if amount < 0:
                raise HTTPException(422, "negative")
            db.execute(insert, (amount,))
            done.store({"refunded": amount})
        return done.response  # type: ignore[no-any-return]

    async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://shop") as client:
        answers = [
            await client.post("/refunds", params={"amount": amount}, headers={"Idempotency-Key": key} if key else {})
            for key, amount in [("r-1", 5), ("r-1", 5), ('"r-1"', 6), ("", 5), ("r-2", -1), ("r-2", -1)]
        ]
    box.close()
    assert [answer.status_code for answer in answers] == [200, 200, 422, 400, 422, 422]
    assert answers[0].json() == answers[1].json() == {"refunded": 5}
    assert "another request" in answers[2].json()["detail"]
    assert answers[4].json() == answers[5].json() == {"detail": "negative"}, "a key is free if the endpoint raises"
    assert world.sql("select amount from refund") == [(5,)]

"""examples/shop from the order to the points: real brokers, real processes, real crashes (seed 001)."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from shop_example.broker import Broker, Received, keep_receiving, open_broker, received
from shop_example.events import OrderCreated
from shop_example.exercises.__main__ import EXERCISES
from shop_example.naive import Count, Way, counted
from shop_example.points import Points

from tests.daemon.running import until
from tests.examples.shop_at_work import ADA, SHOP, open_shop, points_at, shop_at
from tests.support.ports import free_port
from tests.support.services import NatsServer, RabbitServer, Service, running
from todoku.testing import crash, lose_lease

pytestmark = pytest.mark.xdist_group("shop")

SERVERS: dict[str, type[Service]] = {"nats": NatsServer, "rabbitmq": RabbitServer}


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that a busy machine keeps waiting is not what is tested here."""
    monkeypatch.setenv("TODOKU_SEND_TIMEOUT_MS", "60000")


@pytest.fixture(scope="module", params=list(SERVERS))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(SERVERS[request.param], tmp_path_factory.mktemp(request.param)) as service:
        yield service


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(NatsServer, tmp_path_factory.mktemp("naive")) as service:
        yield service


@pytest.fixture
def broker(server: Service) -> Broker:
    """An address on each broker that nobody else uses."""
    opened = open_broker(server.url, f"shop-{uuid4().hex[:12]}")
    asyncio.run(opened.declare())
    asyncio.run(opened.declare())  # a second time is nothing
    return opened


@pytest.fixture
def points(tmp_path: Path) -> Iterator[Points]:
    """The consumer's database is not the shop's."""
    with points_at(f"sqlite:///{tmp_path}/points.db") as points:
        yield points


def an_order(amount: int = 4200) -> Received:
    order = OrderCreated(uuid4(), ADA, amount, datetime.now(UTC))
    return Received(str(uuid4()), "OrderCreated", msgspec.json.encode(order))


# ----------------------------------------------------------------------------------------------------- the consumer


def test_a_consumer_counts_each_message_once_whatever_is_delivered(url: str) -> None:
    """I6, S1-7, S1-36 … S1-38."""
    first, second = an_order(4200), an_order(800)
    with points_at(url) as points:
        taken = [points.take(each) for each in (first, first, second, first)]
        assert taken == ["counted", "seen before", "counted", "seen before"]
        assert points.balance() == {str(ADA): 50}


def test_points_that_could_not_be_written_leave_no_mark(url: str) -> None:
    """I6: the mark and the points are one commit, so what failed is counted when it comes again."""
    order = an_order()
    with points_at(url) as points:
        with points.engine.begin() as tx:
            tx.exec_driver_sql("alter table points rename to away")
        with pytest.raises(Exception, match="points"):
            points.take(order)
        with points.engine.begin() as tx:
            tx.exec_driver_sql("alter table away rename to points")
        assert points.take(order) == "counted"


def test_what_is_not_for_the_consumer_or_cannot_be_read_holds_nobody_up(points: Points) -> None:
    paid = Received(str(uuid4()), "PaymentConfirmed", b"{}")
    broken = Received(str(uuid4()), "OrderCreated", b'{"amount": ')
    nameless = Received("", "OrderCreated", an_order().payload)
    bare = received(None, b"hello")
    assert [points.take(each) for each in (paid, broken, nameless, bare, an_order())] == [
        "not for us", "unreadable", "unreadable", "not for us", "counted",
    ]  # fmt: skip


# -------------------------------------------------------------------------------------------------- over the broker


@pytest.mark.crash
@pytest.mark.slow
def test_a_publisher_killed_after_sending_sends_again_and_the_consumer_counts_once(
    broker: Broker, points: Points, sqlite_url: str
) -> None:
    """I1, I6, S1-9, S1-10: killed between the broker's yes and its own note of it."""
    with shop_at(sqlite_url, broker.destination()) as shop:
        shop.create_order(ADA, 4200)
        crash(shop.box, at="settle.before_commit")
        assert [row["status"] for row in shop.outbox()] == ["PROCESSING"]
        assert lose_lease(shop.box) == 1, "S1-34: what a dead publisher held does not stay PROCESSING"
        shop.create_order(ADA, 800)
        shop.box.drain()
        assert [row["status"] for row in shop.outbox()] == ["PUBLISHED", "PUBLISHED"]
    assert asyncio.run(broker.receive(points.take, idle=3.0)) >= 2
    assert points.balance() == {str(ADA): 50}


def test_a_consumer_that_dies_after_its_commit_is_asked_again_and_has_seen_it(
    broker: Broker, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1-37: the acknowledgement comes after the commit; what failed in between comes a second time."""
    monkeypatch.setattr("shop_example.broker.PAUSE", 0.05)
    taken: list[str] = []

    def take_and_fail(message: Received) -> None:
        taken.append(points.take(message))
        if len(taken) == 1:
            raise ConnectionError("before the acknowledgement")

    asyncio.run(broker.publish(an_order()))
    assert asyncio.run(broker.receive(take_and_fail, idle=3.0)) == 1
    assert (taken, points.balance()) == (["counted", "seen before"], {str(ADA): 42})


@pytest.mark.crash
async def test_a_consumer_waits_for_a_broker_that_was_killed(
    points: Points, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1: what the broker had confirmed is there when it is back, and is taken then."""
    monkeypatch.setattr("shop_example.broker.PAUSE", 0.05)
    taken: list[str] = []
    with running(NatsServer, tmp_path / "nats") as server:
        broker = open_broker(server.url, "shop")
        await broker.declare()
        await broker.publish(an_order())
        receiving = asyncio.create_task(keep_receiving(broker, lambda message: taken.append(points.take(message))))
        await asyncio.to_thread(until, lambda: taken == ["counted"], "the first")
        server.kill()
        await asyncio.to_thread(server.start)
        await broker.publish(an_order())
        await asyncio.to_thread(until, lambda: taken.count("counted") == 2, "the second")
        receiving.cancel()
        await asyncio.wait([receiving])
    assert points.balance() == {str(ADA): 84}


# ------------------------------------------------------------------------------------------------- accidents A and B


@pytest.mark.crash
@pytest.mark.postgres
@pytest.mark.slow
def test_the_naive_ways_lose_orders_and_tell_lies_and_the_outbox_does_neither(
    postgres_url: str, nats: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I1, I2, S1-2, S1-3: of four orders one goes well, one is rolled back, and two crash. SQLite: in the tutorial."""
    monkeypatch.setenv("PYTHONPATH", str(SHOP))
    counts = {way: counted(way, postgres_url, nats.url, orders=4) for way in Way}
    assert counts == {
        Way.COMMIT_FIRST: Count(orders=2, events=1, lost=1, lies=0),
        Way.PUBLISH_FIRST: Count(orders=2, events=4, lost=0, lies=2),
        Way.OUTBOX: Count(orders=2, events=2, lost=0, lies=0),
    }


# ----------------------------------------------------------------------------------------------------- the exercises

SHOWN = {
    "event-types": [
        "OrderCreated: .*orderId.*",
        "PaymentConfirmed: .*orderId.*",
        "of one aggregate: True",
        "states: PENDING, PROCESSING, PUBLISHED, FAILED",
    ],
    "typed-records": [
        "OrderCreated.amount = 4200",
        "status = PENDING, attempts = 0",
        "as JSON: id, eventType, aggregateId, payload, status, attempts, nextAttemptAt, createdAt",
    ],
    "failing": [
        r"PENDING attempts=1 next attempt in 1\.\d s",
        r"PENDING attempts=2 next attempt in 2\.\d s",
        r"PENDING attempts=3 next attempt in 4\.\d s",
        r"PENDING attempts=4 next attempt in 8\.\d s",
        r"PENDING attempts=5 next attempt in 1[67]\.\d s",
        "FAILED attempts=6",
    ],
    "twice": ["passes sent 1 and 0", "lines on the console: 1", "the row is PUBLISHED"],
    "two-publishers": ["the publishers sent 20 and 20", "sent twice: 0", "published: 40"],
    "duplicates": [
        "arrived 2 times, with 1 id",
        "with an inbox: counted, seen before: 42 points",
        "without: 84 points",
    ],
}


@pytest.mark.parametrize("name", EXERCISES)
def test_the_exercise_shows_what_the_chapter_asks_to_look_for(
    name: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S1-40, S1-44 … S1-47."""
    monkeypatch.setenv("OUTBOX_BASE_BACKOFF_SECONDS", "1")
    monkeypatch.setenv("OUTBOX_MAX_BACKOFF_SECONDS", "60")
    shown = EXERCISES[name](url)
    assert len(shown) == len(SHOWN[name])
    for line, promised in zip(shown, SHOWN[name], strict=True):
        assert re.fullmatch(promised, line), f"{line!r} is not {promised!r}"


# ------------------------------------------------------------------------------------------------- the whole program


def answer(url: str, body: object = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, {"content-type": "application/json"})) as response:
        return json.load(response)


def is_answered(url: str) -> Callable[[], bool]:
    def asked() -> bool:
        try:
            answer(url)
        except OSError:
            return False
        return True

    return asked


@pytest.mark.slow
def test_the_whole_shop_opens_takes_an_order_and_closes(backend: str, url: str, tmp_path: Path) -> None:
    """`make example NAME=shop`: S1-5, S1-6; a broker of its own, an API, a publisher and a consumer."""
    port = free_port()
    database = f"sqlite:///{tmp_path}/shop.db" if backend == "sqlite" else url
    with open_shop(tmp_path, PORT=str(port), DATABASE_URL=database) as shop:
        at = f"http://127.0.0.1:{port}"
        until(is_answered(f"{at}/outbox"), "the shop is open")
        answer(f"{at}/orders", {"userId": str(ADA), "amount": 4200})

        def has_points() -> bool:
            with closing(sqlite3.connect(tmp_path / "points.db", timeout=30)) as file:
                return file.execute("select points from points").fetchall() == [(42,)]

        until(has_points, "42 points")
        shop.terminate()
        said, _ = shop.communicate(timeout=60)
    assert shop.returncode == 0, said
    assert f"the shop is open on {at}" in said
    assert "OrderCreated" in said

"""examples/shop, part by part, on each database: the order and its event, the seed's outbox, the API (seed 001)."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import psycopg
import pytest
from shop_example.api import make_api
from shop_example.database import open_engine
from shop_example.events import OrderCreated
from shop_example.orders import BUS, Shop
from shop_example.records import OutboxStatus, read_records
from shop_example.settings import Settings, read_settings, wait_as_the_seed_does
from sqlalchemy.exc import DBAPIError

import todoku
from tests.examples.shop_at_work import ADA, shop_at
from tests.examples.users_at_work import sql

THE_SEED_S_SELECT = """
      SELECT id, event_type, aggregate_id, payload
      FROM outbox
      WHERE status = 'PENDING'
        AND next_attempt_at <= now()
      ORDER BY created_at
      FOR UPDATE SKIP LOCKED
      LIMIT $1
      """


def asked_as_printed(url: str, limit: int) -> list[tuple[Any, ...]]:
    """The seed's SELECT with its parameter. SQLite has no row locks and no now(): a line less, a function more."""
    if url.startswith("postgresql"):
        with psycopg.connect(url, cursor_factory=psycopg.RawCursor) as server:
            return server.execute(THE_SEED_S_SELECT, [limit]).fetchall()
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
        (now,) = file.execute("select strftime('%Y-%m-%d %H:%M:%f', 'now')").fetchone()
        file.create_function("now", 0, lambda: now)
        return file.execute(THE_SEED_S_SELECT.replace("FOR UPDATE SKIP LOCKED", ""), {"1": limit}).fetchall()


class Watching:
    """A destination that looks at the outbox while it is sending."""

    name = BUS

    def __init__(self, url: str) -> None:
        self._url = url
        self.seen: list[tuple[Any, ...]] = []

    async def send(self, batch: Sequence[todoku.Outgoing]) -> None:
        self.seen += sql(self._url, "select status, attempts from outbox")


def the_outbox(url: str) -> list[tuple[Any, ...]]:
    return sql(url, "select status, attempts from outbox order by created_at, id")


# ------------------------------------------------------------------------------------------------------- one commit


def test_an_order_and_its_event_are_one_commit(url: str) -> None:
    """I2, S1-4, S1-22, S1-23, S1-25."""
    with shop_at(url, todoku.log()) as shop:
        order = shop.create_order(ADA, 4200)
        ((id, user, amount, status),) = sql(url, "select id, user_id, amount, status from orders")
        assert (str(id), str(user), amount, status) == (str(order), str(ADA), 4200, "CREATED")
        (event,) = read_records(shop.outbox(), OrderCreated)
        assert (event.event_type, event.aggregate_id, event.status) == ("OrderCreated", str(order), "PENDING")
        assert (event.payload.order_id, event.payload.user_id, event.payload.amount) == (order, ADA, 4200)
        assert event.id.version == 7


def test_what_is_rolled_back_leaves_neither(url: str) -> None:
    """I2, S1-24: an amount that the database refuses, and a transaction that is given up after the event."""
    with shop_at(url, todoku.log()) as shop:
        with pytest.raises(DBAPIError):
            shop.create_order(ADA, -1)
        with shop.engine.connect() as tx:
            shop.place(tx, uuid4(), ADA, 4200)
            tx.rollback()
        assert sql(url, "select (select count(*) from orders), (select count(*) from outbox)") == [(0, 0)]


def test_a_payment_is_confirmed_once(url: str) -> None:
    """S1-44."""
    with shop_at(url, todoku.log()) as shop:
        order = shop.create_order(ADA, 4200)
        assert [shop.confirm_payment(order), shop.confirm_payment(order), shop.confirm_payment(uuid4())] == [
            True, False, False,
        ]  # fmt: skip
        assert [row["event_type"] for row in shop.outbox()] == ["OrderCreated", "PaymentConfirmed"]


# -------------------------------------------------------------------------------------------------- the seed's table


def test_the_outbox_has_the_seed_s_columns_and_types(url: str, backend: str) -> None:
    """S1-11 … S1-19."""
    names = ["id", "event_type", "aggregate_id", "payload", "status", "attempts", "next_attempt_at", "created_at",
             "published_at"]  # fmt: skip
    with shop_at(url, todoku.log()):
        if backend == "sqlite":
            assert [row[1] for row in sql(url, "select * from pragma_table_info('outbox')")] == names
        else:
            columns = sql(url, "select column_name, udt_name from information_schema.columns"
                               " where table_name = 'outbox' order by ordinal_position")  # fmt: skip
            types = ["uuid", "text", "uuid", "jsonb", "text", "int4", *["timestamptz"] * 3]
            assert columns == list(zip(names, types, strict=True))


def test_an_event_goes_through_the_seed_s_states(url: str) -> None:
    """S1-8, S1-15, S1-32: PENDING, PROCESSING while it is sent, PUBLISHED with its time."""
    watching = Watching(url)
    with shop_at(url, watching) as shop:
        shop.create_order(ADA, 4200)
        assert the_outbox(url) == [("PENDING", 0)]
        shop.box.drain()
        assert watching.seen == [("PROCESSING", 0)]
        (event,) = read_records(shop.outbox(), OrderCreated)
        assert (event.status, event.attempts) == (OutboxStatus.PUBLISHED, 0)
        assert event.published_at is not None
        assert event.created_at <= event.published_at


@pytest.mark.parametrize(("error", "attempts"), [(todoku.Abort("TOO_LARGE"), 1), (ConnectionError(), 3)])
def test_what_the_bus_refuses_for_good_or_again_and_again_is_failed(
    url: str, monkeypatch: pytest.MonkeyPatch, error: Exception, attempts: int
) -> None:
    """S1-35, which the seed left out: FAILED at once, or when the attempts are used up."""
    monkeypatch.setenv("OUTBOX_BACKOFF_SEC", "0")
    monkeypatch.setenv("OUTBOX_MAX_ATTEMPTS", "3")

    def refuse(_message: todoku.Outgoing) -> None:
        raise error

    with shop_at(url, refuse) as shop:
        shop.create_order(ADA, 4200)
        shop.box.drain()
    assert the_outbox(url) == [("FAILED", attempts)]


def test_the_seed_s_own_select_runs_as_printed(url: str) -> None:
    """S1-26: what is due, oldest first, no more than asked for; on the view it locks nothing."""
    with shop_at(url, todoku.log()) as shop:
        orders = [shop.create_order(ADA, 100 + n) for n in range(3)]
        rows = asked_as_printed(url, 2)
        assert [(row[1], str(row[2])) for row in rows] == [("OrderCreated", str(order)) for order in orders[:2]]
        assert shop.box.drain() == 3
        assert asked_as_printed(url, 2) == []


def test_what_waits_for_its_next_attempt_is_not_due(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S1-17, S1-33: back to PENDING, one attempt more, not before next_attempt_at."""
    monkeypatch.setenv("OUTBOX_BACKOFF_SEC", "60")

    def refuse(_message: todoku.Outgoing) -> None:
        raise ConnectionError

    with shop_at(url, refuse) as shop:
        shop.create_order(ADA, 4200)
        shop.box.drain()
        assert (the_outbox(url), asked_as_printed(url, 20)) == ([("PENDING", 1)], [])


def test_the_outbox_is_there_to_read_not_to_write(url: str) -> None:
    with shop_at(url, todoku.log()) as shop:
        shop.create_order(ADA, 4200)
        with pytest.raises((sqlite3.Error, psycopg.Error)):
            sql(url, "update outbox set status = 'PUBLISHED'")
        assert the_outbox(url) == [("PENDING", 0)]


def test_a_key_that_is_no_uuid_does_not_break_the_view(url: str) -> None:
    with shop_at(url, todoku.log()) as shop:
        with shop.engine.begin() as tx:
            shop.box.publish("OrderCreated", {}, key="seven", tx=tx)
        assert the_outbox(url) == [("PENDING", 0)]


# ------------------------------------------------------------------------------------------------------------- HTTP


async def call(shop: Shop, method: str, path: str, body: object = None) -> httpx.Response:
    transport = httpx.ASGITransport(make_api(shop), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.request(method, path, json=body)


async def test_an_order_is_posted_paid_and_found(url: str) -> None:
    with shop_at(url, todoku.log()) as shop:
        answer = await call(shop, "POST", "/orders", {"userId": str(ADA), "amount": 4200})
        assert (answer.status_code, list(answer.json())) == (201, ["orderId"])
        order = answer.json()["orderId"]
        paid = [(await call(shop, "POST", f"/orders/{order}/payment")).status_code for _ in range(2)]
        assert paid == [201, 409]
        found = (await call(shop, "GET", f"/orders/{order}")).json()
        assert {"id": order, "user_id": str(ADA), "amount": 4200, "status": "PAID"}.items() <= found.items()
        assert (await call(shop, "GET", f"/orders/{uuid4()}")).status_code == 404
        events = (await call(shop, "GET", "/outbox")).json()
        assert [event["eventType"] for event in events] == ["OrderCreated", "PaymentConfirmed"]
        assert {*events[0]} == {
            "id", "eventType", "aggregateId", "payload", "status", "attempts", "nextAttemptAt", "createdAt",
        }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"amount": 1}, "userId"),
        ({"userId": "ada", "amount": 1}, "userId"),
        ({"userId": str(ADA), "amount": 0}, "amount"),
        ({"userId": str(ADA), "amount": 2**31}, "amount"),
        ({"userId": str(ADA), "amount": "1"}, "amount"),
        ({"userId": str(ADA), "amount": 1, "card": "4111"}, "card"),
    ],
)
async def test_an_order_that_makes_no_sense_is_refused_by_its_field(sqlite_url: str, body: Any, field: str) -> None:
    with shop_at(sqlite_url, todoku.log()) as shop:
        answer = await call(shop, "POST", "/orders", body)
        assert (answer.status_code, [each["loc"][-1] for each in answer.json()["detail"]]) == (422, [field])
        assert sql(sqlite_url, "select count(*) from orders") == [(0,)]


async def test_a_database_that_cannot_is_said_and_no_order_is_made(url: str) -> None:
    with shop_at(url, todoku.log()) as shop:
        sql(url, "alter table todoku_delivery rename to away")
        answer = await call(shop, "POST", "/orders", {"userId": str(ADA), "amount": 4200})
        assert (answer.status_code, sql(url, "select count(*) from orders")) == (503, [(0,)])


# --------------------------------------------------------------------------------------------------------- settings


def test_retries_wait_as_the_seed_s_do_unless_somebody_says_otherwise() -> None:
    """S1-33."""
    usual: dict[str, str] = {}
    own = {"OUTBOX_BACKOFF_SEC": "5"}
    wait_as_the_seed_does(usual)
    wait_as_the_seed_does(own)
    assert usual == {"OUTBOX_BASE_BACKOFF_SECONDS": "1", "OUTBOX_MAX_BACKOFF_SECONDS": "60"}
    assert own == {"OUTBOX_BACKOFF_SEC": "5"}


def test_settings_are_read_by_their_names() -> None:
    assert read_settings({}) == Settings()
    given = read_settings({"DATABASE_URL": "postgresql://h/d", "BROKER_URL": "amqp://b/", "PORT": "1"})
    assert (given.database, given.broker, given.port) == ("postgresql://h/d", "amqp://b/", 1)


@pytest.mark.parametrize("wrong", [{"BROKER_URL": "kafka://b"}, {"PORT": "x"}, {"PORT": "70000"}])
def test_a_setting_that_cannot_be_is_refused_by_its_name(wrong: dict[str, str]) -> None:
    (name,) = wrong
    with pytest.raises(todoku.InvalidSetting, match=name):
        read_settings(wrong)


def test_a_url_of_any_spelling_opens_with_psycopg() -> None:
    assert {open_engine(f"{spelled}://h/d").url.drivername for spelled in ("postgres", "postgresql+asyncpg")} == {
        "postgresql+psycopg"
    }


def test_a_payload_that_is_not_of_its_type_is_refused() -> None:
    """S1-45."""
    row = {"id": str(uuid4()), "event_type": "OrderCreated", "aggregate_id": str(uuid4()), "payload": '{"amount": "x"}',
           "status": "PENDING", "attempts": 0, "next_attempt_at": "2026-01-01 00:00:00.000",
           "created_at": "2026-01-01 00:00:00.000", "published_at": None}  # fmt: skip
    with pytest.raises(msgspec.ValidationError):
        read_records([row], OrderCreated)
    (record,) = read_records([row], dict[str, str])
    assert record.created_at.isoformat() == "2026-01-01T00:00:00+00:00"

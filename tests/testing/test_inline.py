"""Inline: a job runs where it is enqueued, through the same encoding and checks, and its errors come out there."""

from __future__ import annotations

from contextlib import closing

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import todoku
from tests.testing.conftest import OrderCreated, Shop
from todoku.testing import assert_not_enqueued, inline


def test_a_job_runs_at_once_and_its_handle_knows_the_result(shop: Shop) -> None:
    with inline(shop.box):
        handle = shop.welcome.enqueue(7)
        assert shop.done == ["welcome 7"]
        assert handle.result() == "mailed 7"
        assert handle.status() is todoku.Status.SUCCEEDED
        assert shop.double.enqueue(4).result() == 8  # an async one, from plain code
    assert_not_enqueued(shop.welcome)
    shop.welcome.enqueue(8)
    assert shop.done == ["welcome 7"]  # afterwards it is stored again


def test_what_a_job_raises_or_returns_instead_of_a_success_comes_out_of_enqueue(shop: Shop) -> None:
    @shop.box.job
    def refuses(how: str) -> todoku.Abort | None:
        if how == "raised":
            raise todoku.Retry(after=5)
        return todoku.Abort("NO_MAILBOX")

    with inline(shop.box):
        with pytest.raises(ConnectionError, match="not yet"):
            shop.flaky.enqueue()
        with pytest.raises(todoku.Retry):
            refuses.enqueue("raised")
        with pytest.raises(todoku.Abort, match="NO_MAILBOX"):
            refuses.using(best_effort=True).enqueue("returned")


def test_arguments_travel_as_they_would_to_a_worker(shop: Shop) -> None:
    got: list[object] = []

    @shop.box.job
    def keeps(pair: tuple[int, int]) -> None:
        got.append(pair)

    given = (1, 2)
    with inline(shop.box):
        keeps.enqueue(given)
        assert got == [given]
        assert got[0] is not given  # it was JSON in between
        with pytest.raises(todoku.InvalidMessage):
            keeps.enqueue("7")  # type: ignore[arg-type]


def test_a_transactional_consumer_works_in_a_transaction_of_its_own_or_in_the_callers(shop: Shop) -> None:
    with inline(shop.box):
        shop.box.publish(OrderCreated(1, {}), tx=None)
        assert shop.points() == [1]
        with closing(shop.connect()) as db:
            shop.box.publish(OrderCreated(2, {}), tx=db)
            db.rollback()
        assert shop.points() == [1]


def test_a_session_of_sqlalchemy_is_the_handlers_own(shop: Shop) -> None:
    @shop.box.on("order.paid", transactional=True)
    def paid(ctx: todoku.Context) -> None:
        ctx.session(Session).execute(text("insert into points values (3)"))

    engine = create_engine(shop.url.replace("postgresql://", "postgresql+psycopg://"))
    with inline(shop.box), Session(engine) as db:
        shop.box.publish("order.paid", {}, tx=db)
        db.commit()
    engine.dispose()
    assert shop.points() == [3]


async def test_async_code_awaits_the_job_itself(shop: Shop) -> None:
    with inline(shop.box):
        handle = await shop.double.aenqueue(4)
        assert await handle.aresult() == 8
        assert await (await shop.welcome.aenqueue(7)).aresult() == "mailed 7"
        with pytest.raises(todoku.TodokuError, match="aenqueue"):
            shop.double.enqueue(4)

"""`per_key`: a limit of each key, said where the job is declared. What cannot be is refused there, nothing stored."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

import todoku
from todoku.core.identity import gate_id


@pytest.fixture
def box(sqlite_url: str) -> todoku.App:
    app = todoku.App(sqlite_url)
    app.migrate()
    return app


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "2", 10**9])
def test_concurrency_is_a_whole_number_from_one_on(value: Any) -> None:
    with pytest.raises(todoku.InvalidSetting, match="concurrency cannot be") as error:
        todoku.Limit(concurrency=value)
    assert "1 or more" in str(error.value)


@pytest.mark.parametrize("value", [0, -0.5, True, float("nan"), float("inf"), "10"])
def test_a_rate_is_a_number_above_zero(value: Any) -> None:
    with pytest.raises(todoku.InvalidSetting, match="rate cannot be"):
        todoku.Limit(rate=value)


def test_a_limit_limits_something() -> None:
    with pytest.raises(todoku.InvalidSetting, match="limits nothing"):
        todoku.Limit()


def test_a_limit_is_a_value() -> None:
    assert todoku.Limit(concurrency=2, rate=10) == todoku.Limit(concurrency=2, rate=10)
    with pytest.raises(AttributeError):
        todoku.Limit(rate=1).rate = 2  # type: ignore[misc]


def test_per_key_and_ordered_are_refused_together(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidSetting, match="per_key and ordered cannot both be given"):

        @box.job(ordered=True, per_key=todoku.Limit(concurrency=2))
        def both() -> None: ...


def test_per_key_is_a_limit(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidSetting, match="per_key cannot be 2"):

        @box.job(per_key=2)  # type: ignore[arg-type]
        def number() -> None: ...


def test_a_call_of_such_a_job_has_the_jobs_queue(box: todoku.App) -> None:
    """One key has one gate, and a gate one queue."""

    @box.job(queue="mail", per_key=todoku.Limit(concurrency=2))
    def send() -> None: ...

    send.using(key="a", queue="mail").enqueue()
    with pytest.raises(todoku.InvalidMessage, match="queue cannot be 'other'"):
        send.using(key="a", queue="other").enqueue()
    assert box.store.statistics.counts().of("pending") == 1


def test_calls_with_a_key_have_its_gate_and_others_none(box: todoku.App) -> None:
    @box.job(per_key=todoku.Limit(concurrency=2))
    def send() -> None: ...

    gates = [send.using(key=key).call().draft().legs[0].gate for key in ("a", "a", "b", None)]
    assert gates == [gate_id("send", "a")] * 2 + [gate_id("send", "b"), None]


def test_events_are_limited_by_their_key(box: todoku.App) -> None:
    ran: list[int] = []

    @box.event("order.paid", key="customer")
    @dataclass(frozen=True)
    class Paid:
        customer: str
        amount: int

    @box.on(Paid, per_key=todoku.Limit(concurrency=1))
    def book(event: Paid) -> None:
        ran.append(event.amount)

    box.publish_many([Paid("acme", amount) for amount in range(5)], tx=None)
    assert len(box.store.claims.waiting(None).gates) == 1
    assert box.drain() == 5
    assert sorted(ran) == [0, 1, 2, 3, 4]
    assert box.store.claims.waiting(None).gates == ()

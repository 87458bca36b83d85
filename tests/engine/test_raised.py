"""Handlers that raise what is no Exception, as `sys.exit` does: a failed attempt, and the worker goes on (I1, I13)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import NoReturn

import pytest

import todoku


class Odd(BaseException):
    """As some libraries raise, so that `except Exception` lets it through."""


RAISED = (SystemExit(3), Odd("odd"), asyncio.CancelledError())


@pytest.mark.parametrize("raised", RAISED, ids=repr)
def test_a_handler_that_raises_no_exception_has_failed(box: todoku.App, raised: BaseException) -> None:
    """Before, its slot or thread ended, and the worker held its delivery for ever."""

    @box.job(max_attempts=2, backoff=todoku.table(0))
    async def in_the_loop() -> None:
        raise raised

    @box.job(max_attempts=2, backoff=todoku.table(0))
    def in_a_thread() -> None:
        raise raised

    @box.job(max_attempts=2, backoff=todoku.table(0), transactional=True)
    def in_a_transaction() -> None:
        raise raised

    @box.job
    async def neighbour() -> None:
        """Runs in the same worker."""

    jobs = [job.enqueue() for job in (in_the_loop, in_a_thread, in_a_transaction)]
    beside = [neighbour.enqueue() for _ in range(20)]
    box.drain()
    assert [job.status() for job in jobs] == ["aborted"] * 3
    assert [(job.delivery().reason, job.delivery().attempts) for job in jobs] == [("INTERNAL_ERROR", 2)] * 3
    assert all(f"it raised {raised!r}" in (job.error() or "") for job in jobs)
    assert {job.status() for job in beside} == {"succeeded"}


@pytest.mark.parametrize("raised", RAISED, ids=repr)
def test_a_destination_that_raises_no_exception_has_failed(box: todoku.App, raised: BaseException) -> None:
    class Broken:
        name = "broken"

        async def send(self, _batch: Sequence[todoku.Outgoing]) -> NoReturn:
            raise raised

    box.route("order.*", to=Broken())
    message = box.publish("order.created", {}, tx=None)
    box.drain(limit=1)
    (delivery,) = box.deliveries.find(message_id=message.id).items
    assert (delivery.status, delivery.reason, delivery.attempts) == ("failed", "INTERNAL_ERROR", 1)


def test_the_traceback_is_that_of_the_handler(box: todoku.App) -> None:
    @box.job(max_attempts=1)
    def leave() -> None:
        sys.exit("not enough")

    job = leave.enqueue()
    box.drain()
    (attempt,) = job.attempts()
    assert 'sys.exit("not enough")' in (attempt.traceback or "")

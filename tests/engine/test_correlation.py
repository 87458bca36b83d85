"""One event is followed by its correlation id: in the lines of attempts, and in what they publish (S4-14, S4-41)."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import msgspec
import pytest

import todoku
from tests.support.apart import box as apart
from todoku.client import connect
from todoku.engine.observability.log_line import SettledLine
from todoku.testing import inline

ID = {"X-Correlation-Id": "request-7"}


def settled(out: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in out.getvalue().splitlines()]
    return [one for one in found if one["event"] == "settled"]


def inherited(out: io.StringIO) -> dict[str, str | None]:
    """Destination → the correlation id of its attempt."""
    return {one["adapter"]: one["correlation_id"] for one in settled(out)}


# ------------------------------------------------------------------------------------ the line of the attempt


@pytest.mark.parametrize("kind", ["loop", "thread", "transactional"])
def test_what_a_handler_binds_is_in_the_line_of_its_attempt(box: todoku.App, lines: io.StringIO, kind: str) -> None:
    """S4-41: correlation id, event_id, participant_id and error_type, all in one line."""

    def fail(ctx: todoku.Context) -> None:
        log = ctx.log.bind(event_id="evt_1")
        log.bind(participant_id="p-9", card_number="4242").info("charging")
        raise ValueError("no")

    async def fail_in_loop(ctx: todoku.Context) -> None:
        fail(ctx)

    options = {"transactional": True} if kind == "transactional" else {}
    job = box.job("pay", max_attempts=1, **options)(fail_in_loop if kind == "loop" else fail)
    job.using(headers=ID).enqueue()
    box.drain()
    (line,) = settled(lines)
    assert list(line)[: len(SettledLine.__struct_fields__)] == list(SettledLine.__struct_fields__)
    found = [line[name] for name in ("correlation_id", "event_id", "participant_id", "error_type", "card_number")]
    assert found == ["request-7", "evt_1", "p-9", "ValueError", "***"]
    (charging,) = [one for one in map(json.loads, lines.getvalue().splitlines()) if one["event"] == "charging"]
    assert (charging["correlation_id"], charging["participant_id"]) == ("request-7", "p-9")


def test_bound_fields_are_those_of_one_attempt_and_never_those_of_the_line(box: todoku.App, lines: io.StringIO) -> None:
    @box.job(max_attempts=2, backoff=todoku.table(0))
    async def pay(ctx: todoku.Context) -> None:
        if ctx.attempt == 1:
            ctx.log.bind(first="yes", status="mine", worker="mine", half="\ud800")
            raise ValueError("no")

    pay.enqueue()
    box.drain()
    first, second = settled(lines)
    assert (first["first"], first["status"], first["half"]) == ("yes", "failed", "?")
    assert first["worker"] == second["worker"]
    assert "first" not in second
    msgspec.convert(second, SettledLine, strict=False)  # exactly its own fields


def test_an_attempt_that_is_abandoned_has_its_line_too(box: todoku.App, lines: io.StringIO) -> None:
    @box.job(max_attempts=1, timeout=0.2)
    async def pay(ctx: todoku.Context) -> None:
        ctx.log.bind(participant_id="p-9")
        await asyncio.sleep(60)

    pay.enqueue()
    box.drain()
    (line,) = settled(lines)
    assert (line["reason_code"], line["participant_id"]) == ("TIMEOUT", "p-9")


def test_a_handler_in_a_process_is_followed_like_any_other(
    url: str, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-14, S4-41: the child publishes with the id, and what it bound comes back."""
    monkeypatch.setenv("TODOKU_TEST_APART", url)
    apart.connect(url)
    apart.migrate()
    apart.jobs["pay"].using(headers=ID).enqueue("p-9")
    while apart.drain():
        pass
    apart.close()
    pay, square = settled(lines)
    named = [pay[name] for name in ("correlation_id", "event_id", "participant_id", "error_type")]
    assert named == ["request-7", "evt_1", "p-9", "TimeoutError"]
    assert (square["adapter"], square["correlation_id"]) == ("square", "request-7")


# ------------------------------------------------------------------------------ what a handler publishes


def test_what_a_handler_publishes_has_its_correlation_id(box: todoku.App, lines: io.StringIO) -> None:
    """S4-14: from a loop, a thread, a thread of the loop and a transaction; by jobs, events, batches, the client."""
    queue = connect(box)

    @box.job
    def mail() -> None: ...

    @box.job
    async def other() -> None: ...

    @box.on("payment.*")
    def noted(event: dict[str, int]) -> None: ...

    @box.on("client.*")
    def by_client(event: dict[str, int]) -> None: ...

    @box.job
    async def loop(ctx: todoku.Context) -> None:
        await box.apublish("payment.done", {}, tx=None)
        await asyncio.to_thread(other.enqueue)

    @box.job(transactional=True)
    def transact(ctx: todoku.Context) -> None:
        box.batch([mail.call()], tx=ctx.tx)

    @box.job
    def thread(ctx: todoku.Context) -> None:
        queue.publish("client.done", {})

    for job in (loop, transact, thread):
        job.using(headers=ID).enqueue()
    box.drain()
    assert set(inherited(lines)) == {"mail", "other", "noted", "by_client", "loop", "transact", "thread"}
    assert set(inherited(lines).values()) == {"request-7"}


def test_the_callers_own_id_wins_and_nothing_is_inherited_without_one_or_afterwards(
    box: todoku.App, lines: io.StringIO
) -> None:
    @box.job
    async def own() -> None: ...

    @box.job
    async def none() -> None: ...

    @box.on("client.done")
    async def by_client(event: dict[str, int]) -> None: ...

    @box.job
    async def first(ctx: todoku.Context) -> None:
        await own.using(headers={"correlation_id": "mine"}).aenqueue()
        await connect(box).apublish("client.done", {}, headers={"x-correlation-id": "mine too"})

    @box.job
    async def second(ctx: todoku.Context) -> None:
        await none.aenqueue()

    first.using(headers=ID).enqueue()
    box.drain(limit=1)
    second.enqueue()
    box.drain()
    assert inherited(lines) == {
        "first": "request-7", "own": "mine", "by_client": "mine too", "second": None, "none": None
    }  # fmt: skip


def test_hooks_go_on_with_the_id(box: todoku.App, lines: io.StringIO) -> None:
    @box.after("aborted")
    def note(ctx: todoku.Context, ending: todoku.Ending) -> None: ...

    @box.job
    async def pay() -> None:
        raise todoku.Abort("NEVER")

    box.migrate()
    pay.using(headers=ID).enqueue()
    while box.drain():
        pass
    assert inherited(lines) == {"pay": "request-7", "note": "request-7"}


def test_inline_it_is_as_in_a_worker(box: todoku.App) -> None:
    seen: list[dict[str, str]] = []

    @box.job
    def mail(ctx: todoku.Context) -> None:
        seen.append(ctx.headers)

    @box.job
    def pay(ctx: todoku.Context) -> None:
        mail.enqueue()
        mail.enqueue()

    with inline(box):
        pay.using(headers=ID).enqueue()
        mail.enqueue()
    assert seen == [{"x-correlation-id": "request-7"}] * 2 + [{}]

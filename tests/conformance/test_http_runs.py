"""Workflow runs over HTTP: a step and the call that continues its run are one commit, and each step has one result."""

from __future__ import annotations

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.requesting import Requesting
from tests.support.world import SOMEBODY, World, aborted
from todoku.core.destination import Outgoing
from todoku.core.errors import CannotOpen, DatabaseUnavailable, NotThere, RunEnded
from todoku.core.http_request import HttpRequest, RunPart
from todoku.core.message import Claimed, Message
from todoku.core.workflow_run import RunOptions, Wait
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.run_acts import HttpRunActs
from todoku.engine.http.run_calls import RunCalls
from todoku.engine.http.run_publisher import RunPost, RunPublisher
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed, lose
from todoku.store.http_runs import RunFilter

URL = "https://shop.example/workflow"
DAY = 86_400.0
HOUR = 3600.0
MASTER = f"one:{base64.b64encode(b'o' * 32).decode()}"


class Runs:
    """The engine's parts for runs, on a test's database."""

    def __init__(self, world: World, **settings: object) -> None:
        self.world, self.http = world, Requesting(world, **settings)
        outbox = self.http.outbox
        self.publisher, self.acts, self.calls = RunPublisher(outbox), HttpRunActs(outbox), RunCalls(outbox)

    def publish(self, run: str, body: bytes, *, init: bool = False, **more: Any) -> Message:
        options = RunOptions(id=run, url=URL, init=init, call=more.pop("call", None), invoke=more.pop("invoke", False))
        request = HttpRequest(url=more.pop("url", URL), headers={"X-Own": "1"})
        post = RunPost(run=options, request=request, body=body, posting=Posting(**more))
        return self.publisher.put([post], [])[0][0]

    def start(self, run: str = "wfr_1", body: bytes = b"begin") -> Message:
        return self.publish(run, body, init=True)

    def step(self, number: int, out: object = None, *, run: str = "wfr_1", **more: Any) -> Message:
        return self.publish(run, step(number, out), **more)

    def body(self, message_id: UUID, run: str = "wfr_1") -> list[dict[str, Any]] | None:
        """The steps in a call, as the worker would send them."""
        found = self.calls.body(RunPart(id=run, created_at=0), _outgoing(message_id))
        return None if found is None else [_opened(item) for item in json.loads(found)]

    def waiting(self) -> list[UUID | None]:
        """The calls that are due, in order."""
        return [delivery.message_id for delivery in self.world.deliveries() if delivery.status == "pending"]

    def claim(self) -> list[Claimed]:
        return self.http.claim()


def step(number: int, out: object = None, **more: Any) -> bytes:
    named = {"stepId": number, "stepName": f"step {number}", "stepType": "Run", "concurrent": 1}
    return msgspec.json.encode({**named, "out": json.dumps(out), **more})


def _outgoing(message_id: UUID) -> Outgoing:
    return Outgoing(
        message_id=str(message_id), idempotency_key="", topic="http.request", key=None, payload=b"",
        content_type="application/json", headers={}, attempt=1, created_at=0.0,
    )  # fmt: skip


def _opened(item: dict[str, Any]) -> dict[str, Any]:
    body = base64.b64decode(item["body"])
    return {"body": body.decode()} if not body.startswith(b"{") else json.loads(body)


@pytest.fixture
def runs(world: World) -> Runs:
    return Runs(world)


# ------------------------------------------------------------------------------------------------- steps


def test_a_call_contains_the_steps_up_to_its_own_whenever_it_is_sent(runs: Runs) -> None:
    first, one = runs.start(), runs.step(1, "a")
    before = runs.body(one.id)
    two = runs.step(2, "b")
    assert runs.body(first.id) == [{"body": "begin"}]
    assert runs.body(one.id) == before
    assert [item.get("stepId") for item in runs.body(two.id) or ()] == [None, 1, 2]


def test_a_run_starts_once_and_a_step_has_one_result(runs: Runs) -> None:
    first, again = runs.start(), runs.start(body=b"other")
    assert (again.id, again.duplicate) == (first.id, True)
    one, other = runs.step(1, "a"), runs.step(1, "b")
    assert (other.id, other.duplicate) == (one.id, True)
    assert runs.body(one.id) == [{"body": "begin"}, json.loads(step(1, "a"))]
    assert len(runs.waiting()) == 2


def test_a_step_and_its_call_are_stored_both_or_neither(runs: Runs) -> None:
    """After a lost reply the SDK publishes again, and gets what is stored."""
    runs.start()
    with armed("http_run.before_commit", lose), pytest.raises(DatabaseUnavailable):
        runs.step(1, "a")
    assert len(runs.waiting()) == 1
    assert len(runs.calls.steps("wfr_1")) == 1
    with armed("http_run.after_commit", lose), pytest.raises(DatabaseUnavailable):
        runs.step(1, "a")
    assert len(runs.waiting()) == len(runs.calls.steps("wfr_1")) == 2
    assert runs.step(1, "b").duplicate
    assert len(runs.waiting()) == 2


def test_steps_that_are_added_at_once_are_added_one_after_the_other(runs: Runs, world: World) -> None:
    """Parallel steps: of all calls exactly one contains every result."""
    runs.start()
    parts = [Runs(World(world.backend, world.url)) for _ in range(4)]
    try:
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda n: parts[n % 4].step(n + 1, n).id, range(12)))
    finally:
        for part in parts:
            part.world.close()
    lengths = sorted(len(runs.body(id) or ()) for id in done)
    assert lengths == list(range(2, 14))


def test_nothing_is_added_to_a_run_that_has_ended_and_none_of_its_calls_is_sent(runs: Runs) -> None:
    first = runs.start()
    sleeping = runs.step(1, delay=DAY)
    runs.acts.finish("wfr_1", b'{"done": true}')
    runs.acts.finish("wfr_1", b"again")
    with pytest.raises(RunEnded):
        runs.step(2)
    assert runs.body(first.id) is None
    assert runs.body(sleeping.id) is None
    assert runs.waiting() == []
    with pytest.raises(NotThere):
        runs.acts.cancel("wfr_2", SOMEBODY)
    with pytest.raises(RunEnded):
        runs.step(1, run="wfr_2")


# ------------------------------------------------------------------------------------------------ events

WAIT = {"stepId": 1, "stepName": "wait", "stepType": "Wait", "concurrent": 1}


def paid(data: bytes | None) -> dict[str, Any]:
    out = {} if data is None else {"out": base64.b64encode(data).decode()}
    return {**WAIT, "waitEventId": "paid", "waitTimeout": data is None, **out}


def test_an_event_makes_the_call_of_a_waiting_run_due_with_its_data(runs: Runs) -> None:
    runs.start()
    runs.claim()
    call = runs.acts.wait("wfr_1", "paid", Wait(step=WAIT, timeout="1d"))
    assert runs.acts.wait("wfr_1", "paid", Wait(step=WAIT, timeout="1d")) == call
    assert runs.claim() == []
    ((waiter, url),) = runs.acts.notify("paid", b"7")
    assert (waiter.run_id, url) == ("wfr_1", URL)
    (claim,) = runs.claim()
    assert claim.message_id == str(call)
    assert runs.body(call) == [{"body": "begin"}, paid(b"7")]
    assert runs.acts.notify("paid", b"8") == []


def test_a_wait_whose_time_is_over_goes_on_without_data(runs: Runs, world: World) -> None:
    runs.start()
    runs.claim()
    call = runs.acts.wait("wfr_1", "paid", Wait(step=WAIT, timeout="1h"))
    world.advance(HOUR + 1)
    assert [claim.message_id for claim in runs.claim()] == [str(call)]
    assert runs.body(call) == [{"body": "begin"}, paid(None)]
    assert runs.acts.notify("paid", b"late") == []
    assert runs.body(call) == [{"body": "begin"}, paid(None)]


def test_an_event_that_comes_while_the_last_call_is_under_way_wins_or_loses_as_a_whole(
    runs: Runs, world: World
) -> None:
    runs.start()
    runs.claim()
    call = runs.acts.wait("wfr_1", "paid", Wait(step=WAIT, timeout="1h"))
    world.advance(HOUR + 1)
    assert len(runs.claim()) == 1  # the time is over, and a worker has the call, but has not read the steps
    assert len(runs.acts.notify("paid", b"7")) == 1
    assert runs.body(call) == [{"body": "begin"}, paid(b"7")]


def test_an_event_for_a_named_run_is_kept_in_order_and_taken_once(runs: Runs) -> None:
    runs.start()
    runs.acts.notify("paid", b"1", "wfr_1")
    runs.acts.notify("paid", b"2", "wfr_1")
    calls = [
        runs.acts.wait("wfr_1", "paid", Wait(step={**WAIT, "stepId": number}, timeout="1d")) for number in (1, 2, 3)
    ]
    found = runs.body(calls[1])
    assert found is not None
    assert [item["out"] for item in found[1:]] == [base64.b64encode(data).decode() for data in (b"1", b"2")]
    assert len(runs.acts.notify("paid", b"3")) == 1
    with pytest.raises(RunEnded):
        runs.acts.notify("paid", b"1", "wfr_2")


def test_an_event_reaches_a_run_that_begins_to_wait_at_the_same_moment(runs: Runs, world: World) -> None:
    """Whichever commits first: no event for a named run is lost."""
    other = Runs(World(world.backend, world.url))
    try:
        for number in range(10):
            run = f"wfr_{number}"
            runs.start(run)
            with ThreadPoolExecutor(2) as pool:
                told = pool.submit(other.acts.notify, "paid", b"7", run)
                call = pool.submit(runs.acts.wait, run, "paid", Wait(step=WAIT, timeout="1d")).result()
                told.result()
            assert runs.body(call, run) == [{"body": "begin"}, paid(b"7")]
    finally:
        other.world.close()


# ---------------------------------------------------------------------------------- failures, retention, secrets


def test_a_run_has_failed_while_one_of_its_calls_is_a_dead_letter(runs: Runs, world: World) -> None:
    first = runs.start()
    (claim,) = runs.claim()
    world.settle([claim], aborted())
    run = world.store.http_runs.get("wfr_1")
    assert run is not None
    assert run.state == "failed"
    world.store.acts.replay(Filter(ids=(claim.id,)), SOMEBODY)
    run = world.store.http_runs.get("wfr_1")
    assert run is not None
    assert run.state == "started"
    assert runs.body(first.id) == [{"body": "begin"}]


def test_an_ended_run_is_pruned_with_its_steps_and_one_that_waits_is_not(runs: Runs, world: World) -> None:
    for run in ("wfr_1", "wfr_2", "wfr_3"):
        runs.start(run)
    world.settle(runs.claim())
    runs.acts.notify("kept", b"1", "wfr_1")
    runs.acts.finish("wfr_1", b"")
    runs.acts.wait("wfr_2", "paid", Wait(step=WAIT, timeout="30d"))
    world.advance(8 * DAY)
    pruned = world.store.retention.prune(history_ttl=7 * DAY)
    assert pruned.http_runs == 2  # the third is abandoned: nothing of it waits
    left = [row.id for row in world.store.http_runs.find(RunFilter())]
    assert left == ["wfr_2"]
    assert {run for (run,) in world.sql("select run_id from todoku_http_run_step")} == {"wfr_2"}
    assert world.sql("select run_id from todoku_http_event") == []


def test_texts_of_runs_are_encrypted_if_requests_are(runs: Runs, world: World) -> None:
    sealed = Runs(world, encrypt="all", master_keys=MASTER)
    sealed.start(body=b"a secret beginning")
    sealed.acts.notify("paid", b"a secret event", "wfr_1")
    one = sealed.step(1, "a secret result")
    columns = {"request": "run", "result": "run", "body": "run_step", "data": "event"}
    stored = str([world.sql(f"select {column} from todoku_http_{table}") for column, table in columns.items()])
    assert "secret" not in stored
    assert base64.b64encode(b"a secret").decode()[:10] not in stored
    assert "X-Own" not in stored
    assert sealed.body(one.id) == [{"body": "a secret beginning"}, json.loads(step(1, "a secret result"))]
    with pytest.raises(CannotOpen):
        runs.body(one.id)

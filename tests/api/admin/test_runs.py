"""Runs of workflows over HTTP: the steps of one, and what an operator does with it."""

from __future__ import annotations

from unittest.mock import ANY
from uuid import UUID

import pytest

from tests.support.serving import Server
from tests.support.world import World, aborted
from todoku.core.decision import park
from todoku.core.flow import RUN, StepRow

UNDO = '{"function":"shop:refund","arguments":[]}'
CHARGED = StepRow("charge:1", 1, "charge", "step", "done", '{"order":7,"token":"secret"}', '{"paid":7}', undo=UNDO)
ASKED = StepRow("wait:1", 2, "wait", "wait", "open", '"approval"', awaits="approval")


@pytest.fixture
def waiting(world: World) -> UUID:
    """A run that has charged, and waits for an approval."""
    (message,) = world.publish(topic="fulfil", to=["fulfil"], headers={RUN: "auto"}, idempotency_key="order/7")
    (claim,) = world.claim(world.worker(lease=600), destinations=["fulfil"])
    world.store.runs.store_steps([(claim, CHARGED), (claim, ASKED)])
    world.settle([claim], park(3600))
    return message.id


@pytest.fixture
def dead(world: World) -> UUID:
    """A run that has charged, and whose worker was lost too often: it is not undone by itself (R5)."""
    (message,) = world.publish(topic="fulfil", to=["fulfil"], headers={RUN: "auto"})
    (claim,) = world.claim(world.worker(lease=600), destinations=["fulfil"])
    world.store.runs.store_steps([(claim, CHARGED)])
    world.settle([claim], aborted("WORKER_LOST"))
    return message.id


def acts(world: World) -> list[tuple[str, str]]:
    return [(row.act.action, row.act.why) for row in world.store.audit.page() if row.act.by != "todoku"]


def test_a_run_is_looked_at_with_its_steps_masked(server: Server, waiting: UUID, world: World) -> None:
    found = server.ask("GET", f"/runs/{waiting}")
    assert (found["id"], found["workflow"], found["status"]) == (str(waiting), "fulfil", "pending")
    first, second = found["steps"]
    assert (first["arguments"], first["undoable"]) == ({"order": 7, "token": "***"}, True)
    assert (second["state"], second["signal"]) == ("waiting", "approval")
    (job,) = world.publish(topic="job", to=["job"])
    server.ask("GET", f"/runs/{job.id}", status=422)
    server.ask("GET", "/runs/01234567-89ab-7cde-8f01-23456789abcd", status=404)


def test_a_run_gets_a_signal(server: Server, waiting: UUID, world: World) -> None:
    path, body = f"/runs/{waiting}/signal", {"name": "approval", "payload": {"by": "ada"}, "why": "she said so"}
    answer = {"run": str(waiting), "steps": ["wait"], "dry_run": True}
    assert server.ask("POST", path, json=body | {"dry_run": True}) == answer
    assert server.ask("POST", path, json=body) == answer | {"dry_run": False}
    assert ("signal approval", "she said so") in acts(world)
    assert world.sql("select name, payload from todoku_signal") == [("approval", '{"by":"ada"}')]
    server.ask("POST", path, json={"name": "approval"}, status=422)  # why?


def test_a_run_is_found_and_gets_a_signal_by_its_key(server: Server, waiting: UUID, world: World) -> None:
    assert server.ask("GET", "/runs/by-key?idempotency_key=order/7") == server.ask("GET", f"/runs/{waiting}") | {
        "now": ANY, "steps": ANY,
    }  # fmt: skip
    path, body = "/runs/by-key/signal?idempotency_key=order/7", {"name": "approval", "payload": 1, "why": "she said so"}
    assert server.ask("POST", path, json=body) == {"run": str(waiting), "steps": ["wait"], "dry_run": False}
    assert ("signal approval", "she said so") in acts(world)
    assert world.sql("select name, payload from todoku_signal") == [("approval", "1")]
    server.ask("GET", "/runs/by-key?idempotency_key=order/8", status=404)
    server.ask("GET", "/runs/by-key", status=422)
    world.publish(topic="review", to=["review"], headers={RUN: "auto"}, idempotency_key="order/7")
    refused = server.ask("POST", path, json=body, status=422)
    assert "several runs" in refused["detail"]
    assert len(world.sql("select * from todoku_signal")) == 1


def test_a_dead_run_is_rewound_to_a_step(server: Server, dead: UUID, world: World) -> None:
    path = f"/runs/{dead}/rewind"
    server.ask("POST", path, json={"why": "mended"}, status=422)
    server.ask("POST", path, json={"why": "mended", "to": "pay"}, status=422)
    assert server.ask("POST", path, json={"why": "mended", "to": "charge"})["steps"] == ["charge"]
    assert {("rewind to charge", "mended"), ("replay", "mended")} <= set(acts(world))
    assert [row.status for row in world.deliveries()] == ["pending"]


def test_a_dead_run_is_undone_once(server: Server, dead: UUID, world: World) -> None:
    path = f"/runs/{dead}/undo"
    assert server.ask("POST", path, json={"why": "too late"})["steps"] == ["charge"]
    assert ("undo", "too late") in acts(world)
    assert sorted(row.destination for row in world.deliveries()) == ["fulfil", "fulfil.undo"]
    server.ask("POST", path, json={"why": "again"}, status=422)

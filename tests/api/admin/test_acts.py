"""Bulk acts over HTTP: counted, started, looked at, stopped; with the name of the token in the audit."""

from __future__ import annotations

import time
from typing import Any
from uuid import uuid4

import pytest

from tests.support.serving import Server
from tests.support.world import World

PATIENCE = 60.0


def until_ended(server: Server, id: str) -> dict[str, Any]:
    deadline = time.monotonic() + PATIENCE
    while True:
        act: dict[str, Any] = server.ask("GET", f"/acts/{id}", scope="read")
        if act["state"] in ("finished", "stopped", "failed"):
            return act
        assert time.monotonic() < deadline, act
        time.sleep(0.01)


def test_an_act_is_counted_then_started_and_ends(server: Server, dead: list[int], world: World) -> None:
    """Issue 13: preview count first, then who and why."""
    asked = {"act": "replay", "reason": "REFUSED", "why": "the receiver is back"}
    assert server.ask("POST", "/acts", json=asked | {"dry_run": True}) == {
        "number": 2, "skipped": {}, "act": None, "complete": True,
    }  # fmt: skip
    assert len(world.deliveries(status="aborted")) == 3
    started = server.ask("POST", "/acts", json=asked | {"rate": 1000, "limit": 5}, scope="operate")
    act = until_ended(server, started["act"]["id"])
    assert (act["state"], act["done"], act["total"], act["by"]) == ("finished", 2, 2, "ada")
    assert [row["id"] for row in server.ask("GET", "/acts")["items"]] == [act["id"]]
    entries = server.ask("GET", f"/audit?target=act:{act['id']}")["items"]
    assert [row["act"]["action"] for row in entries] == ["end replay, finished: 2 of 2", "start replay of 2"]
    assert {row["act"]["by"] for row in entries} == {"ada"}


def test_an_act_takes_what_a_search_finds(server: Server, dead: list[int], world: World) -> None:
    asked = {"act": "purge", "q": "status:aborted reason:REFUSED", "why": "junk"}
    counted = server.ask("POST", "/acts", json=asked | {"dry_run": True})
    assert counted == {"number": 2, "skipped": {}, "act": None, "complete": True}
    act = until_ended(server, server.ask("POST", "/acts", json=asked)["act"]["id"])
    assert (act["state"], act["done"], act["selected"]) == ("finished", 2, [asked["q"]])
    assert [row.id for row in world.deliveries(status="aborted")] == dead[2:]
    for more in ({"reason": "REFUSED"}, {"ids": dead}, {"status": "aborted"}):
        assert "cannot both" in server.ask("POST", "/acts", json=asked | more, status=422)["detail"]
    server.ask("POST", "/acts", json=asked | {"q": "status:dead"}, status=422)


def test_an_act_is_stopped_with_a_reason(server: Server, dead: list[int], world: World) -> None:
    started = server.ask("POST", "/acts", json={"act": "purge", "all": True, "why": "junk", "rate": 0.05})
    id = started["act"]["id"]
    server.ask("POST", f"/acts/{id}/stop", json={}, status=422)
    server.ask("POST", f"/acts/{id}/stop", json={"why": "not all of it"})
    assert until_ended(server, id)["state"] == "stopped"
    assert world.deliveries(status="aborted"), "some are left"


@pytest.mark.parametrize(
    "body",
    [
        {"act": "replay", "why": "everything, by mistake"},
        {"act": "replay", "all": True},
        {"act": "replay", "all": True, "why": " "},
        {"act": "explode", "all": True, "why": "x"},
        {"act": "purge", "all": True, "why": "x", "rate": 0},
        {"act": "purge", "all": True, "why": "x", "limit": 0},
        {"act": "again", "reason": "REFUSED", "why": "a success has no reason"},
    ],
)
def test_a_bad_act_is_refused_and_nothing_is_started(server: Server, dead: list[int], body: dict[str, Any]) -> None:
    assert server.ask("POST", "/acts", json=body, status=422)["detail"]
    assert server.ask("GET", "/acts")["items"] == []


def test_readers_look_and_operators_act(server: Server, dead: list[int]) -> None:
    server.ask("POST", "/acts", json={"act": "purge", "all": True, "why": "x"}, scope="read", status=403)
    server.ask("GET", f"/acts/{uuid4()}", scope="read", status=404)
    server.ask("POST", f"/acts/{uuid4()}/stop", json={"why": "x"}, scope="read", status=403)

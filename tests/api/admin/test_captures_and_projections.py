"""Captures and projections: what reads tables, and what follows events."""

from __future__ import annotations

import pytest

from tests.support.serving import Server
from tests.support.world import World
from todoku.core.capture import table_rule
from todoku.store.capture_portions import Fence, Portion, TableProgress


@pytest.fixture
def fence(world: World) -> Fence:
    """A capture that a worker reads; one of its tables was declared without a snapshot."""
    rules = [table_rule("orders", "orders.{op}", "id"), table_rule("shop.lines", "lines", ("id", "n"))]
    world.store.captures.declare("shop/main", rules, snapshot={"public.orders": True, "shop.lines": False})
    row = world.store.captures.take("shop/main", world.worker(name="reader", lease=600))
    assert row is not None
    return row.fence


def acts(world: World) -> list[tuple[str, str, str]]:
    found = [(row.act.action, row.act.target, row.act.why) for row in world.store.audit.page()]
    return [act for act in found if act[1].startswith(("capture:", "projection:"))]


def test_captures_are_listed_and_looked_at(server: Server, world: World, fence: Fence) -> None:
    kept = world.store.captures
    page = TableProgress(table="public.orders", position="[1]", copied=7, expected=9, phase="reading")
    kept.store(fence, Portion(lsn=255, drafts=world.drafts(3), page=page), notify=False)
    kept.measure(fence, behind=12, retained=4096)
    kept.warn(fence, ["its disk may fill"])
    kept.set_state("shop/main", "away", reason="SOURCE_AWAY", why="no answer", fence=fence)
    (one,) = server.ask("GET", "/captures")["items"]
    assert one == server.ask("GET", "/captures/shop/main")
    known = {
        "name": "shop/main", "state": "away", "reason": "SOURCE_AWAY", "why": "no answer", "down": False,
        "reader": "reader", "lsn": "0/FF", "behind_bytes": 12, "retained_bytes": 4096, "changes": 3, "generation": 1,
        "warnings": ["its disk may fill"],
    }  # fmt: skip
    assert one | known == one
    assert one["tables"] == [
        {"table": "public.orders", "topic": "orders.{op}", "key": ["id"], "snapshot": True, "phase": "reading",
         "copied": 7, "expected": 9, "generation": 1},
        {"table": "shop.lines", "topic": "lines", "key": ["id", "n"], "snapshot": False, "phase": "done",
         "copied": 0, "expected": 0, "generation": 1},
    ]  # fmt: skip
    server.ask("GET", "/captures/nothing", status=404)


def test_the_rows_of_a_capture_are_published_anew(server: Server, world: World, fence: Fence) -> None:
    path = "/captures/shop/main/snapshot"
    done = server.ask("POST", path, json={"why": "a bug", "tables": ["shop.lines"]})
    assert done == {"name": "shop/main", "tables": ["shop.lines"], "new_slot": False}
    world.store.captures.set_state("shop/main", "stopped", reason="SLOT_LOST", why="lost", fence=None)
    server.ask("POST", path, json={"why": "a part", "tables": ["orders"]}, status=422)
    assert server.ask("POST", path, json={"why": "lost"}) == {
        "name": "shop/main", "tables": ["public.orders"], "new_slot": True
    }  # fmt: skip
    assert server.ask("GET", "/captures/shop/main")["state"] == "starting"
    assert world.store.captures.store(fence, Portion(lsn=1), notify=False) == "lost"
    assert acts(world)[::-1] == [
        ("snapshot of shop.lines", "capture:shop/main", "a bug"), ("stop", "capture:shop/main", "lost"),
        ("snapshot", "capture:shop/main", "lost"),
    ]  # fmt: skip
    for wrong in ({}, {"why": ""}, {"why": "x", "tables": []}, {"why": "x", "table": "orders"}):
        server.ask("POST", path, json=wrong, status=422)
    server.ask("POST", path, json={"why": "x", "tables": ["nothing"]}, status=422)
    server.ask("POST", "/captures/nothing/snapshot", json={"why": "x"}, status=404)


def test_projections_are_listed_and_their_flag_is_set(server: Server, world: World) -> None:
    assert server.ask("GET", "/projections") == {"items": []}
    world.store.projections.declare("documents", "search", "docs-1")
    world.publish(2, to=["documents"], ordered=True, key="k")
    assert server.ask("PUT", "/projections/documents/readers", json={"on": True, "why": "it is complete"}) == {
        "name": "documents", "on": True
    }  # fmt: skip
    (one,) = server.ask("GET", "/projections")["items"]
    known = {"name": "documents", "kind": "search", "state": "running", "why": None, "readers": True, "lag_events": 2,
             "lag_complete": True}  # fmt: skip
    assert one | known == one
    assert [(index["name"], index["role"], index["phase"]) for index in one["indexes"]] == [
        ("docs-1", "live", "waiting")
    ]  # fmt: skip
    world.store.projections.stop("documents", "its index is ahead")
    again = server.ask("GET", "/projections/documents")
    assert (again["state"], again["why"]) == ("stopped", "its index is ahead")
    server.ask("PUT", "/projections/documents/readers", json={"on": False, "why": "it is wrong"})
    assert server.ask("GET", "/projections/documents")["readers"] is False
    assert [act for act in acts(world)[::-1] if act[0] != "stop"] == [
        ("readers on", "projection:documents", "it is complete"), ("readers off", "projection:documents", "it is wrong")
    ]  # fmt: skip
    server.ask("PUT", "/projections/documents/readers", json={"why": "which?"}, status=422)
    server.ask("PUT", "/projections/nothing/readers", json={"on": True, "why": "x"}, status=404)
    server.ask("GET", "/projections/nothing", status=404)


@pytest.mark.parametrize(
    ("method", "path"), [("POST", "/captures/main/snapshot"), ("PUT", "/projections/documents/readers")]
)
def test_changes_need_a_token_that_may_operate(server: Server, method: str, path: str) -> None:
    answer = server.client("read").request(method, f"/api/v1{path}", json={"why": "a test", "on": True})
    assert answer.status_code == 403

"""Workers, the ledger, statistics, tokens; and what nobody may ask."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from tests.support.serving import Server
from tests.support.world import World, failed


def test_workers_are_listed_with_what_they_hold(server: Server, world: World) -> None:
    world.publish(2)
    world.claim(world.worker(name="host:7"))
    (worker,) = server.ask("GET", "/workers")["items"]
    assert (worker["lease"]["name"], worker["lease"]["held"], worker["alive"]) == ("host:7", 2, True)


def test_the_ledger_tells_what_it_knows_of_a_key(server: Server, world: World) -> None:
    (message,) = world.publish(1, topic="order.paid", idempotency_key="o-1")
    entry = server.ask("GET", "/ledger", params={"scope": "publish:order.paid", "key": "o-1"})
    assert entry["entry"]["message_id"] == str(message.id)
    server.ask("GET", "/ledger", params={"scope": "publish:order.paid", "key": "o-2"}, status=404)


def test_statistics_count_by_status_destination_and_reason(server: Server, dead: list[int]) -> None:
    """S4-6, S4-54."""
    found = server.ask("GET", "/statistics")
    assert found["counts"] == {"pending": 1, "sending": 0, "succeeded": 0, "failed": 0, "aborted": 3}
    refused = next(row for row in found["by"] if row["reason"] == "REFUSED")
    assert (refused["destination"], refused["number"]) == ("warehouse", 2)
    assert (found["exact"], found["workers"], found["lag"]["dead"]) == (True, 1, 3)
    assert found["parked"] == {"keys": 0, "waiting": 0, "example": None}


def test_the_course_of_an_hour_is_told_minute_by_minute(server: Server, world: World) -> None:
    world.publish(3)
    claims = world.claim(world.worker(lease=3600))
    world.settle(claims[:2])
    world.settle(claims[2:], failed())
    found = server.ask("GET", "/series")
    assert len(found["points"]) == 60
    assert found["exact"] is True
    assert (sum(row["succeeded"] for row in found["points"]), sum(row["failed"] for row in found["points"])) == (2, 1)
    hourly = server.ask("GET", "/series?per=hour")
    assert sum(row["succeeded"] for row in hourly["points"]) == 2


def test_a_token_is_made_shown_once_and_revoked(server: Server) -> None:
    made = server.ask("POST", "/tokens", json={"name": "shop", "scopes": ["publish"], "why": "the shop"}, status=201)
    listed = server.client("admin").get("/api/v1/tokens")
    assert made["text"] not in listed.text
    assert made["token"]["id"] in [row["id"] for row in listed.json()["items"]]
    revoked = server.ask("DELETE", f"/tokens/{made['token']['id']}", params={"why": "the shop closed"})
    assert revoked["alive"] is False
    server.ask("DELETE", f"/tokens/{uuid4()}", params={"why": "no such"}, status=404)


UNACCEPTABLE: list[tuple[str, str, Any]] = [
    ("GET", "/deliveries?colour=red", None),
    ("GET", "/deliveries?limit=1&limit=2", None),
    ("GET", "/deliveries?limit=0", None),
    ("GET", "/deliveries?cursor=zebra", None),
    ("GET", "/deliveries?topic=a%00b", None),
    ("GET", "/deliveries?since=0001-01-01T00:00:00%2B14:00", None),
    ("GET", "/workers?verbose=1", None),
    ("GET", "/deliveries/0", None),
    ("GET", "/deliveries/99999999999999999999", None),
    ("GET", "/messages/7", None),
    ("POST", "/dead-letters/replay", {"all": True, "why": "x", "by": "somebody else"}),
    ("POST", "/dead-letters/replay", {"all": True}),
    ("POST", "/dead-letters/replay", {"all": True, "why": " "}),
    ("POST", "/dead-letters/replay", []),
    ("POST", "/queues/a/pause", {"why": "a\0"}),
    ("PUT", "/queues/a/limit", {"concurrency": 0, "why": "x"}),
    ("PUT", "/queues/a/limit", {"rate": "many", "why": "x"}),
    ("POST", "/tokens", {"name": "x", "scopes": ["root"], "why": "x"}),
    ("GET", "/series?since=2026-01-01T00:00:00Z&until=2025-01-01T00:00:00Z", None),
    ("GET", "/series?per=day", None),
    ("GET", "/series?since=1", None),
    ("GET", "/series?since=2020-01-01T00:00:00Z&until=2025-01-01T00:00:00Z", None),
]


def test_what_is_not_acceptable_is_named_and_changes_nothing(server: Server, dead: list[int]) -> None:
    before = server.ask("GET", "/audit")
    for method, path, body in UNACCEPTABLE:
        problem = server.ask(method, path, status=422, **({} if body is None else {"json": body}))
        assert problem["error"] == problem["detail"]
        assert len(problem["detail"]) > 10
    assert server.ask("GET", "/statistics")["counts"]["aborted"] == 3
    assert server.ask("GET", "/audit") == before

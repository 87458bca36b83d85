"""Queues, destinations, schedules, endpoints: what keeps work back, and what makes it."""

from __future__ import annotations

from typing import Any

import todoku
from tests.support.serving import Server
from tests.support.world import World
from todoku.engine.http import url_groups
from todoku.engine.http.url_groups import EndpointName
from todoku.store.audit import Signed


def test_a_queue_is_paused_limited_and_resumed(server: Server, world: World) -> None:
    world.publish(1)
    assert server.ask("POST", "/queues/warehouse/pause", json={"why": "deploy"})["paused"] is True
    assert world.claim(world.worker()) == []
    server.ask("PUT", "/queues/warehouse/limit", json={"concurrency": 3, "rate": 2.5, "why": "gently"})
    (queue,) = [row for row in server.ask("GET", "/queues")["items"] if row["name"] == "warehouse"]
    known = {"name": "warehouse", "paused": True, "concurrency": 3, "rate": 2.5, "waiting": True}
    assert queue | known | {"due": 1, "later": 0, "exact": True, "running": 0, "slots": 3} == queue
    server.ask("POST", "/queues/warehouse/resume", json={"why": "deployed"})
    server.ask("PUT", "/queues/warehouse/limit", json={"why": "as fast as it goes"})
    assert len(world.claim(world.worker())) == 1


def test_a_queue_may_be_called_anything(server: Server) -> None:
    """Names of flow keys have slashes, colons and spaces in them."""
    name = "flow:shop/7 über"
    server.ask("POST", f"/queues/{name}/pause", json={"why": "a test"})
    assert name in [row["name"] for row in server.ask("GET", "/queues")["items"] if row["paused"]]


def test_a_destination_is_limited(server: Server) -> None:
    server.ask("PUT", "/destinations/https://example.com/limit", json={"concurrency": 2, "why": "they asked"})
    (found,) = [row for row in server.ask("GET", "/destinations")["items"] if row["name"] == "https://example.com"]
    assert found["concurrency"] == 2


def test_a_schedule_is_stored_paused_run_and_removed(server: Server, box: todoku.App, world: World) -> None:
    """S4-59."""

    @box.on("reminder.due", name="remind")
    def remind(_: dict[str, Any]) -> None: ...

    new = {"name": "reminders", "topic": "reminder.due", "payload": {"n": 1}, "cron": "0 9 * * *", "tz": "Asia/Tokyo",
           "why": "every morning"}  # fmt: skip
    stored = server.ask("POST", "/schedules", json=new, status=201)
    assert stored["name"] == "reminders"
    server.ask("POST", "/schedules/reminders/pause", json={"why": "holidays"})
    (schedule,) = server.ask("GET", "/schedules")["items"]
    assert (schedule["paused"], schedule["when"], schedule["tz"]) == (True, "0 9 * * *", "Asia/Tokyo")
    ran = server.ask("POST", "/schedules/reminders/run", json={"why": "now, please"})
    assert ran["message_id"] == server.ask("GET", "/schedules")["items"][0]["last_message_id"]
    assert [row.topic for row in world.deliveries()] == ["reminder.due"]
    server.ask("POST", "/schedules/reminders/resume", json={"why": "back"})
    server.ask("DELETE", "/schedules/reminders", params={"why": "over"})
    server.ask("DELETE", "/schedules/reminders", params={"why": "over"}, status=404)


def test_a_schedule_may_call_a_job(server: Server, box: todoku.App) -> None:
    @box.job
    def tidy(days: int) -> None: ...

    job = {"name": "tidy", "job": "tidy", "payload": {"days": 3}, "every": 3600, "why": "hourly"}
    server.ask("POST", "/schedules", json=job, status=201)
    for wrong in (
        {"payload": {"weeks": 3}},
        {"payload": [3]},
        {"job": "nobody"},
        {"cron": "* * * * *"},
        {"topic": "x"},
    ):
        server.ask("POST", "/schedules", json=job | {"name": "other"} | wrong, status=422)
    assert [row["name"] for row in server.ask("GET", "/schedules")["items"]] == ["tidy"]


def test_an_endpoint_is_disabled_and_enabled(server: Server, box: todoku.App) -> None:
    url_groups.put(box.store, "shops", [EndpointName(url="https://example.com/a")], Signed("ada", "a test"))
    given = {"url": "https://example.com/a", "why": "it is gone"}
    assert server.ask("POST", "/endpoints/disable", json=given)["changed"] is True
    assert server.ask("POST", "/endpoints/disable", json=given)["changed"] is False, "it was already"
    (group,) = server.ask("GET", "/groups")["items"]
    assert [(row["enabled"], row["reason"]) for row in group["endpoints"]] == [(False, "it is gone")]
    assert server.ask("POST", "/endpoints/enable", json=given)["changed"] is True

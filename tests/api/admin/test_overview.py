"""The overview, queues and endpoints as the admin API tells them, and the rotation of signing keys."""

from __future__ import annotations

from tests.support.serving import Server
from tests.support.world import World, aborted, failed
from todoku.core.decision import SUCCEEDED


def busy(world: World) -> None:
    """Three deliveries succeed in 40 ms each, one is retried, one is dead, one waits, one worker runs one."""
    worker = world.worker(name="ada")
    world.publish(6)
    claims = world.claim(worker, limit=6)
    run = {claim.id: 40 for claim in claims}
    world.store.claims.settle([(claim, SUCCEEDED) for claim in claims[:3]], run)
    world.store.claims.settle([(claims[3], failed("HTTP_5XX", delay=3600)), (claims[4], aborted("REFUSED"))], run)
    world.publish(1)


def test_the_overview_tells_what_happened(server: Server, world: World) -> None:
    busy(world)
    found = server.ask("GET", "/overview")
    flows = {name: sum(flow[name] for flow in found["flows"]) for name in ("arrived", "succeeded", "retried", "failed")}
    assert flows == {"arrived": 7, "succeeded": 3, "retried": 1, "failed": 1}
    assert len(found["flows"]) == 60
    assert found["counts"] == {"pending": 1, "sending": 1, "succeeded": 3, "failed": 1, "aborted": 1}
    assert (found["backlog"]["due"], found["eta"]["trend"]) == (1, "grows")
    assert found["durations"]["run"] == {"p50": 0.04, "p95": 0.04, "p99": 0.04, "number": 3}
    assert found["durations"]["end_to_end"]["number"] == found["durations"]["queued"]["number"] == 3
    assert [(one["reason"], one["number"]) for one in found["dead"]] == [("REFUSED", 1)]
    assert [(one["name"], one["held"], one["alive"]) for one in found["workers"]] == [("ada", 1, True)]
    assert [one["name"] for one in found["queues"]] == ["warehouse"]
    assert "dead_letters" in {one["name"] for one in found["alerts"]}


def test_the_overview_of_nothing_is_empty(server: Server) -> None:
    found = server.ask("GET", "/overview", params={"per": "hour"})
    assert (len(found["flows"]), found["eta"], found["alerts"]) == (48, {"trend": "empty", "seconds": 0.0}, [])
    assert found["durations"] == {"end_to_end": None, "queued": None, "run": None}
    server.ask("GET", "/overview", params={"per": "day"}, status=422)


def test_a_queue_tells_its_depth_and_what_it_gets_done(server: Server, world: World) -> None:
    busy(world)
    (queue,) = server.ask("GET", "/queues")["items"]
    told = {name: queue[name] for name in ("due", "later", "exact", "running", "waiting")}
    assert told == {"due": 1, "later": 1, "exact": True, "running": 1, "waiting": True}
    assert sum(queue["per_minute"]) == 3
    assert 0 < queue["utilisation"] <= 1
    assert queue["eta"]["trend"] == "drains"
    assert queue["throughput"] > 0


def test_a_destination_tells_how_often_it_fails_and_why(server: Server, world: World) -> None:
    busy(world)
    world.store.limits.set_breaker("warehouse", open_for=60, failures=5)
    found = server.ask("GET", "/endpoints")
    (one,) = found["items"]
    assert (one["kind"], one["succeeded"], one["failed"], one["success_rate"]) == ("destination", 3, 2, 0.6)
    assert one["open_until"] > world.store.ping()
    assert one["last_failure"]["reason"] in ("HTTP_5XX", "REFUSED")
    assert one["run"]["number"] == 5
    assert server.ask("GET", "/endpoints", params={"search": "nobody"}) == {"items": [], "total": 0}


def test_hosts_are_endpoints_and_the_name_for_all_of_them_is_not(server: Server, world: World) -> None:
    world.store.destinations.announce(["https://"])
    world.publish(1, to=("https://example.com",))
    world.settle(world.claim(world.worker()))
    (one,) = server.ask("GET", "/endpoints")["items"]
    assert (one["name"], one["kind"]) == ("https://example.com", "host")
    assert one["seen_at"] is not None


def test_signing_keys_are_rotated_by_admins_with_a_reason(server: Server, world: World) -> None:
    first = server.client("admin").get("/v2/keys").json()
    found = server.ask("POST", "/signing-keys/rotate", json={"why": "a key leaked"})
    assert found["current"] == first["next"]
    assert found["next"] not in first.values()
    server.ask("POST", "/signing-keys/rotate", scope="operate", json={"why": "a key leaked"}, status=403)
    server.ask("POST", "/signing-keys/rotate", json={}, status=422)
    newest = world.store.audit.page(action="rotate")[0]
    assert (newest.act.action, newest.act.why) == ("rotate", "a key leaked")


def test_viewers_share_what_was_read_and_see_their_own_acts(server: Server, world: World) -> None:
    world.publish(1)
    assert server.ask("GET", "/queues")["items"][0]["due"] == 1
    server.ask("POST", "/queues/warehouse/pause", json={"why": "a test"})
    assert server.ask("GET", "/queues")["items"][0]["paused"] is True

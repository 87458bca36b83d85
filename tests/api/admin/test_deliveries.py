"""Deliveries and messages: found by what they are, told with everything that happened to them."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta

import msgspec

import todoku
from tests.support.serving import Server
from tests.support.world import World, aborted, failed
from todoku.core.http_request import HttpRequest
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.outbox import new_id


def test_deliveries_are_listed_newest_first_page_by_page(server: Server, world: World) -> None:
    """I1: everything that was published is found; the cursor of a page leads to the next."""
    world.publish(5)
    first = server.ask("GET", "/deliveries?limit=3", scope="read")
    rest = server.ask("GET", f"/deliveries?limit=3&cursor={first['next']}")
    ids = [row["id"] for row in (*first["items"], *rest["items"])]
    assert ids == sorted((row.id for row in world.deliveries()), reverse=True)
    assert rest["next"] is None


def test_deliveries_are_found_by_what_they_are(server: Server, dead: list[int]) -> None:
    found = server.ask("GET", "/deliveries", params={"status": "pending", "topic": "order.waiting"})
    assert [row["topic"] for row in found["items"]] == ["order.waiting"]
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert server.ask("GET", "/deliveries", params={"since": tomorrow})["items"] == []
    assert len(server.ask("GET", "/deliveries", params={"until": tomorrow})["items"]) == 4


def test_a_delivery_says_what_keeps_it_waiting(server: Server, world: World) -> None:
    world.publish(1)
    (row,) = world.deliveries()
    server.ask("POST", f"/queues/{row.queue}/pause", json={"why": "a test"})
    story = server.ask("GET", f"/deliveries/{row.id}")
    assert story["delivery"]["status"] == "pending"
    assert "paused" in [cause["cause"] for cause in story["because"]]


def test_a_delivery_that_succeeded_is_found_too(server: Server, world: World) -> None:
    world.publish(1)
    (claim,) = world.claim(world.worker())
    world.settle([claim])
    story = server.ask("GET", f"/deliveries/{claim.id}")
    assert (story["delivery"]["status"], story["because"]) == ("succeeded", [])
    assert server.ask("GET", "/deliveries?status=succeeded")["items"][0]["id"] == claim.id


def test_a_success_is_replayed_only_as_a_new_message(server: Server, world: World) -> None:
    (message,) = world.publish(1)
    (claim,) = world.claim(world.worker())
    world.settle([claim])
    path, why = f"/deliveries/{claim.id}/replay", {"why": "the template was wrong"}
    refused = server.ask("POST", path, json=why, status=422)
    assert "again" in refused["detail"]
    dry = server.ask("POST", path, json={**why, "again": True, "dry_run": True}, scope="operate")
    assert dry == {"matched": 1, "replayed": 1, "skipped": {}}
    assert world.deliveries() == []
    done = server.ask("POST", path, json={**why, "again": True}, scope="operate")
    (new,) = done.pop("messages")
    assert done == {"matched": 1, "replayed": 1, "skipped": {}}
    label = f"todoku.again_of:{message.id}"
    assert server.ask("GET", f"/messages/{new}")["labels"] == [label]
    found = server.ask("GET", "/deliveries", params={"label": label})
    assert [row["message_id"] for row in found["items"]] == [new]
    assert server.ask("POST", "/deliveries/999/replay", json=why, status=404)["detail"].startswith("there is no")


def test_deliveries_are_replayed_by_what_they_are(server: Server, dead: list[int], world: World) -> None:
    done = server.ask("POST", "/deliveries/replay", json={"ids": dead[:1], "why": "a test"})
    assert done == {"matched": 1, "replayed": 1, "skipped": {}}
    world.settle(world.claim(world.worker()))
    again = server.ask("POST", "/deliveries/replay", json={"ids": dead[:1], "why": "a test"})
    assert again == {"matched": 0, "replayed": 0, "skipped": {"is succeeded": 1}}  # repeating it is harmless
    many = server.ask("POST", "/deliveries/replay", json={"all": True, "again": True, "limit": 1, "why": "a test"})
    assert (many["replayed"], len(many["messages"])) == (1, 1)
    assert "all deliveries" in server.ask("POST", "/deliveries/replay", json={"why": "x"}, status=422)["detail"]


def test_a_failed_attempt_is_told_with_what_was_answered(server: Server, world: World) -> None:
    """S4-6: the cause of a failure is found, down to the receiver's own words."""
    world.publish(1)
    (claim,) = world.claim(world.worker())
    world.settle([claim], failed("HTTP_5XX", delay=60))
    stored = {"status": 500, "headers": {"Content-Type": "text/plain"}, "body": base64.b64encode(b"no\n").decode()}
    world.sql("update todoku_attempt set response_status = 500, response = ?", msgspec.json.encode(stored).decode())
    (attempt,) = server.ask("GET", f"/deliveries/{claim.id}/attempts")["items"]
    assert (attempt["reason"], attempt["number"], attempt["response"]["status"]) == ("HTTP_5XX", 1, 500)
    assert attempt["response"]["body"] == "no\n"
    assert attempt["response"]["headers"] == {"Content-Type": "text/plain"}


def test_what_waits_is_cancelled(server: Server, dead: list[int], world: World) -> None:
    (waiting,) = world.deliveries(status="pending")
    assert server.ask("POST", f"/deliveries/{waiting.id}/cancel", json={"why": "not needed"})["changed"] == 1
    assert world.deliveries(ids=(waiting.id,))[0].reason == "CANCELLED"
    server.ask("POST", "/deliveries/999999/cancel", json={"why": "not there"}, status=404)


def test_a_message_tells_its_story_with_stars_where_nobody_may_look(server: Server, world: World) -> None:
    (message,) = world.publish(1, payload=lambda _: {"amount": 7, "card_number": "4242"}, headers={"a": "b"})
    (claim,) = world.claim(world.worker())
    world.settle([claim], aborted())
    server.ask("POST", f"/dead-letters/{claim.id}/replay", json={"why": "fixed"})
    story = server.ask("GET", f"/messages/{message.id}")
    assert story["payload"] == {"amount": 7, "card_number": "***"}
    assert story["headers"] == {"a": "b"}
    assert [row["id"] for row in story["deliveries"]] == [claim.id]
    assert [row["reason"] for row in story["attempts"]] == ["REFUSED"]
    assert [(row["by"], row["action"], row["why"]) for row in story["audit"]] == [("ada", "replay", "fixed")]


def test_a_request_is_shown_without_its_secrets(server: Server, box: todoku.App) -> None:
    """webhooks.md §3: a forwarded Authorization is a secret; so is a redacted body."""
    request = HttpRequest(
        url="https://example.com/x", headers={"Authorization": "Bearer s3cret", "X-Shop": "7"}, redact=("body",)
    )
    draft = request_draft(new_id(), request, b"card 4242", Posting(), max_payload_bytes=1000)
    (message,) = box.outbox.put([draft], None, twin="")
    answer = server.client("read").get(f"/api/v1/messages/{message.id}")
    assert "s3cret" not in answer.text
    assert base64.b64encode(b"card 4242").decode() not in answer.text
    story = answer.json()
    assert story["request"]["url"] == "https://example.com/x"
    assert story["request"]["headers"] == {"Authorization": "***", "X-Shop": "7"}
    assert story["payload_told"] == "redacted"

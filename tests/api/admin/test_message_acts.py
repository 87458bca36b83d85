"""One message over HTTP: its timeline, opening it, editing it, texts to copy; and new ones."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import todoku
from tests.support.serving import Server
from tests.support.world import World

WHY = {"why": "a test"}


@pytest.fixture
def box(box: todoku.App) -> todoku.App:
    @box.job("charge", max_attempts=1, keep_result=True)
    def charge(amount: int, password: str = "") -> dict[str, str]:
        if amount < 0:
            raise ValueError("negative")
        return {"token": "t0ps3cret", "amount": str(amount)}

    return box


@pytest.fixture
def dead(box: todoku.App) -> todoku.Handle[Any]:
    handle = box.jobs["charge"].using(headers={"X-Api-Key": "k3y"}).enqueue(amount=-5, password="hunter2")
    box.drain()
    return handle


def audit(server: Server) -> list[tuple[str, str, str]]:
    found = server.ask("GET", "/audit")["items"]
    acts = [(row["act"]["by"], row["act"]["action"], row["act"]["target"]) for row in found]
    return [act for act in acts if not act[2].startswith("token:")]


def test_the_timeline_of_a_message(server: Server, dead: todoku.Handle[Any]) -> None:
    found = server.ask("GET", f"/messages/{dead.id}/timeline", scope="read")
    assert [span["kind"] for span in found["spans"]] == ["published", "queue", "attempt", "dead"]
    assert found["spans"][2]["text"].endswith("negative")
    assert found["complete"] is True
    server.ask("GET", "/messages/00000000-0000-0000-0000-000000000000/timeline", status=404)


def test_opening_a_message_is_recorded_before_it_is_shown(server: Server, dead: todoku.Handle[Any]) -> None:
    masked = server.ask("GET", f"/messages/{dead.id}", scope="read")
    assert (masked["payload"]["password"], masked["headers"]) == ("***", {"X-Api-Key": "***"})
    assert '"password": "***"' in masked["payload_text"]
    path = f"/messages/{dead.id}/open"
    server.ask("POST", path, json=WHY, scope="operate", status=403)
    server.ask("POST", path, json={}, scope="admin", status=422)
    assert audit(server) == []
    opened = server.ask("POST", path, json=WHY, scope="admin")
    assert (opened["payload"]["password"], opened["headers"]) == ("hunter2", {"X-Api-Key": "k3y"})
    assert "negative" in opened["attempts"][0]["traceback"]
    assert opened["unreadable"] == []
    assert [act[1:] for act in audit(server)] == [("open", f"message:{dead.id}")]


def test_results_are_masked_until_they_are_opened(server: Server, box: todoku.App) -> None:
    handle = box.jobs["charge"].enqueue(amount=5)
    box.drain()
    (shown,) = server.ask("GET", f"/messages/{handle.id}", scope="read")["results"]
    assert shown["result"] == {"token": "***", "amount": "5"}
    (opened,) = server.ask("POST", f"/messages/{handle.id}/open", json=WHY, scope="admin")["results"]
    assert opened["result"]["token"] == "t0ps3cret"


def test_an_edit_shows_its_difference_then_runs(server: Server, box: todoku.App, dead: todoku.Handle[Any]) -> None:
    number = dead.delivery().id
    path, payload = f"/deliveries/{number}/edit", {"amount": 5, "password": "***"}
    tried = server.ask("POST", path, json={"payload": payload, "dry_run": True}, scope="operate")
    assert '+  "amount": 5,' in tried["diff"]
    assert (tried["message_id"], tried["problems"]) == (None, {})
    wrong = server.ask("POST", path, json={"payload": {"amount": "x"}, "dry_run": True})
    assert wrong["problems"] == {"amount": "Expected `int`, got `str`"}
    server.ask("POST", path, json={"payload": payload}, status=422)
    server.ask("POST", path, json={"payload": {"amount": "x"}, **WHY}, status=422)
    server.ask("POST", path, json={"payload": payload, **WHY}, scope="read", status=403)
    assert audit(server) == []
    done = server.ask("POST", path, json={"payload": payload, "purge": True, **WHY}, scope="operate")
    assert done["purged"] is True
    box.drain()
    new = server.ask("GET", f"/messages/{done['message_id']}")
    assert new["deliveries"][0]["status"] == "succeeded"
    assert new["labels"] == [f"todoku.edited_of:{dead.id}"]
    followers = server.ask("GET", f"/messages/{dead.id}/timeline")["followers"]
    assert {(one["kind"], one["message_id"]) for one in followers} == {("edited", done["message_id"])}


def test_texts_to_copy_have_no_secret(server: Server, dead: todoku.Handle[Any]) -> None:
    made = server.ask("GET", f"/deliveries/{dead.delivery().id}/snippets", scope="read")
    assert "todoku_box.jobs['charge'].enqueue(**arguments)" in made["pytest"]
    assert "'amount': -5" in made["pytest"]
    assert not any("hunter2" in text or "k3y" in text for text in made.values())
    server.ask("GET", "/deliveries/999/snippets", status=404)


def test_the_jobs_that_the_app_declares(server: Server) -> None:
    found = server.ask("GET", "/jobs", scope="read")
    (job,) = found["jobs"]
    assert (job["name"], job["schema"]["required"]) == ("charge", ["amount"])
    assert (found["events"], found["topics"]) == ([], [])


def test_a_job_is_enqueued_by_its_name_and_checked_field_by_field(server: Server, box: todoku.App) -> None:
    body = {"job": "charge", "arguments": {"amount": 5}, "key": "k", "priority": 3, **WHY}
    server.ask("POST", "/enqueue", json=body, scope="publish", status=403)
    made = server.ask("POST", "/enqueue", json=body, scope="operate", status=201)
    (row,) = server.ask("GET", f"/messages/{made['id']}")["deliveries"]
    assert (row["key"], row["priority"], row["destination"]) == ("k", 3, "charge")
    assert [act[1:] for act in audit(server)] == [("publish", f"message:{made['id']}")]
    wrong = server.ask("POST", "/enqueue", json=body | {"arguments": {"amount": "x"}, "dry_run": True}, status=201)
    assert (wrong["id"], wrong["problems"]) == (None, {"amount": "Expected `int`, got `str`"})
    for bad in ({"arguments": {}}, {"job": "nonsense"}, {"delay": -1}, {"priority": 16}, {"why": " "}, {"why": None}):
        server.ask("POST", "/enqueue", json=body | bad, status=422)
    assert len(audit(server)) == 1


def test_an_idempotency_key_publishes_once(server: Server) -> None:
    body = {"job": "charge", "arguments": {"amount": 5}, "idempotency_key": "one", **WHY}
    first = server.ask("POST", "/enqueue", json=body, status=201)
    second = server.ask("POST", "/enqueue", json=body, status=201)
    assert (second["id"], second["duplicate"]) == (first["id"], True)
    server.ask("POST", "/enqueue", json=body | {"arguments": {"amount": 6}}, status=409)
    assert len(audit(server)) == 1


def test_a_topic_is_published_to_its_routes_or_to_a_destination(server: Server, world: World) -> None:
    server.ask("POST", "/publish", json={"topic": "x.y", "payload": 1, **WHY}, status=422)
    made = server.ask("POST", "/publish", json={"topic": "x.y", "payload": [1], "to": "far", **WHY}, status=201)
    assert [(row.destination, str(row.message_id)) for row in world.deliveries()] == [("far", made["id"])]


def test_an_event_is_checked_by_its_class(server: Server, box: todoku.App) -> None:
    @box.event("order.created", key="id")
    class Order(msgspec.Struct):
        id: str
        total: int

    box.route("order.*", to="warehouse")
    body = {"topic": "order.created", "payload": {"id": "1", "total": "x"}, "dry_run": True}
    assert server.ask("POST", "/publish", json=body, status=201)["problems"] == {"total": "Expected `int`, got `str`"}


def test_the_trace_is_a_link_where_a_template_says_so(
    box: todoku.App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = "ab" * 16
    handle = box.jobs["charge"].using(headers={"traceparent": f"00-{trace}-{'cd' * 8}-01"}).enqueue(amount=1)
    found = server.ask("GET", f"/messages/{handle.id}")
    assert (found["trace_id"], found["trace_url"]) == (trace, None)
    settings = msgspec.structs.replace(box.outbox.settings, trace_url="https://jaeger.example/trace/{trace_id}")
    monkeypatch.setattr(box.outbox, "settings", settings)
    assert server.ask("GET", f"/messages/{handle.id}")["trace_url"] == f"https://jaeger.example/trace/{trace}"

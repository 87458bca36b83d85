"""Workers, schedules, settings, doctor, verify and sources over HTTP."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from uuid import uuid4

import pytest

import todoku
from tests.support.crew import Crew, until
from tests.support.serving import Server, serving, serving_events
from tests.support.world import World
from todoku.engine import workers


def test_a_worker_says_what_it_holds_and_for_how_long(server: Server, world: World) -> None:
    (message,) = world.publish(1, topic="order.created")
    id = world.worker(name="host:7")
    (claim,) = world.claim(id)
    (found,) = server.ask("GET", "/workers")["items"]
    assert (found["host"], found["pid"], found["status"], found["alive"]) == ("host", 7, "running", True)
    (held,) = found["holds"]
    assert (held["id"], held["message_id"], held["topic"]) == (claim.id, str(message.id), "order.created")
    assert (held["destination"], held["attempt"]) == ("warehouse", 1)
    assert 0 < found["lease_left"] <= 60
    assert server.ask("GET", f"/workers/{id}")["holds"] == found["holds"]
    assert server.ask("GET", "/workers?holds=0")["items"][0]["holds"] == []
    server.ask("GET", f"/workers/{uuid4()}", status=404)
    server.ask("GET", "/workers/seven", status=422)


def test_a_worker_is_drained_and_resumed_with_a_reason(server: Server, world: World) -> None:
    id = world.worker()
    why = {"why": "the host is moved"}
    assert server.ask("POST", f"/workers/{id}/drain", json=why) == {"worker": str(id), "did": "drain"}
    assert server.ask("GET", f"/workers/{id}")["status"] == "drained"
    server.ask("POST", f"/workers/{id}/resume", json=why)
    assert server.ask("GET", f"/workers/{id}")["status"] == "running"
    acts = server.ask("GET", "/audit", params={"target": f"worker:{id}"})["items"]
    assert [(row["act"]["action"], row["act"]["why"]) for row in acts] == [
        ("resume", "the host is moved"),
        ("drain", "the host is moved"),
    ]
    for act in ("drain", "resume", "stack"):
        server.ask("POST", f"/workers/{uuid4()}/{act}", json=why, status=404)
        server.ask("POST", f"/workers/{id}/{act}", json={}, status=422)
        server.ask("POST", f"/workers/{id}/{act}", json=why, scope="read", status=403)


def test_stacks_are_asked_for_and_read_again(server: Server, world: World, crew: Crew) -> None:
    crew.handles("warehouse")
    with crew.running() as worker:
        until(lambda: worker.health().state == "running", what="running")
        id = worker.health().worker_id
        taken = server.ask("POST", f"/workers/{id}/stack", json={"why": "it seems to hang"})
        assert taken["stacks"] == {"handlers": [], "more": 0, "kept": True}
        assert server.ask("GET", f"/workers/{id}/stack", scope="read") == taken
    server.ask("GET", f"/workers/{id}/stack", status=404)
    (act,) = server.ask("GET", "/audit", params={"action": "stack"})["items"]
    assert act["act"]["why"] == "it seems to hang"


def test_a_worker_that_does_not_answer_is_an_answer_without_stacks(
    server: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ask_stacks", _impatient(workers.ask_stacks))
    id = world.worker()
    assert server.ask("POST", f"/workers/{id}/stack", json={"why": "x"})["stacks"] is None


def _impatient(ask):  # type: ignore[no-untyped-def]
    return lambda *given, **more: ask(*given, **(more | {"wait": 0.0}))


def test_schedules_are_listed_in_words_with_their_next_five_slots(server: Server, box: todoku.App) -> None:
    box.route("**", to="warehouse")
    box.schedules.add("report", "report.due", {}, cron="0 9 * * 1-5", tz="Asia/Tokyo", by="ada", why="daily")
    box.schedules.add("poll", "poll.due", {}, every=5400, by="ada", why="often")
    poll, report = server.ask("GET", "/schedules")["items"]
    assert (poll["words"], poll["every"], poll["when"]) == ("every 90 minutes", 5400.0, "every 5400 s")
    assert "09:00" in report["words"]
    assert "Monday" in report["words"]
    assert len(report["slots"]) == len(poll["slots"]) == 5
    assert report["slots"][0]["at"] == report["next_run_at"]
    assert all(slot["local"].endswith("T09:00:00+09:00") for slot in report["slots"])
    assert poll["slots"][0]["local"] is None
    assert (report["missed_slots"], report["missed"]) == (0, "once")
    japanese = server.ask("GET", "/schedules?language=ja")["items"]
    assert japanese[0]["words"] == "90分ごと"
    assert japanese[1]["words"] != report["words"]
    server.ask("GET", "/schedules?language=xx", status=422)


def test_settings_have_their_origin_and_no_secret(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    here = tmp_path_factory.mktemp("settings")
    (here / "todoku.toml").write_text("drain_grace_sec = 7\nbackoff_sec = [1, 2]\nlease_sec = 30\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("OUTBOX_LEASE_SECONDS", "60")
    monkeypatch.setenv("TODOKU_TOKEN", "t" * 40)
    monkeypatch.setenv("TODOKU_ALERT_WEBHOOK", "https://hooks.example/very-secret")
    box = todoku.App(world.url)
    try:
        with serving(box) as server:
            (here / "todoku.toml").write_text("drain_grace_sec = 8\n")  # read by the next process only
            found = {row["name"]: row for row in server.ask("GET", "/settings")["items"]}
            text = json.dumps(found)
            server.ask("GET", "/settings", scope="operate", status=403)
    finally:
        box.close()
    assert "very-secret" not in text
    assert "tttt" not in text
    assert {
        name: found[name]["origin"] for name in ("database", "lease_sec", "drain_grace_sec", "backoff", "port")
    } == {
        "database": "argument",
        "lease_sec": "OUTBOX_LEASE_SECONDS",
        "drain_grace_sec": "todoku.toml",
        "backoff": "todoku.toml",
        "port": "default",
    }
    assert (found["drain_grace_sec"]["value"], found["drain_grace_sec"]["default"]) == ("7.0", "25.0")
    assert [(found[name]["value"], found[name]["origin"]) for name in ("token", "alert_webhook", "signing_keys")] == [
        ("set", "TODOKU_TOKEN"),
        ("set", "TODOKU_ALERT_WEBHOOK"),
        ("not set", "default"),
    ]
    assert found["alert_lag"]["value"] == found["alert_lag"]["default"]


def test_the_doctor_examines_and_says_what_is_worst(server: Server, world: World) -> None:
    found = server.ask("GET", "/doctor", scope="read")
    levels = {row["what"]: row["level"] for row in found["items"]}
    assert (levels["workers"], levels["clock"]) == ("warn", "ok"), "no worker is alive"
    assert found["worst"] == ("problem" if "problem" in levels.values() else "warn")
    assert next(row["todo"] for row in found["items"] if row["what"] == "workers").startswith("start one")


def test_a_verification_runs_in_the_background_and_its_result_is_kept(server: Server, world: World) -> None:
    assert server.ask("GET", "/verify")["state"] == "never"
    world.publish(2)
    world.sql("update todoku_delivery set attempts = 99")
    assert server.ask("POST", "/verify", status=202)["by"] == "ada"
    server.ask("POST", "/verify", scope="read", status=403)
    until(lambda: server.ask("GET", "/verify")["state"] != "running", what="the verification to end")
    found = server.ask("GET", "/verify", scope="read")
    assert (found["state"], found["checked"]) == ("broken", found["of"])
    assert [row["check"]["name"] for row in found["verdicts"] if row["examples"]] == ["epoch", "attempts"]
    assert found["ended_at"] >= found["started_at"]


def test_sources_are_counted_by_what_was_answered(world: World) -> None:
    box = todoku.App(world.url)
    try:
        with serving_events(box, todoku.stripe(secrets=["whsec_a", "whsec_b"])) as server:
            client = server.client()
            for id, secret in (("evt_1", "whsec_a"), ("evt_1", "whsec_a"), ("evt_2", "wrong")):
                client.post("/ingest/stripe", content=(body := _event(id)), headers=_signed(body, secret))
            (found,) = server.ask("GET", "/sources", scope="read")["items"]
    finally:
        box.close()
    counts = found["counts"]
    assert [counts[name] for name in ("accepted", "duplicate", "refused", "failed")] == [1, 1, 1, 0]
    assert counts["last_at"] is not None
    assert (found["name"], found["verifier"], found["topic"], found["secrets"]) == (
        "stripe",
        "Stripe",
        "stripe.{type}",
        2,
    )
    assert "whsec" not in json.dumps(found)


def _event(id: str) -> bytes:
    return json.dumps({"id": id, "type": "charge.succeeded"}).encode()


def _signed(body: bytes, secret: str) -> dict[str, str]:
    now = str(int(time.time()))
    mac = hmac.new(secret.encode(), f"{now}.".encode() + body, hashlib.sha256).hexdigest()
    return {"stripe-signature": f"t={now},v1={mac}", "content-type": "application/json"}

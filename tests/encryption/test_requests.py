"""Secret headers of requests, encrypted at rest: they are in no byte that is stored, shown or logged, and the receiver
gets them (S4: AES-GCM, keys that have ids and are rotated)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

import todoku
from tests.api.test_schedules import firing_of
from tests.destinations.http.receiving import Received, Receiver, receiving
from tests.encryption.conftest import Boxes
from tests.encryption.test_at_rest import canary, python, stored_in
from tests.encryption.test_rotation import rotation
from tests.support.serving import Server, serving
from tests.support.world import World
from todoku.engine.http import url_groups
from todoku.store.audit import Signed

__all__ = ["canary"]

SOMEBODY = Signed("ada", "a test")
EVER = {"since": "0001-01-01", "before": "9999-12-31"}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """One that answers with all that it was sent; 500 below /fails."""
    with receiving() as made:
        made.reply = _echo
        yield made


async def _echo(request: Received, writer: asyncio.StreamWriter) -> None:
    said = json.dumps([request.headers, request.body.decode("latin-1")]).encode()
    status = 500 if request.target.startswith("/fails") else 200
    echoed = "".join(f"X-Echo-{name}: {value}\r\n" for name, value in request.headers)
    head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(said)}\r\n{echoed}\r\n"
    writer.write(head.encode("latin-1") + said)
    await writer.drain()


def sending(boxes: Boxes, *keys: str, **settings: str) -> todoku.App:
    """An App whose workers may send to this machine."""
    return boxes(*keys, http_loopback="true", **settings)


@pytest.fixture(params=["headers", "declared", "all"])
def box(boxes: Boxes, old: str, request: pytest.FixtureRequest) -> todoku.App:
    """One that seals the secret headers of requests, one that seals their bodies too, and one that seals everything."""
    made = sending(boxes, old, encrypt="all" if request.param == "all" else "declared")
    if request.param == "declared":
        made.event("http.request", encrypted=True)
    return made


def ask(server: Server, method: str, path: str, body: bytes = b"", **headers: str) -> Any:
    """What /v2 answers; `forward_authorization` is the header Upstash-Forward-Authorization."""
    named = {f"Upstash-{name.replace('_', '-')}": value for name, value in headers.items()}
    answer = server.client("admin").request(method, f"/v2{path}", content=body, headers=named)
    assert answer.status_code < 300, answer.text
    return answer.json() if answer.content else None


def publish(server: Server, url: str, body: bytes = b"", **headers: str) -> UUID:
    return UUID(ask(server, "POST", f"/publish/{url}", body, **headers)["messageId"])


def drained(box: todoku.App) -> None:
    """Whatever is due, and what follows it."""
    while box.drain():
        pass


def reasons(world: World) -> list[tuple[str, str]]:
    """(topic, reason) of every dead letter."""
    return sorted((row.topic, row.reason or "") for row in world.deliveries(status="aborted"))


def make_due(world: World) -> None:
    """Every schedule has a slot that has come."""
    world.sql("update todoku_schedule set next_run_at = updated_at")


# ------------------------------------------------------------------------------------------- the canary


def test_a_secret_header_is_in_no_byte_that_is_stored_shown_or_logged_and_still_arrives(
    box: todoku.App, world: World, receiver: Receiver, canary: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where the receiver answers with all that it was sent, and where callbacks have secrets of their own."""
    everything = box.outbox.sealer.is_encrypted("http.request")
    body = f"body {canary}".encode() if everything else b"a body"
    with serving(box) as server:
        ids = [
            publish(
                server, f"{receiver.url}/{path}", body, retries="0", redact_fields="header[X-Mine]",
                forward_authorization=f"Bearer {canary}", forward_x_api_key=f"{canary}-key",
                forward_x_mine=f"{canary}-mine", forward_x_seen="seen",
                callback=f"{receiver.url}/told", callback_forward_authorization=f"Bearer {canary}-told",
                failure_callback=f"{receiver.url}/told", failure_callback_forward_cookie=f"{canary}-failed",
            )
            for path in ("works", "fails")
        ]  # fmt: skip
        assert stored_in(world, canary) == []
        caplog.set_level("DEBUG")
        drained(box)
        got = {request.target: request for request in receiver.received}
        told = [request for request in receiver.received if request.target == "/told"]
        for target in ("/works", "/fails"):
            assert got[target].value("Authorization") == f"Bearer {canary}"
            assert got[target].value("X-Api-Key") == f"{canary}-key"
            assert got[target].value("X-Mine") == f"{canary}-mine"
            assert got[target].value("X-Seen") == "seen"
            assert got[target].body == body
        assert sorted((one.values("Authorization"), one.values("Cookie")) for one in told) == [
            ([], [f"{canary}-failed"]),
            ([f"Bearer {canary}-told"], []),
        ]
        assert stored_in(world, canary) == []
        assert canary not in caplog.text
        shown = [ask(server, "GET", path) for path in ("/dlq", "/events", *(f"/messages/{id}" for id in ids))]
        assert all("X-Seen" in str(each) for each in shown[:2])
        shown += [server.ask("GET", f"/messages/{id}") for id in ids]
        if everything:  # whoever may read is shown the body, but for the admin API
            shown = [json.loads(json.dumps(each).replace(body.decode(), "")) for each in shown]
        assert canary not in str(shown)
        assert all(canary not in request.body.decode("latin-1") for request in told)
    command = python(world, "todoku", "show", "--json", str(ids[1]))
    assert "X-Seen" in command.stdout
    assert canary not in command.stdout + command.stderr


def test_without_a_master_key_nothing_changes(boxes: Boxes, world: World, receiver: Receiver, canary: str) -> None:
    box = sending(boxes)
    with serving(box) as server:
        publish(server, f"{receiver.url}/", forward_authorization=canary)
    assert stored_in(world, canary)
    assert world.sql("select count(*) from todoku_data_key") == [(0,)]
    assert "todoku-secrets" not in str(world.sql("select headers from todoku_message"))
    drained(box)
    assert receiver.received[0].value("Authorization") == canary


def test_a_request_without_secrets_brings_no_key(boxes: Boxes, world: World, old: str, receiver: Receiver) -> None:
    box = sending(boxes, old)
    with serving(box) as server:
        publish(server, f"{receiver.url}/", forward_x_seen="1")
    assert world.sql("select count(*) from todoku_data_key") == [(0,)]


def test_in_a_queue_they_are_sent_in_order_each_with_its_own(
    boxes: Boxes, old: str, receiver: Receiver, canary: str
) -> None:
    box = sending(boxes, old)
    with serving(box) as server:
        for n in range(3):
            ask(server, "POST", f"/enqueue/q/{receiver.url}/", forward_authorization=f"{canary}-{n}")
    drained(box)
    assert [one.value("Authorization") for one in receiver.received] == [f"{canary}-{n}" for n in range(3)]


def test_a_request_runs_again_with_its_secrets_and_those_of_its_callbacks(
    box: todoku.App, world: World, receiver: Receiver, canary: str
) -> None:
    """They are sealed for the new message; the callback, which succeeded too, runs again by itself."""
    with serving(box) as server:
        first = publish(
            server, f"{receiver.url}/works", b"a body", forward_authorization=f"Bearer {canary}", forward_x_seen="seen",
            callback=f"{receiver.url}/told", callback_forward_authorization=f"Bearer {canary}-told",
        )  # fmt: skip
        drained(box)
        receiver.received.clear()
        again = box.handle(first).replay(by="ada", why="a test", again=True)
        assert stored_in(world, canary) == []
        drained(box)
    sent, told = receiver.received
    assert (sent.target, sent.body, sent.value("X-Seen")) == ("/works", b"a body", "seen")
    assert sent.value("Authorization") == f"Bearer {canary}"
    assert (told.target, told.value("Authorization")) == ("/told", f"Bearer {canary}-told")
    assert again.status() == "succeeded"
    (callback, _) = box.deliveries.find(topic="http.callback", status="succeeded").items
    receiver.received.clear()
    assert box.replay(callback.id, by="ada", why="a test", again=True).replayed == 1
    drained(box)
    assert [(one.target, one.value("Authorization")) for one in receiver.received] == [
        ("/told", f"Bearer {canary}-told")
    ]
    assert stored_in(world, canary) == []


# --------------------------------------------------------------------------------- schedules and groups


def test_what_a_schedule_and_a_group_are_to_send_is_sealed_too(
    boxes: Boxes, world: World, old: str, new: str, receiver: Receiver, canary: str
) -> None:
    """By the master key itself, since both outlive the data keys of their day; a rotation goes through them."""
    box = sending(boxes, old, encrypt="all")
    with serving(box) as server:
        url_groups.put(box.store, "g", [url_groups.EndpointName(f"{receiver.url}/grouped")], SOMEBODY)
        defaults = json.dumps({"headers": {"X-Api-Key": f"{canary}-key"}}).encode()
        ask(server, "PATCH", "/topics/g", defaults)
        scheduled = {"cron": "0 * * * *", "forward_authorization": f"{canary}-auth"}
        for to, id in ((f"{receiver.url}/alone", "alone"), ("g", "grouped")):
            ask(server, "POST", f"/schedules/{to}", f"body {canary}".encode(), schedule_id=id, **scheduled)
        assert stored_in(world, canary) == []
        listed = ask(server, "GET", "/schedules")
        assert [each["body"] for each in listed] == [f"body {canary}"] * 2
        assert all(each["header"]["Authorization"][0].startswith("REDACTED") for each in listed)
        assert canary not in str(ask(server, "GET", "/topics/g"))

        ended = rotation(world, new, old)
        assert (ended.returncode, ended.stderr) == (0, "")
        assert json.loads(ended.stdout)["secrets"] >= 3
        assert json.loads(rotation(world, new, old).stdout)["secrets"] == 0

    fresh = sending(boxes, new)  # it does not say itself that requests are encrypted: the plan does
    make_due(world)
    firing_of(fresh).fire_due()
    fresh.schedules.run_now("http:alone", by="ada", why="to see it")
    assert stored_in(world, canary) == []
    drained(fresh)
    got = sorted((one.target, one.values("X-Api-Key")) for one in receiver.received)
    assert got == [("/alone", []), ("/alone", []), ("/grouped", [f"{canary}-key"])]
    assert {one.value("Authorization") for one in receiver.received} == {f"{canary}-auth"}
    assert {one.body for one in receiver.received} == {f"body {canary}".encode()}
    assert stored_in(world, canary) == []


def test_a_schedule_whose_master_key_is_not_here_says_so_and_stays_due(
    boxes: Boxes, world: World, old: str, new: str, receiver: Receiver, canary: str
) -> None:
    with serving(sending(boxes, old)) as server:
        ask(
            server, "POST", f"/schedules/{receiver.url}/", cron="0 * * * *", schedule_id="s", forward_cookie=canary
        )  # fmt: skip
    stranger = sending(boxes, new)
    make_due(world)
    firing_of(stranger).fire_due()
    ((error,),) = world.sql("select error from todoku_schedule")
    assert "2026-05" in error
    assert world.sql("select count(*) from todoku_message") == [(0,)]
    firing_of(sending(boxes, old)).fire_due()
    assert world.sql("select count(*) from todoku_message") == [(1,)]


# ------------------------------------------------------------------------------------------------- keys


def test_what_waits_is_sent_after_a_rotation(
    boxes: Boxes, world: World, old: str, new: str, receiver: Receiver, canary: str
) -> None:
    with serving(sending(boxes, old)) as server:
        told = {"callback": f"{receiver.url}/told", "callback_forward_authorization": f"{canary}-told"}
        publish(server, f"{receiver.url}/", forward_authorization=canary, **told)
    assert rotation(world, new, old).returncode == 0
    drained(sending(boxes, new))
    assert [one.value("Authorization") for one in receiver.received] == [canary, f"{canary}-told"]


def test_a_master_key_that_is_missing_is_waited_for(
    boxes: Boxes, world: World, old: str, new: str, receiver: Receiver, canary: str
) -> None:
    with serving(sending(boxes, old)) as server:
        publish(server, f"{receiver.url}/", forward_authorization=canary)
    sending(boxes, new).drain()
    (row,) = world.deliveries()
    assert (row.status, row.reason, receiver.received) == ("failed", "UNKNOWN_MASTER_KEY", [])


def test_without_its_data_key_a_request_is_a_dead_letter_that_says_why(
    boxes: Boxes, world: World, old: str, receiver: Receiver, canary: str
) -> None:
    """Its callback, whose secrets are lost with it, too; one without secrets is told. Shredding knows of it before."""
    box = sending(boxes, old)
    with serving(box) as server:
        told = {"failure_callback": f"{receiver.url}/told"}
        publish(server, f"{receiver.url}/", forward_authorization=canary, **told)
        publish(server, f"{receiver.url}/", failure_callback_forward_authorization=canary, **told)
    keys = box.store.data_keys
    assert (keys.count_stranded(**EVER).keys, keys.count_stranded(**EVER).unfinished) == (1, 2)
    keys.shred(SOMEBODY, **EVER)
    drained(sending(boxes, old))
    assert reasons(world) == [("http.callback", "SHREDDED"), *[("http.request", "SHREDDED")] * 2]
    assert [one.target for one in receiver.received] == ["/told"]


def test_secrets_open_for_their_own_url_only(
    boxes: Boxes, world: World, old: str, receiver: Receiver, canary: str
) -> None:
    """Who can write into the database cannot have them sent to himself."""
    box = sending(boxes, old)
    with serving(box) as server:
        publish(server, f"{receiver.url}/mine", forward_authorization=canary)
    kind = "::json" if world.backend == "postgres" else ""
    text = "headers::text" if world.backend == "postgres" else "headers"
    world.sql(f"update todoku_message set headers = replace({text}, '/mine', '/his'){kind}")
    drained(box)
    assert (reasons(world), receiver.received) == ([("http.request", "BAD_CIPHERTEXT")], [])


# -------------------------------------------------------------------------------------------- repetition


def test_repetitions_are_recognised_and_nobody_can_guess_the_content_by_its_digest(
    boxes: Boxes, world: World, old: str, new: str, receiver: Receiver, canary: str
) -> None:
    """By id, and by content; with a new master key in front, too."""
    for keys in ((old,), (new, old)):
        with serving(sending(boxes, *keys, encrypt="all")) as server:
            for asked in ({"content_based_deduplication": "true"}, {"deduplication_id": "one"}):
                for _ in range(2):
                    publish(server, f"{receiver.url}/", b"a body", forward_authorization=canary, **asked)
    assert world.sql("select count(*) from todoku_message") == [(2,)]
    with serving(sending(boxes)) as server:
        publish(server, f"{receiver.url}/", b"a body", forward_authorization=canary, content_based_deduplication="true")
    assert world.sql("select count(*) from todoku_message") == [(3,)], "a digest without the key is another"

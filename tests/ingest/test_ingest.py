"""Ingest: verify, one commit, 204; and whatever else comes is refused with nothing stored (S4-1, S4-13, S4-46)."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
import msgspec
import pydantic
import pytest

import todoku
from tests.daemon.running import until
from tests.encryption.conftest import new_key
from tests.engine.test_telemetry import counted
from tests.ingest.conftest import STRIPE, Poster, mounted
from tests.ingest.signers import KINDS, OLD, SECRET, WEBHOOK_SECRET, Kind, event
from tests.support.world import World
from todoku.api.ingest import ingest_app
from todoku.engine.observability.log import LOGGER, LogEvent
from todoku.store import failpoint
from todoku.store.deliveries import Filter
from todoku.store.messages import Story

DAY = 86_400.0
TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "sentry-trace": f"{'c' * 32}-{'d' * 16}-1", "baggage": "k=v"}


def serve(box: todoku.App, kind: Kind = STRIPE, **options: Any) -> None:
    """Take in what a source sends, for a destination that another process serves."""
    options.setdefault("topic", f"{kind.name}.{{type}}")
    box.ingest(kind.name, kind.verifier(), **options)
    if not box.routes:
        box.route("**", to="warehouse")


def stored(box: todoku.App, answer: httpx.Response) -> Story:
    story = box.store.messages.story(UUID(answer.headers["upstash-message-id"]))
    assert story is not None
    return story


def number(world: World) -> tuple[int, int, int]:
    """(messages, deliveries, ledger entries) there are."""
    tables = ("todoku_message", "todoku_delivery", "todoku_ledger")
    return tuple(world.sql(f"select count(*) from {table}")[0][0] for table in tables)  # type: ignore[return-value]


# ------------------------------------------------------------------------------------------------------- accepted


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_an_event_is_stored_and_then_acknowledged(box: todoku.App, poster: Poster, kind: Kind) -> None:
    """204 without a body, and the three ids in headers (S4-22, S4-49, S4-50); the trace goes on (S4-42)."""
    serve(box, kind)
    body = event(id="evt_7")
    headers = kind.arrived(body, id="evt_7").headers
    answer = poster.post(kind.name, body, {**headers, **TRACE, "x-request-id": "req-1"})
    assert (answer.status_code, answer.content) == (204, b"")
    assert (answer.headers["x-request-id"], answer.headers["x-event-id"]) == ("req-1", "evt_7")
    message = stored(box, answer).message
    assert message.payload == body.decode()  # as it came, byte for byte
    types = {"github": "pull_request", "shopify": "orders.create"}
    assert message.topic == f"{kind.name}.{types.get(kind.name, 'payment_intent.succeeded')}"
    carried = json.loads(message.headers or "{}")
    assert carried.items() >= {**TRACE, "x-correlation-id": "req-1", "x-event-id": "evt_7"}.items()
    assert all(name not in carried for name in headers if "signature" in name or "hmac" in name)


def test_what_a_source_only_says_in_headers_comes_along(box: todoku.App, poster: Poster) -> None:
    serve(box, KINDS[3])
    carried = json.loads(stored(box, poster.send(KINDS[3])).message.headers or "")
    assert carried["x-shopify-shop-domain"] == "example.myshopify.com"


def test_a_handler_is_given_what_was_sent(box: todoku.App, poster: Poster) -> None:
    seen: list[Any] = []
    serve(box, topic="payments.{type}", key="data.object.id")

    @box.on("payments.payment_intent.*")
    def record(ctx: todoku.Context, event: dict[str, Any]) -> None:
        seen.append((event["id"], ctx.key, ctx.headers["x-event-id"]))

    poster.send()
    box.drain()
    assert seen == [("evt_1", "pi_1", "evt_1")]


def test_slack_is_told_that_somebody_is_here(box: todoku.App, poster: Poster, world: World) -> None:
    """Only if it asks with its signature: whatever one answers to strangers is theirs to choose."""
    slack = KINDS[2]
    serve(box, slack)
    body = b'{"type":"url_verification","challenge":"3eZbrw1a"}'
    answer = poster.send(slack, body)
    assert (answer.status_code, answer.text) == (200, "3eZbrw1a")
    assert answer.headers["content-type"].startswith("text/plain")
    assert poster.post("slack", body, {}).status_code == 400
    assert number(world) == (0, 0, 0)


def test_json_that_no_database_takes_is_kept_as_bytes(box: todoku.App, poster: Poster) -> None:
    """It was signed and is acknowledged, so it is there (I1)."""
    serve(box)
    body = event(note="a\0b")
    assert b"\\u0000" in body
    message = stored(box, poster.send(body=body)).message
    assert (message.payload, message.payload_bytes) == (None, body)


def test_an_id_that_a_header_cannot_carry_is_percent_encoded(box: todoku.App, poster: Poster) -> None:
    serve(box)
    answer = poster.send(body=event(id="届く 1"))
    assert (answer.status_code, answer.headers["x-event-id"]) == (204, "%E5%B1%8A%E3%81%8F%201")


# ----------------------------------------------------------------------------------------------------- duplicates


def test_an_event_that_comes_again_is_acknowledged_and_not_queued_again(
    box: todoku.App, poster: Poster, world: World
) -> None:
    """Whatever its source has changed in its spelling (S4-7, S4-17, S4-27)."""
    serve(box)
    first = poster.send()
    spelled = json.dumps(json.loads(event()), indent=2).encode()
    for again in (poster.send(), poster.send(body=spelled), poster.send(body=event(type="payment_intent.created"))):
        assert again.status_code == 204
        assert again.headers["upstash-message-id"] == first.headers["upstash-message-id"]
    assert number(world) == (1, 1, 1)
    assert counted(box.telemetry)["outbox_publish_total{duplicate}"] == 3


def test_of_many_at_once_one_is_queued(box: todoku.App, poster: Poster, world: World) -> None:
    serve(box)
    body = event()
    headers = STRIPE.arrived(body).headers

    async def burst(client: httpx.AsyncClient) -> list[httpx.Response]:
        posts = (client.post("/stripe", content=body, headers=headers) for _ in range(24))
        return list(await asyncio.gather(*posts))

    answers = poster.run(burst)
    assert {answer.status_code for answer in answers} == {204}
    assert len({answer.headers["upstash-message-id"] for answer in answers}) == 1
    assert number(world) == (1, 1, 1)


def test_an_id_is_unique_in_its_source_and_not_beyond(box: todoku.App, poster: Poster, world: World) -> None:
    for kind in (KINDS[0], KINDS[2]):
        serve(box, kind)
        assert poster.send(kind).status_code == 204
    assert number(world)[0] == 2


def test_an_id_is_remembered_for_ninety_days(box: todoku.App, poster: Poster, world: World) -> None:
    serve(box)
    serve(box, KINDS[2], dedupe_for=timedelta(hours=1))
    try:
        now = time.time()
        for at, expected in ((now, 2), (now + 3500, 2), (now + 3700, 3), (now + 89 * DAY, 4), (now + 91 * DAY, 6)):
            box.store.database.set_clock(at)
            for kind in (KINDS[0], KINDS[2]):
                assert poster.send(kind).status_code == 204
            assert number(world)[0] == expected
    finally:
        box.store.database.set_clock(None)


def _dies(box: todoku.App, poster: Poster, world: World, **options: Any) -> None:
    serve(box, topic="x", **options)

    @box.on("x", name="dying")
    def dying(event: object) -> None:
        raise todoku.Abort("REFUSED")

    poster.send()
    box.drain()
    assert [found.reason for found in world.deliveries(destination="dying")] == ["REFUSED"]


def test_a_dead_event_that_comes_again_is_reopened_and_audited(box: todoku.App, poster: Poster, world: World) -> None:
    """A source that sends again is a person's replay (I9): by publisher, from attempt 0."""
    _dies(box, poster, world)
    answer = poster.send()
    assert answer.status_code == 204
    (found,) = world.deliveries(destination="dying")
    assert (found.status, found.attempts, found.replay_count) == ("pending", 0, 1)
    assert [(row.by, row.action) for row in stored(box, answer).audit] == [("publisher", "replay")]
    assert box.drain() == 1


def test_a_dead_event_stays_dead_where_the_app_says_so(box: todoku.App, poster: Poster, world: World) -> None:
    _dies(box, poster, world, reopen=False)
    assert poster.send().status_code == 204
    assert [found.status for found in world.deliveries(destination="dying")] == ["aborted"]


# -------------------------------------------------------------------------------------------------------- refused


def test_strangers_learn_nothing(box: todoku.App, poster: Poster, world: World) -> None:
    """No such source, a wrong signature, an old one, no JSON: one status, one text, nothing stored (S4-51)."""
    serve(box)
    serve(box, KINDS[1])
    old = STRIPE.arrived(event(), at=time.time() - 301).headers
    answers = [
        poster.post("nobody", event(), STRIPE.arrived(event()).headers),
        poster.post("stripe", event(), {}),
        poster.post("stripe", event(), {"stripe-signature": "t=1,v1=0"}),
        poster.post("stripe", event(id="evt_2"), STRIPE.arrived(event()).headers),
        poster.post("stripe", event(), old),
        *(poster.send(body=body) for body in (b"", b"no JSON", b'{"id":', b"[" * 100_000, b"NaN")),
        poster.send(KINDS[1], b'{"id":"\xff\xfe"}'),
    ]
    said = []
    for answer in answers:
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem.pop("request_id") == answer.headers["x-request-id"]
        said.append((answer.status_code, json.dumps(problem)))
    assert len(set(said)) == 1
    assert said[0][0] == 400
    assert number(world) == (0, 0, 0)
    counts = counted(box.telemetry)
    assert counts["ingest_requests_total{unknown,400}"] == 1
    assert counts["ingest_requests_total{stripe,400}"] == len(answers) - 2


@dataclass
class AsDataclass:
    id: str
    amount: int


class AsStruct(msgspec.Struct):
    id: str
    amount: int


class AsModel(pydantic.BaseModel):
    id: str
    amount: int


@pytest.mark.parametrize("model", [AsDataclass, AsStruct, AsModel])
def test_an_event_that_is_not_as_its_model_says_is_refused_by_its_field(
    box: todoku.App, poster: Poster, world: World, model: type
) -> None:
    serve(box, model=model)
    answer = poster.send(body=event(amount="much"))
    assert (answer.status_code, "amount" in answer.json()["error"]) == (422, True)
    assert number(world) == (0, 0, 0)
    assert poster.send(body=event(amount=7)).status_code == 204


def test_an_event_without_an_id_or_a_topic_is_refused(box: todoku.App, poster: Poster, world: World) -> None:
    serve(box)
    for body in (b"{}", b"[]", b'{"id":"evt_1"}', b'{"type":"x"}', event(id="x" * 513), event(type="y" * 300)):
        assert poster.send(body=body).status_code == 422, body
    assert number(world) == (0, 0, 0)


def test_an_event_that_no_route_takes_is_an_error(box: todoku.App, poster: Poster, world: World) -> None:
    """Never nothing (DESIGN 2): it is not acknowledged, and its source will send it again."""
    box.ingest("stripe", STRIPE.verifier(), topic="stripe.{type}")
    answer = poster.send()
    assert (answer.status_code, "route" in answer.json()["detail"]) == (422, True)
    assert number(world) == (0, 0, 0)


def test_or_a_dead_letter_if_the_app_says_so(world: World) -> None:
    box = todoku.App(world.url, no_route="dead_letter")
    try:
        box.ingest("stripe", STRIPE.verifier(), topic="stripe.{type}")
        assert mounted(box.ingest_app).send().status_code == 204
        assert [found.reason for found in box.store.deliveries.find(Filter(status="aborted")).items] == ["NO_ROUTE"]
    finally:
        box.close()


def test_other_methods_types_and_sizes_are_refused(box: todoku.App, poster: Poster, world: World) -> None:
    serve(box)
    got = poster.run(lambda client: client.get("/stripe"))
    assert (got.status_code, got.headers["allow"]) == (405, "POST")
    assert poster.run(lambda client: client.post("/")).status_code == 404
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert poster.send(body=event(), **form).status_code == 415
    assert poster.send(body=event(), **{"content-encoding": "gzip"}).status_code == 415
    assert poster.send(body=event(pad="x" * (1 << 20))).status_code == 413
    assert (
        poster.send(body=event(), **{"content-type": "application/cloudevents+json; charset=utf-8"}).status_code == 204
    )
    assert counted(box.telemetry)["ingest_requests_total{stripe,413}"] == 1
    assert number(world)[0] == 1


@pytest.mark.parametrize("side", ["before", "after"])
def test_what_may_not_be_stored_is_not_acknowledged(box: todoku.App, poster: Poster, world: World, side: str) -> None:
    """The connection breaks around the commit: 503, and the source's next try finds it or stores it (S4-9, S4-26)."""
    serve(box)
    with failpoint.armed(f"publish.{side}_commit", failpoint.lose):
        answer = poster.send()
    assert (answer.status_code, "retry-after" in answer.headers) == (503, True)
    assert poster.send().status_code == 204
    assert number(world) == (1, 1, 1)


# -------------------------------------------------------------------------------------------------------- secrets


class Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[LogEvent] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, LogEvent):
            self.events.append(record.msg)


@pytest.fixture
def heard() -> Any:
    """What is logged."""
    handler, level = Heard(), LOGGER.level
    LOGGER.addHandler(handler)
    LOGGER.setLevel(logging.INFO)
    yield handler.events
    LOGGER.removeHandler(handler)
    LOGGER.setLevel(level)


def test_a_source_that_still_signs_with_an_old_secret_is_heard_and_told_of(
    box: todoku.App, poster: Poster, heard: list[LogEvent]
) -> None:
    serve(box)
    for n in range(3):
        assert poster.send(body=event(id=f"evt_{n}"), secret=n % 2).status_code == 204
    assert counted(box.telemetry)["ingest_old_secret_total{stripe}"] == 1
    (line,) = [each for each in heard if each.name == "OLD_SECRET"]
    assert line.fields.items() >= {"source": "stripe", "place": 1, "of": 2}.items()


def test_a_secret_may_be_kept_elsewhere(
    box: todoku.App, poster: Poster, monkeypatch: pytest.MonkeyPatch, heard: list[LogEvent]
) -> None:
    """`Ref`: until it can be read nothing is said of the request but that it should come again."""
    box.route("**", to="warehouse")
    box.ingest("stripe", todoku.stripe(secrets=[todoku.Ref("vault:stripe"), todoku.Ref("env:OLD_ONE")]), topic="x")
    box.secrets("vault", lambda path: SECRET if path == "stripe" else "")
    assert poster.send().status_code == 503
    assert "NO_SECRET" in {each.name for each in heard}
    monkeypatch.setenv("OLD_ONE", OLD)
    assert poster.send(secret=1).status_code == 204
    assert poster.send(secret=0).status_code == 204


def test_one_line_a_request_says_what_became_of_it(box: todoku.App, poster: Poster, heard: list[LogEvent]) -> None:
    """With the event's id, the source, and the correlation id (S4-41); never a payload, nor a secret."""
    serve(box)
    answer = poster.send(body=event(note="canary"), **TRACE, **{"x-request-id": "req-9"})
    poster.post("stripe", event(), {"x-request-id": "req-10"})

    def lines() -> list[LogEvent]:
        found = [each for each in heard if each.name == "ingested"]
        return found if len(found) > 1 else []

    first, second = until(lines, "both lines: they are written after the answers")
    assert first.fields.pop("latency_ms") > 0
    assert first.fields == {
        "correlation_id": "req-9", "trace_id": "a" * 32, "message_id": answer.headers["upstash-message-id"],
        "topic": "stripe.payment_intent.succeeded", "status": 204, "error_type": None, "event_id": "evt_1",
        "source": "stripe", "duplicate": False,
    }  # fmt: skip
    assert second.fields.items() >= {"correlation_id": "req-10", "status": 400, "error_type": "Unverified"}.items()
    assert not any(word in str(each) for each in heard for word in ("canary", SECRET))
    assert counted(box.telemetry)["ingest_requests_total{stripe,204}"] == 1


# --------------------------------------------------------------------------------------------------- declarations


def test_what_cannot_be_declared_is_refused_by_its_name(box: todoku.App) -> None:
    verifier = todoku.standard_webhooks(secrets=[WEBHOOK_SECRET])
    box.ingest("ours", verifier, topic="ours.{type}")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"source": "a b", "verifier": verifier, "topic": "x"}, "source"),
        ({"source": "", "verifier": verifier, "topic": "x"}, "source"),
        ({"source": "ours", "verifier": verifier, "topic": "x"}, "two sources"),
        ({"source": "x", "verifier": "whsec_x", "topic": "x"}, "is not a verifier"),
        ({"source": "x", "verifier": verifier, "topic": "x.{"}, "topic"),
        ({"source": "x", "verifier": verifier, "topic": "x", "key": "a b"}, "key"),
        ({"source": "x", "verifier": verifier, "topic": "x", "dedupe_for": 0}, "dedupe_for"),
        ({"source": "x", "verifier": verifier, "topic": "x", "model": object()}, "model"),
    ]
    for given, said in wrong:
        with pytest.raises(todoku.InvalidSetting, match=said):
            box.ingest(given.pop("source"), given.pop("verifier"), **given)
    assert list(box.sources) == ["ours"]


# ------------------------------------------------------------------------------------------------- slow and broken


def test_a_body_that_does_not_come_in_time_is_given_up(box: todoku.App, world: World) -> None:
    """408; one whose connection ends before it: 400. Nothing is stored of either."""
    serve(box)

    async def half(*ends: bytes) -> Any:
        yield event()[:10]
        for end in ends:
            yield end
        await asyncio.Event().wait()

    slow = mounted(ingest_app(box, within=0.02))
    answer = slow.run(lambda client: client.post("/stripe", content=half(b"more")))
    assert (answer.status_code, answer.headers["content-type"]) == (408, "application/problem+json")
    assert number(world) == (0, 0, 0)
    assert counted(box.telemetry)["ingest_requests_total{stripe,408}"] == 1


def test_what_is_declared_encrypted_is_stored_so_and_is_a_duplicate_under_any_master_key(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the hash of the id is compared: no key has to be kept for ninety days."""
    for n, id in enumerate(("2026-05", "2026-11")):
        monkeypatch.setenv("TODOKU_MASTER_KEYS", new_key(id))
        box = todoku.App(world.url)
        try:
            serve(box)
            box.outbox.sealer.declare("stripe.payment_intent.succeeded")
            assert mounted(box.ingest_app).send(body=event(note="canary")).status_code == 204
            assert counted(box.telemetry).get("outbox_publish_total{duplicate}", 0) == n
        finally:
            box.close()
    assert number(world) == (1, 1, 1)
    ((payload, sealed),) = world.sql("select payload, payload_bytes from todoku_message")
    assert payload is None
    assert b"canary" not in bytes(sealed)

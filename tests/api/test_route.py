"""Routes to what is not a handler: destinations of one's own, plain functions, and those that packages bring."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.api.conftest import Attempt
from tests.support.world import World
from todoku.core.message import Claimed
from todoku.engine.registry import SEND_BATCH, outgoing


class Broker:
    """A destination as somebody would write it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sent: list[todoku.Outgoing] = []

    async def send(self, batch: Sequence[todoku.Outgoing]) -> None:
        self.sent += batch


def test_a_destination_is_registered_once_and_sends_in_batches(box: todoku.App, world: World) -> None:
    broker = Broker("orders")
    box.route("order.*", to=broker, ordered=True)
    box.route("stock.*", to=broker, ordered=True)
    target = box.registry["orders"]
    assert (target.sender, target.batch, target.queue, target.call) == (broker, SEND_BATCH, "orders", None)
    assert target.backoff == box.settings.backoff
    with pytest.raises(todoku.InvalidSetting, match="two destinations are named 'orders'"):
        box.route("order.*", to=Broker("orders"), ordered=True)
    box.route("order.*", to=Broker("orders"), name="orders2")
    message = box.publish("order.created", {"n": 1}, key="7", headers={"a": "b"}, tx=None)
    assert {delivery.destination for delivery in world.deliveries()} == {"orders", "orders2"}
    (claim,) = world.claim_lanes(world.worker())
    assert outgoing(claim) == todoku.Outgoing(
        message_id=str(message.id),
        idempotency_key=f"{message.id}:orders",
        topic="order.created",
        key="7",
        payload=b'{"n":1}',
        content_type="application/json",
        headers={"a": "b"},
        attempt=1,
        created_at=pytest.approx(message.created_at.timestamp()),
        sequence=claim.message_seq,
        worker=claim.worker,
    )


async def test_a_plain_function_is_a_destination_too(
    box: todoku.App, world: World, claims: Callable[[], list[Claimed]]
) -> None:
    got: list[Any] = []

    def to_file(message: todoku.Outgoing) -> None:
        got.append(("sync", message.topic, message.payload))

    async def to_socket(message: todoku.Outgoing) -> None:
        got.append(("async", message.topic, message.payload))

    box.route("order.*", to=to_file)
    box.route("order.*", to=to_socket, name="socket")
    ours = [(target.name, target.run) for target in box.registry if target.sender is None]
    assert ours == [("to_file", "thread"), ("socket", "loop")]
    await box.apublish("order.created", {"n": 1}, tx=None)
    for claim in sorted(claims(), key=lambda claim: claim.id):
        target = box.registry[claim.destination]
        assert target.call is not None
        made = target.call(todoku.Context(claim))
        if target.run == "loop":
            await made
    assert sorted(got) == [("async", "order.created", b'{"n":1}'), ("sync", "order.created", b'{"n":1}')]


def test_a_topic_can_be_routed_to_a_job(box: todoku.App, world: World, attempt: Attempt) -> None:
    """Its payload is the job's arguments then, and its way is the one the job declared."""

    @box.job(queue="mail", max_attempts=2)
    def welcome(user_id: int) -> int:
        return user_id

    box.route("user.created", to=welcome)
    box.publish("user.created", {"user_id": 7}, tx=None)
    (delivery,) = world.deliveries()
    assert (delivery.queue, delivery.max_attempts) == ("mail", 2)
    assert attempt() == [7]
    with pytest.raises(todoku.InvalidSetting, match="where the job is declared"):
        box.route("user.*", to=welcome, ordered=True)


def test_what_is_no_destination_is_refused(box: todoku.App) -> None:
    for to in (7, object()):
        with pytest.raises(todoku.TodokuError, match="needs a name"):
            box.route("order.*", to=to)  # type: ignore[arg-type]
    with pytest.raises(todoku.InvalidSetting, match="is no destination"):
        box.route("order.*", to=7, name="seven")  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------- log and entry points


async def test_the_log_destination_prints_one_line_a_message(box: todoku.App, world: World) -> None:
    """S1-28: `PUBLISH type aggregate id`; payloads only if they are asked for."""
    stream = io.StringIO()
    for destination in (todoku.log(stream=stream), todoku.destination("log", name="full", payload=True, stream=stream)):
        box.route("order.*", to=destination)
    message = await box.apublish("order.created", {"n": 1}, key="7", tx=None)
    for claim in sorted(world.claim(world.worker()), key=lambda claim: claim.id):
        sender = box.registry[claim.destination].sender
        assert sender is not None
        assert await sender.send([outgoing(claim)]) is None
    assert sorted(stream.getvalue().splitlines()) == [
        f"PUBLISH order.created 7 {message.id}",
        f'PUBLISH order.created 7 {message.id} {{"n":1}}',
    ]


async def test_the_log_destination_prints_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    message = todoku.Outgoing(
        message_id="m", idempotency_key="m:log", topic="a.b", key=None, payload=b"", content_type="application/json",
        headers={}, attempt=1, created_at=0.0,
    )  # fmt: skip
    await todoku.log().send([message, message])
    assert capsys.readouterr().out == "PUBLISH a.b - m\n" * 2


def test_other_packages_bring_destinations_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that is installed as this one is: a module, and its metadata with the entry point."""
    (tmp_path / "pigeons.py").write_text(
        "class Pigeon:\n"
        "    name = 'pigeon'\n"
        "    def __init__(self, *, loft): self.loft = loft\n"
        "    async def send(self, batch): pass\n"
        "def broken(): return 7\n"
    )
    info = tmp_path / "pigeons-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeons\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[todoku.destinations]\npigeon = pigeons:Pigeon\nbroken = pigeons:broken\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    pigeon = todoku.destination("pigeon", loft="roof")
    assert (pigeon.name, pigeon.loft) == ("pigeon", "roof")  # type: ignore[attr-defined]
    assert isinstance(pigeon, todoku.Destination)
    for kind, options, text in (
        ("pigeon", {}, "destination 'pigeon': .*loft"),
        ("broken", {}, "'broken' created 7"),
        ("dove", {}, "there is no destination 'dove' .known: broken, http, kafka, log, nats, pigeon"),
    ):
        with pytest.raises(todoku.InvalidSetting, match=text):
            todoku.destination(kind, **options)


# ---------------------------------------------------------------------------- dead letters on ordered routes


class Choosy(Broker):
    """Refuses the first message."""

    async def send(self, batch: Sequence[todoku.Outgoing]) -> Any:
        await super().send(batch)
        return [todoku.Abort("NO") if message.payload == b"0" else todoku.Done() for message in batch]


def _ordered_app(url: str, on_dead: Any, told: list[str]) -> todoku.App:
    """An App with an ordered destination, job and consumer, each of which refuses the message 0."""
    box = todoku.App(url)
    box.route("order.*", to=Choosy("orders"), ordered=True, on_dead=on_dead)

    def refuse(what: str, number: int) -> None:
        told.append(f"{what} {number}")
        if number == 0:
            raise todoku.Abort("NO")

    @box.job(ordered=True, on_dead=on_dead)
    def work(number: int) -> None:
        refuse("job", number)

    @box.on("order.*", ordered=True, on_dead=on_dead)
    def consume(event: int) -> None:
        refuse("consumer", event)

    return box


@pytest.mark.parametrize("on_dead", ["park", "skip"])
def test_a_dead_letter_parks_its_key_or_is_skipped(world: World, url: str, on_dead: str) -> None:
    """I10: `on_dead` of a route, a job and a consumer; a worker says it before it claims."""
    told: list[str] = []
    box = _ordered_app(url, on_dead, told)
    for number in range(2):
        box.publish("order.created", number, key="a", tx=None)
        box.jobs["work"].using(key="a").enqueue(number)
    box.drain()
    went_on = on_dead == "skip"
    assert sorted(told) == ["consumer 0", *["consumer 1"] * went_on, "job 0", *["job 1"] * went_on]
    assert sorted({(row.destination, row.status) for row in world.deliveries() if row.status != "aborted"}) == (
        [] if went_on else [("consume", "pending"), ("orders", "pending"), ("work", "pending")]
    )
    box.close()


def test_keys_that_are_parked_go_on_with_the_next_worker_that_skips(world: World, url: str) -> None:
    """I10: `on_dead="skip"` was added after the fact, and the worker restarted; and taken away again."""
    told: list[str] = []
    for on_dead, sent in (("park", [0, 1]), ("skip", []), ("park", [0, 1])):
        box = _ordered_app(url, on_dead, told)
        for number in sent:
            box.jobs["work"].using(key="a").enqueue(number)
        box.drain()
        box.close()
    assert told == ["job 0", "job 1", "job 0"]
    assert [row.status for row in world.deliveries()] == ["aborted", "aborted", "pending"]

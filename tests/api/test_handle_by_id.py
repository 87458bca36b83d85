"""A job by its id: a program that has the id of a message sees, awaits, cancels and replays it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from uuid import UUID, uuid4

import pytest

import todoku
from tests.support.world import World, aborted, failed
from todoku.core.decision import Settlement
from todoku.core.errors import InvalidAct
from todoku.core.message import Claimed
from todoku.core.status import Status

Claims = Callable[[], list[Claimed]]
SIGNED = {"by": "ada", "why": "a test"}


@pytest.fixture
def elsewhere(world: World, url: str) -> Iterator[todoku.App]:
    """The App of another process, on the same database."""
    box = todoku.App(url)
    if world.backend == "sqlite":
        box._database._clock = world._now  # type: ignore[attr-defined]
    yield box
    box.close()


def declare(box: todoku.App) -> todoku.Job[[int], int]:
    @box.job(keep_result=True, max_attempts=2, backoff=todoku.table(0))
    def double(n: int) -> int:
        return 2 * n

    return double


def fan_out(box: todoku.App) -> UUID:
    """One message to two consumers."""

    @box.on("order.*")
    def points(event: dict[str, int]) -> None: ...

    @box.on("order.created")
    def mail(event: dict[str, int]) -> None: ...

    return box.publish("order.created", {"n": 1}, tx=None).id


def test_a_job_gives_the_handle_of_its_delivery_of_a_message(box: todoku.App, elsewhere: todoku.App) -> None:
    enqueued = declare(box).enqueue(21)
    double = declare(elsewhere)
    for id in (enqueued.id, str(enqueued.id)):
        handle = double.handle(id)
        assert (handle.id, handle.job, handle.status()) == (enqueued.id, "double", "pending")
    elsewhere.drain()
    assert double.handle(enqueued.id).result(timeout=0) == 42
    with pytest.raises(todoku.NoSuchMessage):
        double.handle(uuid4()).status()
    with pytest.raises(InvalidAct, match="'seven' is no id"):
        double.handle("seven")


def test_a_job_that_was_renamed_finds_what_was_stored_under_its_former_name(
    box: todoku.App, elsewhere: todoku.App
) -> None:
    enqueued = declare(box).enqueue(21)

    @elsewhere.job("twice", aliases=["double"], keep_result=True)
    def twice(n: int) -> int:
        return 2 * n

    handle = twice.handle(enqueued.id)
    assert handle.status() == "pending"
    elsewhere.drain()
    assert handle.result(timeout=0) == 42
    assert elsewhere.handle(enqueued.id).result(timeout=0) == 42


def test_a_job_knows_its_own_delivery_of_an_event(box: todoku.App) -> None:
    id = fan_out(box)
    box.deliveries.cancel(destination="mail", **SIGNED)
    assert box.jobs["points"].handle(id).status() == "pending"
    assert box.jobs["mail"].handle(id).status() == "aborted"


def test_the_app_gives_the_handle_of_the_only_delivery(box: todoku.App, elsewhere: todoku.App) -> None:
    enqueued = declare(box).enqueue(21)
    (delivery,) = box.deliveries.find(message_id=enqueued.id).items
    for id in (enqueued.id, str(enqueued.id), delivery.id, str(delivery.id)):
        assert (box.handle(id).id, box.handle(id).job) == (enqueued.id, "double")
    box.drain()
    assert box.handle(delivery.id).result(timeout=0) == 42
    assert elsewhere.handle(enqueued.id).result(timeout=0) == 42  # an App without the job decodes plain JSON
    assert elsewhere.handle(enqueued.id).delivery().id == delivery.id


def test_of_several_deliveries_the_caller_chooses_one(box: todoku.App) -> None:
    """AmbiguousMessage names the destinations, also if one of them has succeeded."""
    id = fan_out(box)
    box.deliveries.settle(destination="points", succeeded=True, **SIGNED)
    with pytest.raises(todoku.AmbiguousMessage, match=r"mail, points \(choose one with destination='mail'\)") as told:
        box.handle(id)
    assert told.value.destinations == ("mail", "points")
    assert box.handle(id, "mail").status() == "pending"
    assert box.handle(id, destination="points").status() == "succeeded"
    for missing in ({"id": id, "destination": "nobody"}, {"id": uuid4()}, {"id": 999}):
        with pytest.raises(todoku.NoSuchMessage, match="there is no delivery"):
            box.handle(**missing)  # type: ignore[arg-type]


def test_all_deliveries_of_a_message_are_found_together(box: todoku.App) -> None:
    id = fan_out(box)
    box.deliveries.settle(destination="points", succeeded=True, **SIGNED)
    box.deliveries.cancel(destination="mail", **SIGNED)
    found = box.deliveries.find(message_id=id).items
    assert {(each.destination, each.status) for each in found} == {("mail", "aborted"), ("points", "succeeded")}
    assert [each.id for each in found] == sorted((each.id for each in found), reverse=True)
    first = box.deliveries.find(message_id=id, limit=1)
    rest = box.deliveries.find(message_id=id, limit=1, cursor=first.next)
    assert ((*first.items, *rest.items), rest.next) == (found, None)
    assert [each.destination for each in box.deliveries.find(message_id=id, destination="points").items] == ["points"]
    assert [each.destination for each in box.deliveries.find(message_id=id, status="succeeded").items] == ["points"]
    assert [each.destination for each in box.deliveries.find(message_id=id, reason="CANCELLED").items] == ["mail"]


def test_deliveries_are_found_by_a_label_of_their_message(box: todoku.App) -> None:
    double = declare(box)
    blue = double.using(labels=["blue", "café"]).enqueue(1)
    double.using(labels=["red"]).enqueue(2)
    double.enqueue(3)
    assert [each.message_id for each in box.deliveries.find(label="café").items] == [blue.id]
    assert box.deliveries.cancel(label="red", **SIGNED).changed == 1
    box.drain()
    assert [each.message_id for each in box.deliveries.find(label="blue", status="succeeded").items] == [blue.id]
    assert box.deliveries.find(label="caf").items == ()


def test_a_handle_shows_errors_and_failed_attempts(box: todoku.App, world: World, claims: Claims) -> None:
    handle = declare(box).enqueue(1)
    assert (handle.error(), handle.attempts()) == (None, ())
    world.settle(claims(), failed("TIMEOUT"))
    assert (handle.status(), handle.error()) == ("failed", "TIMEOUT in a test")
    world.settle(claims(), aborted("REFUSED"))
    assert handle.error() == "REFUSED in a test"
    assert [(each.number, each.reason, each.final) for each in handle.attempts()] == [
        (1, "TIMEOUT", False), (2, "REFUSED", True),
    ]  # fmt: skip
    assert (handle.delivery().attempts, handle.delivery().reason) == (2, "REFUSED")


def test_a_handle_replays_its_dead_letter(box: todoku.App, world: World, claims: Claims) -> None:
    handle = declare(box).enqueue(1)
    woken: list[int] = []
    box.outbox.wake = lambda: woken.append(1)
    with pytest.raises(InvalidAct, match=r"was not replayed: it is pending \(only a dead letter is replayed\)"):
        handle.replay(**SIGNED)
    world.settle(claims(), aborted())
    assert handle.replay(**SIGNED) is handle
    assert (handle.status(), handle.error(), woken) == ("pending", None, [1])
    with pytest.raises(InvalidAct, match="does not say who and why"):
        handle.replay(by="ada", why=" ")


def test_the_end_of_any_job_can_be_awaited(box: todoku.App, world: World, claims: Claims) -> None:
    """Also of one that keeps no result."""

    @box.job
    def work() -> None: ...

    first, second = work.enqueue(), work.enqueue()
    with pytest.raises(TimeoutError, match="has not ended after 0 s"):
        first.ended(timeout=0)
    one, other = sorted(claims(), key=lambda claim: claim.id)
    world.store.claims.settle([(one, Settlement(status=Status.SUCCEEDED)), (other, aborted())])
    assert first.ended(timeout=5) is todoku.Status.SUCCEEDED
    assert second.ended(timeout=5) is todoku.Status.ABORTED


async def test_async_code_has_the_same_calls(box: todoku.App) -> None:
    double = declare(box)
    id = (await double.aenqueue(21)).id
    handle = await box.ahandle(id)
    assert (await handle.aerror(), await handle.aattempts()) == (None, ())
    assert (await handle.adelivery()).status == "pending"
    assert await handle.acancel(**SIGNED)
    assert await handle.aended(timeout=5) is todoku.Status.ABORTED
    assert await handle.areplay(**SIGNED) is handle
    await box.adrain()
    assert await double.handle(id).aresult(timeout=5) == 42
    again = await handle.areplay(again=True, **SIGNED)
    await box.adrain()
    assert await again.aresult(timeout=5) == 42


def test_every_call_of_a_handle_has_an_async_form() -> None:
    names = [name for name, value in vars(todoku.Handle).items() if inspect.isfunction(value) and name[0] != "_"]
    blocking = [name for name in names if f"a{name}" in names]
    assert sorted(names) == sorted([*blocking, *(f"a{name}" for name in blocking)])
    assert "result" in blocking

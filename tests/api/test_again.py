"""A succeeded delivery runs again as a new message to that destination alone: signed, audited, never by accident."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

import todoku
from tests.support.world import World, aborted
from todoku.core.errors import InvalidAct
from todoku.engine import operations
from todoku.store.deliveries import Filter
from todoku.store.messages import StoredMessage

SIGNED = {"by": "ada", "why": "the template was wrong"}


@pytest.fixture
def bare(url: str, world: World) -> Iterator[todoku.App]:
    """An App that declares nothing, as the command line has without --app."""
    box = todoku.App(url)
    if world.backend == "sqlite":
        box._database._clock = world._now  # type: ignore[attr-defined]
    yield box
    box.close()


def stored(world: World, id: object) -> StoredMessage:
    story = world.store.messages.story(id)  # type: ignore[arg-type]
    assert story is not None
    return story.message


def labels(world: World, id: object) -> list[str]:
    return msgspec.json.decode(stored(world, id).labels or "[]", type=list[str])


def audit(world: World) -> list[tuple[object, ...]]:
    return world.sql("select by, action, target, why from todoku_audit order by id")


def test_a_success_runs_again_as_a_new_message_to_that_destination_alone(box: todoku.App, world: World) -> None:
    calls: list[tuple[str, dict[str, int]]] = []

    @box.on("order.created")
    def points(event: dict[str, int]) -> None:
        calls.append(("points", event))

    @box.on("order.created", queue="post")
    def mail(ctx: todoku.Context, event: dict[str, int]) -> None:
        assert ctx.headers["tenant"] == "acme"
        calls.append(("mail", event))

    options = {"key": "k", "idempotency_key": "order 1", "headers": {"tenant": "acme"}, "labels": ["blue"]}
    first = box.publish("order.created", {"n": 1}, tx=None, **options)  # type: ignore[arg-type]
    box.drain()
    (delivery,) = box.deliveries.find(message_id=first.id, destination="mail").items
    calls.clear()
    done = box.deliveries.replay(delivery.id, again=True, **SIGNED)
    (new,) = done.messages
    assert (done.matched, done.replayed, done.skipped) == (1, 1, {})
    assert new != first.id
    box.drain()
    assert calls == [("mail", {"n": 1})]
    old, made = stored(world, first.id), stored(world, new)
    assert (made.topic, made.key, made.payload, made.headers) == (old.topic, old.key, old.payload, old.headers)
    (again,) = box.deliveries.find(message_id=new).items
    assert (again.destination, again.queue, again.status) == ("mail", "post", "succeeded")
    assert labels(world, new) == ["blue", f"todoku.again_of:{first.id}"]
    assert audit(world) == [
        ("ada", f"run again as {new}", f"delivery:{delivery.id}", "the template was wrong"),
        ("ada", f"delivery {delivery.id} again", f"message:{new}", "the template was wrong"),
    ]
    assert box.publish("order.created", {"n": 1}, tx=None, **options).id == first.id  # type: ignore[arg-type]


def test_what_runs_again_names_the_message_it_was_made_of_and_is_found_by_that(box: todoku.App, world: World) -> None:
    @box.job(keep_result=True, unique_for=3600)
    def answer(n: int) -> int:
        return n

    first = answer.enqueue(7)
    box.drain()
    second = first.replay(again=True, **SIGNED)
    third = second_run(box, second)
    assert (second.job, third.result(timeout=5)) == ("answer", 7)
    assert labels(world, third.id) == [f"todoku.again_of:{second.id}"]
    (found,) = box.deliveries.find(label=f"todoku.again_of:{first.id}", status="succeeded").items
    assert found.message_id == second.id


def second_run(box: todoku.App, handle: todoku.Handle[int]) -> todoku.Handle[int]:
    box.drain()
    again = handle.replay(again=True, **SIGNED)
    box.drain()
    return again


def test_a_success_is_never_replayed_by_accident(box: todoku.App, world: World) -> None:
    @box.job
    def work() -> None: ...

    first, second = work.enqueue(), work.enqueue()
    box.drain()
    number = first.delivery().id
    for id in (number, first.id, str(first.id)):
        with pytest.raises(InvalidAct, match=r"the delivery has succeeded \(.*--again \(again=True\)"):
            box.replay(id, **SIGNED)
    with pytest.raises(InvalidAct, match="all 2 deliveries have succeeded"):
        box.deliveries.replay(first.id, second.id, **SIGNED)
    with pytest.raises(InvalidAct, match="again=True"):
        first.replay(**SIGNED)
    assert audit(world) == []
    waiting = work.enqueue()
    done = box.replay(number, waiting.delivery().id, 999, **SIGNED)
    not_found = "not found, or being changed by somebody else"
    assert (done.matched, done.skipped) == (1, {"is pending": 1, "is succeeded": 1, not_found: 1})


def test_what_has_not_succeeded_does_not_run_again(box: todoku.App, world: World) -> None:
    @box.job(max_attempts=1)
    def work(n: int) -> None:
        if n:
            raise todoku.Abort("BAD_DAY")

    good, bad = work.enqueue(0), work.enqueue(1)
    box.drain()
    done = box.deliveries.replay(good.delivery().id, bad.delivery().id, 999, again=True, **SIGNED)
    not_found = "not found, or being changed by somebody else"
    assert (done.matched, done.replayed, done.skipped) == (1, 1, {"is aborted": 1, not_found: 1})
    assert box.replay(bad.id, again=True, **SIGNED).skipped == {"is aborted": 1}
    with pytest.raises(InvalidAct, match=r"it is aborted \(again=True is for a success"):
        bad.replay(again=True, **SIGNED)
    for which in ({"status": "aborted"}, {"reason": "BAD_DAY"}):
        with pytest.raises(InvalidAct, match="only what succeeded runs again"):
            box.deliveries.replay(again=True, **which, **SIGNED)  # type: ignore[arg-type]
    with pytest.raises(InvalidAct, match=r"replay needs ids, or a filter \(box.deliveries.replay"):
        box.deliveries.replay(again=True, **SIGNED)
    with pytest.raises(todoku.NoSuchMessage):
        box.replay(uuid4(), again=True, **SIGNED)


def test_many_run_again_oldest_first_once_each(box: todoku.App, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs again is not found in its turn, however fast it succeeds."""
    monkeypatch.setattr(operations, "BATCH", 2)
    calls: list[int] = []

    @box.job(queue="mail")
    def work(n: int) -> None:
        calls.append(n)

    for n in range(5):
        work.enqueue(n)
    box.drain()
    calls.clear()
    run, told = box.store.acts.repeat, []

    def run_at_once(*args: object) -> object:
        made = run(*args)  # type: ignore[arg-type]
        box.drain()
        told.append(len(made))
        return made

    box.store.acts.repeat = run_at_once  # type: ignore[method-assign, assignment]
    yesterday = datetime.now(UTC) - timedelta(days=1)
    assert box.deliveries.replay(queue="mail", again=True, dry_run=True, **SIGNED).replayed == 5
    assert (calls, audit(world)) == ([], [])
    assert box.deliveries.replay(queue="mail", until=yesterday, again=True, **SIGNED).matched == 0
    done = box.deliveries.replay(queue="mail", since=yesterday, again=True, **SIGNED)
    assert (done.replayed, len(done.messages), calls, told) == (5, 5, [0, 1, 2, 3, 4], [2, 2, 1])
    assert box.deliveries.replay(queue="mail", limit=3, again=True, **SIGNED).replayed == 3
    assert calls[5:] == [0, 1, 2]


def test_order_and_limits_of_a_key_hold_as_the_job_declares_them(
    box: todoku.App, bare: todoku.App, world: World
) -> None:
    """I10. An App that does not declare the destination cannot know them, and runs nothing that has a key."""

    @box.job(ordered=True)
    def ordered(n: int) -> None: ...

    @box.job(per_key=todoku.Limit(concurrency=1), max_attempts=3, timeout=7)
    def limited(n: int) -> None: ...

    @box.job
    def free(n: int) -> None: ...

    handles = [job.using(key="k").enqueue(1) for job in (ordered, limited)]
    plain = free.enqueue(1)
    box.drain()
    for handle in handles:
        refused = bare.deliveries.replay(handle.id, again=True, **SIGNED)
        ((why, number),) = refused.skipped.items()
        assert (refused.matched, refused.replayed, number) == (1, 0, 1)
        assert "is not declared here" in why
        assert "--app" in why
    assert bare.replay(plain.id, again=True, **SIGNED).replayed == 1
    lane, gate = (box.replay(handle.id, again=True, **SIGNED).messages[0] for handle in handles)
    waiting = world.store.claims.waiting(None)
    assert ([place[1] for place in waiting.lanes], [place[1] for place in waiting.gates]) == (["ordered"], ["limited"])
    assert box.deliveries.find(message_id=lane).items[0].lane is not None
    (row,) = world.sql(
        "select d.max_attempts, d.timeout from todoku_delivery d join todoku_message m on m.seq = d.message_seq"
        " where m.id = ?", str(gate) if world.backend == "sqlite" else gate,
    )  # fmt: skip
    assert row == (3, 7.0)
    assert box.drain() == 3


def test_a_member_of_a_batch_runs_again_outside_of_it(box: todoku.App) -> None:
    @box.job
    def work(n: int) -> None: ...

    batch = box.batch([work.call(1), work.call(2)], tx=None)
    box.drain()
    before = batch.status()
    assert before.done
    batch.handles[0].replay(again=True, **SIGNED)
    assert box.drain() == 1
    assert batch.status() == before


def test_bytes_and_messages_of_another_type_stay_what_they_are(box: todoku.App, world: World) -> None:
    got: list[todoku.Outgoing] = []
    box.route("raw.*", to=got.append, name="sink")
    first = box.publish("raw.bytes", b"\x00\xff", tx=None)
    box.drain()
    box.handle(first.id).replay(again=True, **SIGNED)
    box.drain()
    one, other = got
    assert (one.payload, one.content_type) == (other.payload, other.content_type) == (b"\x00\xff", one.content_type)
    assert one.message_id != other.message_id


def test_a_success_whose_message_was_pruned_is_not_found(box: todoku.App, world: World) -> None:
    @box.job
    def work() -> None: ...

    handle = work.enqueue()
    box.drain()
    number = handle.delivery().id
    world.store.acts.clear_history(operations.sign("ada", "old"))
    done = box.replay(number, again=True, **SIGNED)
    assert (done.matched, list(done.skipped)) == (0, ["not found, or being changed by somebody else"])


def test_it_is_published_with_its_audit_or_not_at_all(box: todoku.App, world: World) -> None:
    @box.job
    def work() -> None: ...

    handle = work.enqueue()
    box.drain()
    with pytest.raises(InvalidAct, match="who and why"):
        handle.replay(by="", why="x", again=True)
    world.sql("alter table todoku_audit rename to elsewhere")
    with pytest.raises(todoku.TodokuError):
        handle.replay(again=True, **SIGNED)
    world.sql("alter table elsewhere rename to todoku_audit")
    assert world.store.deliveries.find(Filter()).items == ()


def test_a_dead_letter_that_was_replayed_and_succeeded_runs_again_too(box: todoku.App, world: World) -> None:
    @box.job
    def work() -> None: ...

    handle = work.enqueue()
    world.settle(world.claim(world.worker()), aborted())
    handle.replay(**SIGNED)
    box.drain()
    again = handle.replay(again=True, **SIGNED)
    assert (handle.delivery().replay_count, again.delivery().replay_count) == (1, 0)
    assert world.store.broken(history_ttl=1e9, ledger_ttl=1e9) == {}

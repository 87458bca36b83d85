"""The timeline of a message: waits apart from runs, and what followed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import msgspec
import pytest

import todoku
from todoku.engine.diagnostics.timeline import Timeline, build_timeline, read_timeline, trace_id
from todoku.store.attempts import Attempt
from todoku.store.audit import AuditRow
from todoku.store.columns import moment
from todoku.store.deliveries import Delivery
from todoku.store.messages import StoredMessage, Story

START = datetime(2026, 1, 2, 3, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def delivery(status: str, **fields: object) -> Delivery:
    known = {
        "id": 7, "message_id": UUID(int=1), "topic": "t", "key": None, "destination": "d", "queue": "q", "lane": None,
        "priority": 0, "status": status, "attempts": 1, "max_attempts": 6, "lost": 0, "snoozes": 0, "replay_count": 0,
        "epoch": 9, "worker": None, "cancel_requested": False, "next_run_at": at(0), "created_at": at(0),
        "updated_at": at(0), "reason": None, "error": None,
    }  # fmt: skip
    return Delivery(**(known | fields))  # type: ignore[arg-type]


def attempt(number: int, start: float, end: float, **fields: object) -> Attempt:
    known = {"reason": "TIMEOUT", "error": None, "worker": None}
    return Attempt(7, 0, number, number * 2, at(start), at(end), **(known | fields))  # type: ignore[arg-type]


def story(row: Delivery, *attempts: Attempt, audit: tuple[AuditRow, ...] = ()) -> Story:
    message = StoredMessage(1, UUID(int=1), "t", "t", None, "{}", None, "application/json", None, None, at(0))
    return Story(message, (row,), attempts, audit)


def shown(timeline: Timeline) -> list[tuple[str, float, float | None]]:
    def seconds(when: datetime | None) -> float | None:
        return None if when is None else (when - START).total_seconds()

    return [(span.kind, seconds(span.start) or 0, seconds(span.end)) for span in timeline.spans]


def test_waits_are_apart_from_runs_up_to_a_success() -> None:
    row = delivery("succeeded", attempts=2, updated_at=at(20))
    found = build_timeline(story(row, attempt(1, 2, 5)), at(100))
    assert shown(found) == [
        ("published", 0, 0), ("queue", 0, 2), ("attempt", 2, 5), ("backoff", 5, 20), ("succeeded", 20, 20),
    ]  # fmt: skip
    (times,) = found.times
    assert (times.waited, times.run) == (17.0, None)


def test_the_time_in_a_workers_memory_is_no_run() -> None:
    row = delivery("succeeded", attempts=2, updated_at=at(20), run_ms=1500)
    found = build_timeline(story(row, attempt(1, 2, 5, run_ms=1000)), at(100))
    assert shown(found)[1:] == [("queue", 0, 4), ("attempt", 4, 5), ("backoff", 5, 18.5), ("succeeded", 18.5, 20)]
    (times,) = found.times
    assert (times.waited, times.run) == (17.5, 2.5)


def test_a_replay_ends_the_time_as_a_dead_letter() -> None:
    act = AuditRow(at(60), "ada", "replay", "delivery:7", "it is back")
    row = delivery("sending", claimed_at=at(70), worker=uuid4(), replay_count=1)
    found = build_timeline(story(row, attempt(1, 1, 3, final=True), audit=(act,)), at(80))
    assert shown(found) == [
        ("published", 0, 0), ("queue", 0, 1), ("attempt", 1, 3), ("dead", 3, 60), ("act", 60, 60), ("queue", 60, 70),
        ("running", 70, None),
    ]  # fmt: skip
    (times,) = found.times
    assert (times.waited, times.run) == (11.0, 12.0)


@pytest.mark.parametrize(
    ("row", "spans"),
    [
        (delivery("pending", attempts=0, next_run_at=at(90)), [("scheduled", 0, None)]),
        (delivery("pending", attempts=0, next_run_at=at(10)), [("scheduled", 0, 10), ("queue", 10, None)]),
        (delivery("pending", attempts=0, lane=5), [("lane", 0, None)]),
        (delivery("aborted", attempts=0, updated_at=at(30), reason="EXPIRED"), [("queue", 0, 30), ("dead", 30, None)]),
    ],
)
def test_what_has_not_run_waits_for_its_time_then_in_its_queue(
    row: Delivery, spans: list[tuple[str, float, float | None]]
) -> None:
    assert shown(build_timeline(story(row), at(50))) == [("published", 0, 0), *spans]


def test_a_back_off_goes_on_until_it_is_due() -> None:
    row = delivery("failed", next_run_at=at(40))
    assert shown(build_timeline(story(row, attempt(1, 1, 2)), at(50)))[-2:] == [("backoff", 2, 40), ("queue", 40, None)]
    assert shown(build_timeline(story(row, attempt(1, 1, 2)), at(30)))[-1] == ("backoff", 2, None)


def timeline(box: todoku.App, id: UUID) -> Timeline:
    found = box.store.messages.story(id)
    assert found is not None
    return read_timeline(box.store, found, moment(box.store.ping()))


def test_what_a_handler_publishes_hooks_and_repetitions_follow(box: todoku.App) -> None:
    @box.job
    def child() -> None: ...

    @box.job
    def parent() -> None:
        child.enqueue()

    @box.after("succeeded", destination="parent")
    def noted(ending: todoku.Ending) -> None: ...

    box.migrate()
    first = parent.using(headers={"X-Correlation-Id": "trip 7"}, idempotency_key="one").enqueue()
    other = child.using(headers={"X-Correlation-Id": "trip 8"}).enqueue()
    box.drain()
    again = first.replay(again=True, by="ada", why="a test")
    found = timeline(box, first.id)
    kinds = {each.kind: each for each in found.followers}
    assert sorted(kinds) == ["again", "child", "hook"]
    assert (kinds["child"].topic, kinds["again"].message_id) == ("child", again.id)
    assert other.id not in {each.message_id for each in found.followers}
    assert found.complete
    assert timeline(box, again.id).parent == first.id
    assert timeline(box, kinds["hook"].message_id).parent == first.id
    (effect,) = (span for span in found.spans if span.kind == "effect")
    assert effect.text == "succeeded"


def test_a_member_shows_its_batch(box: todoku.App) -> None:
    @box.job
    def work(n: int) -> None: ...

    batch = box.batch([work.call(1), work.call(2)], tx=None)
    box.drain()
    shown_batch = timeline(box, batch.handles[0].id).batch
    assert shown_batch is not None
    assert (shown_batch.total, shown_batch.succeeded) == (2, 2)


def test_the_id_of_a_trace() -> None:
    headers = msgspec.json.encode({"Traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}).decode()
    assert trace_id(headers) == "ab" * 16
    assert trace_id('{"traceparent": "nonsense"}') is None
    assert trace_id(None) is None

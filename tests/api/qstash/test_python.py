"""The official client for Python, sync, drives every endpoint; it was never told that this is not QStash."""

from __future__ import annotations

import json
import time

import pytest
from qstash import QStash, Receiver
from qstash.dlq import DlqMessage
from qstash.errors import QStashError
from qstash.log import LogState
from qstash.message import BatchResponse, BatchUrlGroupResponse, PublishResponse, PublishUrlGroupResponse
from qstash.schedule import ScheduleState

from tests.api.qstash.conftest import CURRENT, NEXT, Server
from tests.daemon.running import until


def delivered(client: QStash, message_id: str) -> None:
    """Wait until its log says so."""
    until(
        lambda: client.log.list(filter={"message_id": message_id, "state": LogState.DELIVERED}).logs, "it is delivered"
    )


def dead(client: QStash, message_id: str) -> DlqMessage:
    """Wait until it is a dead letter, and give it."""
    return until(lambda: client.dlq.list(filter={"message_id": message_id}).messages, "a dead letter")[0]


# ------------------------------------------------------------------------------------------------ publish


def test_publish_arrives_as_it_was_sent_and_signed(client: QStash, server: Server, path: str) -> None:
    """S4-13, the message id of S4-50: body and headers unchanged; the client's own Receiver verifies the signature."""
    answer = client.message.publish_json(
        url=server.to(f"{path}?a=1&b=2"), body={"hello": "wörld"}, headers={"test-header": "test-value"}
    )
    assert isinstance(answer, PublishResponse)
    assert not answer.deduplicated
    came = server.receiver.one(path)
    assert (came.method, came.path) == ("POST", f"{path}?a=1&b=2")
    assert json.loads(came.body) == {"hello": "wörld"}
    assert came.headers["test-header"] == "test-value"
    assert came.headers["content-type"] == "application/json"
    assert came.headers["upstash-message-id"] == answer.message_id
    assert came.headers["upstash-retried"] == "0"
    assert "authorization" not in came.headers
    Receiver(CURRENT, NEXT).verify(
        signature=came.headers["upstash-signature"], body=came.body.decode(), url=server.to(f"{path}?a=1&b=2")
    )
    delivered(client, answer.message_id)
    message = client.message.get(answer.message_id)  # also just after it was delivered
    assert (message.url, message.method, message.max_retries) == (server.to(f"{path}?a=1&b=2"), "POST", 3)
    assert message.headers == {"Content-Type": ["application/json"], "Test-Header": ["test-value"]}
    assert json.loads(message.body or "") == {"hello": "wörld"}
    assert message.caller_ip == "127.0.0.1"


def test_everything_that_can_be_said_of_a_message_is_told_again(client: QStash, server: Server, path: str) -> None:
    answer = client.message.publish(
        url=server.to(path), body=b"\xff\x00", content_type="application/octet-stream", method="PUT", retries=5,
        retry_delay="1000 * (1 + retried)", callback="https://example.com/done", failure_callback="https://example.com/no",
        callback_headers={"one": "1"}, failure_callback_headers={"Forward-two": "2"}, delay="1h", timeout=30,
        label="a-label", flow_control={"key": "flow-told", "parallelism": 3, "rate": 4, "period": 2},
    )  # fmt: skip
    assert isinstance(answer, PublishResponse)
    message = client.message.get(answer.message_id)
    assert (message.method, message.max_retries, message.retry_delay_expression) == ("PUT", 5, "1000 * (1 + retried)")
    assert (message.body, message.body_base64) == (None, "/wA=")
    assert (message.callback, message.failure_callback) == ("https://example.com/done", "https://example.com/no")
    assert (message.callback_headers, message.failure_callback_headers) == ({"One": ["1"]}, {"Two": ["2"]})
    assert message.label == "a-label"
    assert message.not_before - message.created_at == pytest.approx(3_600_000, abs=1000)
    flow = message.flow_control
    assert flow is not None
    assert (flow.key, flow.parallelism, flow.rate, flow.period) == ("flow-told", 3, 4, 2)
    client.message.cancel(answer.message_id)


def test_not_before_wins_over_delay(client: QStash, server: Server, path: str) -> None:
    then = int(time.time()) + 7200
    answer = client.message.publish(url=server.to(path), delay="1s", not_before=then)
    assert isinstance(answer, PublishResponse)
    assert client.message.get(answer.message_id).not_before == then * 1000
    client.message.cancel(answer.message_id)


def test_a_repeated_id_is_answered_with_the_first_message(client: QStash, server: Server, path: str) -> None:
    """S4-17."""
    first, second = (
        client.message.publish(url=server.to(path), body=str(n), deduplication_id=f"id{path}") for n in range(2)
    )
    assert isinstance(first, PublishResponse)
    assert isinstance(second, PublishResponse)
    assert (first.deduplicated, second.deduplicated) == (False, True)
    assert second.message_id == first.message_id
    delivered(client, first.message_id)
    assert [came.body for came in server.receiver.at(path)] == [b"0"]


def test_the_same_content_is_deduplicated_when_asked_for(client: QStash, server: Server, path: str) -> None:
    def publish(body: str) -> PublishResponse:
        answer = client.message.publish(
            url=server.to(path), body=body, delay="1h", content_based_deduplication=True, label=path.strip("/")
        )
        assert isinstance(answer, PublishResponse)
        return answer

    first, again, other = publish("a"), publish("a"), publish("b")
    assert (again.message_id, again.deduplicated) == (first.message_id, True)
    assert not other.deduplicated
    assert client.message.cancel_many([first.message_id, other.message_id]) == 2


def test_a_url_group_sends_to_each_endpoint(client: QStash, server: Server, name: str) -> None:
    client.url_group.delete(name)  # one that is not there: no error
    client.url_group.upsert_endpoints(
        name, [{"url": server.to(f"/{name}/1"), "name": "first"}, {"url": server.to(f"/{name}/2")}]
    )
    group = client.url_group.get(name)
    assert [(endpoint.name, endpoint.url) for endpoint in group.endpoints] == [
        ("first", server.to(f"/{name}/1")),
        (None, server.to(f"/{name}/2")),
    ]
    assert group.name in [each.name for each in client.url_group.list()]

    answers = client.message.publish(url_group=name, body="hi", deduplication_id=name)
    assert isinstance(answers, list)
    assert all(isinstance(each, PublishUrlGroupResponse) for each in answers)
    assert {each.url for each in answers} == {server.to(f"/{name}/1"), server.to(f"/{name}/2")}
    for n in (1, 2):
        assert server.receiver.one(f"/{name}/{n}").body == b"hi"
    message = client.message.get(next(each.message_id for each in answers if each.url.endswith("/1")))
    assert (message.url_group, message.endpoint) == (name, "first")
    again = client.message.publish(url_group=name, body="hi", deduplication_id=name)
    assert isinstance(again, list)
    assert all(each.deduplicated for each in again)

    client.url_group.remove_endpoints(name, [{"name": "first"}])
    assert len(client.url_group.get(name).endpoints) == 1
    client.url_group.remove_endpoints(name, [{"url": server.to(f"/{name}/2")}])
    with pytest.raises(QStashError, match="404"):  # the last one took the group with it
        client.url_group.get(name)


def test_batch_publishes_to_urls_groups_and_queues(client: QStash, server: Server, name: str) -> None:
    client.url_group.upsert_endpoints(name, [{"url": server.to(f"/{name}/group")}])
    answers = client.message.batch(
        [
            {"url": server.to(f"/{name}/1"), "body": "one", "headers": {"content-type": "text/plain"}, "retries": 0},
            {"url_group": name, "body": "two"},
            {"url": server.to(f"/{name}/3"), "queue": name, "method": "GET"},
        ]
    )
    assert isinstance(answers[0], BatchResponse)
    assert isinstance(answers[1], list)
    assert isinstance(answers[1][0], BatchUrlGroupResponse)
    assert server.receiver.one(f"/{name}/1").headers["content-type"] == "text/plain"
    assert server.receiver.one(f"/{name}/group").body == b"two"
    assert server.receiver.one(f"/{name}/3").method == "GET"
    assert isinstance(answers[2], BatchResponse)
    assert client.message.get(answers[2].message_id).queue == name
    assert client.message.batch_json([{"url": server.to("/json"), "body": {"n": 1}, "delay": "1h"}])
    client.url_group.delete(name)


# ------------------------------------------------------------------------------------------------ queues


def test_a_queue_is_made_by_use_and_keeps_its_order(client: QStash, server: Server, name: str) -> None:
    client.queue.upsert(name, parallelism=1, paused=True)
    for n in range(3):
        client.message.enqueue(queue=name, url=server.to(f"/{name}"), body=str(n))
    queue = client.queue.get(name)
    assert (queue.name, queue.parallelism, queue.lag, queue.paused) == (name, 1, 3, True)
    assert queue.created_at <= queue.updated_at
    client.queue.resume(name)
    until(lambda: len(server.receiver.at(f"/{name}")) == 3, "all three")
    assert [came.body for came in server.receiver.at(f"/{name}")] == [b"0", b"1", b"2"]
    client.queue.pause(name)
    assert client.queue.get(name).paused
    assert name in [each.name for each in client.queue.list()]
    client.queue.delete(name)
    with pytest.raises(QStashError, match="404"):
        client.queue.get(name)


# ----------------------------------------------------------------------------------------------- messages


def test_cancelling_one_some_and_those_of_a_filter(client: QStash, server: Server, path: str) -> None:
    answers = [client.message.publish(url=server.to(path), delay="1h") for _ in range(4)]
    ids = [answer.message_id for answer in answers if isinstance(answer, PublishResponse)]
    client.message.cancel(ids[0])
    assert client.message.cancel_many(ids[1:3]) == 2
    assert client.message.cancel_many([]) == 0
    with pytest.raises(QStashError, match="404"):
        client.message.cancel("019a0000-0000-7000-8000-000000000000")
    states = {log.state for log in client.log.list(filter={"message_id": ids[0]}).logs}
    assert LogState.CANCELED in states
    client.message.cancel(ids[3])
    assert not server.receiver.at(path)


def test_what_is_being_sent_can_be_cancelled_too(client: QStash, server: Server, name: str) -> None:
    answer = client.message.publish(url=server.to(f"/hold/{name}"), retries=5)
    assert isinstance(answer, PublishResponse)
    server.receiver.one(f"/hold/{name}")
    client.message.cancel(answer.message_id)
    logs = client.log.list(filter={"message_id": answer.message_id}).logs
    assert {log.state for log in logs} & {LogState.CANCEL_REQUESTED, LogState.CANCELED}


# ------------------------------------------------------------------------------------------ dead letters


def test_what_fails_is_a_dead_letter_with_the_last_answer(client: QStash, server: Server, name: str) -> None:
    """S4-5, S4-12, S4-28, S4-30."""
    answer = client.message.publish(url=server.to("/status/404"), body="x", retries=0, label=name)
    assert isinstance(answer, PublishResponse)
    letter = dead(client, answer.message_id)
    assert letter.response_status == 404
    assert letter.response_body == "404 Not Found"
    assert (letter.response_headers or {})["X-Answer"] == ["yes"]
    assert (letter.url, letter.body, letter.max_retries, letter.label) == (server.to("/status/404"), "x", 0, name)
    assert client.dlq.get(letter.dlq_id) == letter
    logs = client.log.list(filter={"message_id": answer.message_id}).logs
    assert [log.state for log in logs] == [LogState.FAILED, LogState.ERROR, LogState.ACTIVE, LogState.CREATED]
    assert (logs[1].response_status, logs[1].response_body) == (404, "404 Not Found")
    client.dlq.delete(letter.dlq_id)
    with pytest.raises(QStashError, match="404"):
        client.dlq.get(letter.dlq_id)
    with pytest.raises(QStashError, match="404"):
        client.dlq.delete(letter.dlq_id)


def test_dead_letters_in_pages_and_deleted_together(client: QStash, server: Server, name: str) -> None:
    for n in range(5):
        client.message.publish(url=server.to("/status/500"), body=str(n), retries=0, label=name)

    def letters() -> list[DlqMessage]:
        return client.dlq.list(filter={"label": name}).messages

    until(lambda: len(letters()) == 5, "five dead letters")
    first = client.dlq.list(filter={"label": name}, count=3)
    assert len(first.messages) == 3
    assert first.cursor
    rest = client.dlq.list(filter={"label": name}, count=3, cursor=first.cursor)
    assert len(rest.messages) == 2
    assert rest.cursor is None  # the last page has none
    assert {each.dlq_id for each in first.messages + rest.messages} == {each.dlq_id for each in letters()}
    assert client.dlq.list(filter={"label": name, "response_status": 404}).messages == []
    assert client.dlq.delete_many([each.dlq_id for each in letters()]) == 5
    assert letters() == []


def test_where_nobody_answers_the_status_is_0(client: QStash, name: str) -> None:
    answer = client.message.publish(url="http://127.0.0.1:1/", retries=0, label=name)
    assert isinstance(answer, PublishResponse)
    letter = dead(client, answer.message_id)
    assert (letter.response_status, letter.response_headers, letter.response_body) == (0, None, None)
    client.dlq.delete(letter.dlq_id)


def test_489_goes_to_the_dead_letters_at_once(client: QStash, server: Server, name: str) -> None:
    """S4-23: with `Upstash-NonRetryable-Error: true`, none of its three retries is made."""
    answer = client.message.publish(url=server.to("/status/489"), retries=3, label=name)
    assert isinstance(answer, PublishResponse)
    assert dead(client, answer.message_id).response_status == 489
    came = [each.headers["upstash-message-id"] for each in server.receiver.at("/status/489")]
    assert came.count(answer.message_id) == 1
    client.dlq.delete_many([letter.dlq_id for letter in client.dlq.list(filter={"label": name}).messages])


# ---------------------------------------------------------------------------------------------- schedules


def test_schedules(client: QStash, server: Server, name: str) -> None:
    """S4-59."""
    id = client.schedule.create_json(
        destination=server.to(f"/{name}"), cron="CRON_TZ=Asia/Tokyo 0 9 * * *", body={"n": 1}, schedule_id=name,
        headers={"test-header": "test-value"}, retries=5, delay=10, timeout=20, queue=name, label="l", method="PUT",
        callback="https://example.com/done", flow_control={"key": f"flow-{name}", "rate": 1},
    )  # fmt: skip
    assert id == name
    schedule = client.schedule.get(id)
    assert (schedule.cron, schedule.destination) == ("CRON_TZ=Asia/Tokyo 0 9 * * *", server.to(f"/{name}"))
    assert (schedule.method, schedule.retries, schedule.delay, schedule.timeout) == ("PUT", 5, 10, 20)
    assert (schedule.queue, schedule.label, schedule.paused, schedule.body) == (name, "l", False, '{"n": 1}')
    assert schedule.headers == {"Content-Type": ["application/json"], "Test-Header": ["test-value"]}
    assert schedule.next_schedule_time is not None
    assert schedule.next_schedule_time > schedule.created_at
    client.schedule.pause(id)
    assert client.schedule.get(id).paused
    client.schedule.resume(id)
    assert not client.schedule.get(id).paused
    client.schedule.create(destination=server.to("/other"), cron="* * * * *", schedule_id=id)  # changes it
    assert [(each.destination, each.body) for each in client.schedule.list() if each.schedule_id == id] == [
        (server.to("/other"), None)
    ]
    client.schedule.delete(id)
    with pytest.raises(QStashError, match="404"):
        client.schedule.get(id)


def test_a_schedule_fires_to_a_url_and_to_a_group(client: QStash, server: Server, name: str) -> None:
    client.url_group.upsert_endpoints(name, [{"url": server.to(f"/{name}/{n}")} for n in (1, 2)])
    made = [
        client.schedule.create(destination=destination, cron="* * * * * *", body="tick")
        for destination in (name, server.to(f"/{name}/alone"))
    ]
    for part in ("1", "2", "alone"):
        came = server.receiver.one(f"/{name}/{part}")
        assert came.body == b"tick"
        assert came.headers["upstash-schedule-id"] in made
    found = until(lambda: client.schedule.get(made[1]).last_schedule_states, "the last state")
    assert set(found.values()) <= set(ScheduleState)
    client.url_group.delete(name)  # nobody is sent to then, and the schedule says why
    assert name in (until(lambda: client.schedule.get(made[0]).error, "an error") or "")
    for id in made:
        client.schedule.delete(id)


# ------------------------------------------------------------------------------------- flow control, keys


def test_flow_control(client: QStash, server: Server, name: str) -> None:
    answer = client.message.publish(
        url=server.to("/ok"), delay="1h", flow_control={"key": name, "parallelism": 5, "rate": 10, "period": "1m"}
    )
    assert isinstance(answer, PublishResponse)
    info = client.flow_control.get(name)
    assert (info.key, info.parallelism_max, info.rate_max, info.rate_period) == (name, 5, 10, 60)
    assert (info.parallelism_count, info.is_paused) == (0, False)
    client.flow_control.pause(name)
    assert client.flow_control.get(name).is_paused
    client.flow_control.resume(name)
    client.flow_control.pin(name, {"parallelism": 3, "rate": 20, "period": 120})
    info = client.flow_control.get(name)
    assert (info.parallelism_max, info.rate_max, info.rate_period, info.is_paused) == (3, 20, 120, False)
    assert (info.is_pinned_parallelism, info.is_pinned_rate) == (True, True)
    client.flow_control.unpin(name, {"parallelism": True, "rate": True})
    info = client.flow_control.get(name)
    assert (info.is_pinned_parallelism, info.is_pinned_rate, info.parallelism_max) == (False, False, 5)
    client.flow_control.reset_rate(name)
    assert client.flow_control.get(name).rate_count == 0
    everything = client.flow_control.get_global_parallelism()
    assert everything.parallelism_max > 0
    assert everything.parallelism_count >= 0
    client.message.cancel(answer.message_id)


def test_signing_keys(client: QStash) -> None:
    keys = client.signing_key.get()
    assert (keys.current, keys.next) == (CURRENT, NEXT)
    with pytest.raises(QStashError, match="setting"):  # they are a setting here: nobody rotates those from afar
        client.signing_key.rotate()
    assert client.signing_key.get() == keys


# ---------------------------------------------------------------------------------------------- callbacks


def test_a_callback_and_a_failure_callback_are_told_how_it_ended(client: QStash, server: Server, name: str) -> None:
    client.message.publish(
        url=server.to("/ok"), body="hi", callback=server.to(f"/{name}/done"), callback_headers={"one": "1"}
    )
    client.message.publish(url=server.to("/status/404"), retries=0, failure_callback=server.to(f"/{name}/failed"))
    done, failed = server.receiver.one(f"/{name}/done"), server.receiver.one(f"/{name}/failed")
    assert json.loads(done.body)["status"] == 200
    assert done.headers["one"] == "1"
    assert json.loads(failed.body)["status"] == 404
    assert json.loads(failed.body)["dlqId"]


def test_cancel_all_cancels_all_and_only_on_purpose(client: QStash, server: Server, path: str) -> None:
    for _ in range(2):
        client.message.publish(url=server.to(path), delay="1h")
    assert client.message.cancel_all() >= 2
    assert client.message.cancel_all() == 0

"""A queue elsewhere: the wire as QStash has it (S4-17, S4-19, S4-56), and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from tests.client.conftest import Elsewhere, fell_back
from todoku.client import FlowControl, QueueRefused, connect
from todoku.core.errors import BlockingCall, InvalidAct, InvalidMessage, InvalidSetting

WORKER = "https://worker.example.com/hooks?kind=payment"


def test_a_publish_says_everything_in_the_words_of_the_wire(queues: Any, elsewhere: Elsewhere) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    done = queues().publish(
        WORKER,
        {"n": 1, "name": "é"},
        retries=3,
        retry_delay="1000 * pow(2, retried)",
        at=at,
        deduplication_id="evt_7",
        timeout=timedelta(seconds=1.5),
        method="put",
        headers={"x-event-id": "evt_7", "X-Name": "é"},
        callback="https://worker.example.com/done",
        failure_callback="https://worker.example.com/dead",
        labels=["payments", "eu"],
        flow=FlowControl(key="stripe", parallelism=2, rate=10, period=60),
    )
    ((path, headers, body),) = elsewhere.accepted()
    assert path == f"/v2/publish/{WORKER}"
    assert body == '{"n":1,"name":"é"}'.encode()
    ours = {name: value for name, value in headers.items() if name.startswith(("upstash-", "content-type", "todoku-"))}
    assert ours == {
        "content-type": "application/json",
        "upstash-method": "PUT",
        "upstash-retries": "3",
        "upstash-retry-delay": "1000 * pow(2, retried)",
        "upstash-not-before": str(int(at.timestamp())),
        "upstash-deduplication-id": "evt_7",
        "upstash-timeout": "1500ms",
        "upstash-forward-x-event-id": "evt_7",
        "upstash-forward-x-name": "é".encode().decode("latin-1"),
        "upstash-forward-idempotency-key": "evt_7",
        "upstash-callback": "https://worker.example.com/done",
        "upstash-failure-callback": "https://worker.example.com/dead",
        "upstash-label": "payments,eu",
        "upstash-flow-control-key": "stripe",
        "upstash-flow-control-value": "parallelism=2, rate=10, period=60s",
    }
    assert (done.how, done.duplicate, done.deduplication_id) == ("queued", False, "evt_7")
    assert done.id.startswith("msg_")


def test_bytes_go_as_they_are_and_through_a_queue(queues: Any, elsewhere: Elsewhere) -> None:
    queues().enqueue("my orders", "https://worker.example.com/x", b"\x00\xff", delay=10)
    ((path, headers, body),) = elsewhere.accepted()
    assert path == "/v2/enqueue/my orders/https://worker.example.com/x"
    assert (body, headers["content-type"]) == (b"\x00\xff", "application/octet-stream")
    assert headers["upstash-delay"] == "10s"


def test_an_id_that_was_seen_is_a_duplicate_with_the_first_ones_id(queues: Any) -> None:
    """S4-17."""
    queue = queues()
    first = queue.publish(WORKER, {"n": 1}, deduplication_id="evt_7")
    again = queue.publish(WORKER, {"n": 1}, deduplication_id="evt_7")
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)


def test_requests_share_a_kept_connection(queues: Any, elsewhere: Elsewhere) -> None:
    queue = queues()
    for n in range(3):
        queue.publish(WORKER, n)
    assert len({headers["x-came-from"] for _, headers, _ in elsewhere.accepted()}) == 1


def test_a_connection_that_the_server_has_ended_is_made_again(queues: Any, elsewhere: Elsewhere) -> None:
    queue = queues()
    queue.publish(WORKER, 1)
    elsewhere.kill()
    elsewhere.start()
    queue.publish(WORKER, 2)
    assert elsewhere.bodies() == [b"1", b"2"]


async def test_async_code_awaits_the_same(queues: Any, elsewhere: Elsewhere) -> None:
    queue = queues()
    done = await asyncio.gather(*(queue.apublish(WORKER, n) for n in range(3)))
    await queue.aenqueue("orders", WORKER, 3)
    assert sorted(elsewhere.bodies()) == [b"0", b"1", b"2", b"3"]
    assert len({one.id for one in done}) == 3
    with pytest.raises(BlockingCall, match="apublish"):
        queue.publish(WORKER, 4)


@pytest.mark.parametrize(
    ("status", "said"), [("400", "told"), ("401", "token"), ("404", "told"), ("429", "too many requests")]
)
def test_what_the_queue_refuses_is_raised_with_its_status(
    queues: Any, elsewhere: Elsewhere, status: str, said: str
) -> None:
    queue = queues()
    elsewhere.tell(status)
    with pytest.raises(QueueRefused, match=said) as refused:
        queue.publish(WORKER, 1)
    assert refused.value.status == int(status)
    assert fell_back(queue) == {"raise": 1}


def test_a_redirect_is_not_followed(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.tell("307")
    with pytest.raises(QueueRefused, match="redirects are not followed"):
        queues().publish(WORKER, 1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"to": "worker/x"}, "destination"),
        ({"to": "ftp://worker/x"}, "destination"),
        ({"to": "https://worker.example.com/a b"}, "destination"),
        ({"to": ""}, "destination"),
        ({"payload": object()}, "payload"),
        ({"payload": float("nan")}, "payload"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"delay": -1}, "delay"),
        ({"delay": 1, "at": datetime.now(UTC)}, "delay and at"),
        ({"at": datetime(2030, 1, 1)}, "at="),  # noqa: DTZ001 - that is the point
        ({"timeout": "soon"}, "timeout"),
        ({"deduplication_id": "a\r\nb"}, "Deduplication_id"),
        ({"deduplication_id": ""}, "deduplication_id"),
        ({"headers": {"X-A": "b\r\nX-C: d"}}, "X-A"),
        ({"headers": {"Host": "elsewhere"}}, "Host"),
        ({"headers": {"Upstash-Signature": "mine"}}, "Upstash-Signature"),
        ({"method": "GE T"}, "method"),
        ({"callback": "nowhere"}, "callback"),
        ({"labels": "one"}, "labels"),
        ({"labels": ["a,b"]}, "label"),
        ({"queue": ""}, "queue"),
        ({"retry": 3}, "no option 'retry'"),
        ({"tx": object()}, "tx="),
    ],
)
def test_what_cannot_be_sent_is_named_and_nothing_is_sent(
    queues: Any, elsewhere: Elsewhere, options: dict[str, Any], named: str
) -> None:
    options = {"to": WORKER, "payload": 1, **options}
    queue, to, payload = queues(), options.pop("to"), options.pop("payload")
    send = partial(queue.enqueue, options.pop("queue")) if "queue" in options else queue.publish
    with pytest.raises(InvalidMessage, match=named):
        send(to, payload, **options)
    assert elsewhere.accepted() == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"to": "queue.example.com"}, "a queue cannot be at"),
        ({"to": "https://"}, "url cannot be"),
        ({"to": "https://user@queue.example.com"}, "url cannot be"),
        ({"token": ""}, "token"),
        ({"token": "two words"}, "token"),
        ({"fallback": "perhaps"}, "fallback"),
        ({"fallback": "sync"}, "handlers"),
        ({"within": 0}, "within"),
        ({"fallback": "spool", "spool": "postgresql://localhost/x"}, "spool"),
        ({"fallback": "spool", "spool": "/nowhere/at/all/spool.db"}, "spool"),
    ],
)
def test_a_queue_that_cannot_be_is_named(options: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QSTASH_TOKEN", raising=False)
    with pytest.raises((InvalidSetting, InvalidMessage), match=named):
        connect(**{"to": "https://queue.example.com", "token": "t", **options})


def test_without_arguments_the_clients_environment_is_read(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QSTASH_URL", f"{elsewhere.url}/v2/")
    monkeypatch.setenv("QSTASH_TOKEN", "a-token")
    with connect(within=10) as queue:
        assert queue.publish(WORKER, 1).how == "queued"
    assert [path for path, _, _ in elsewhere.accepted()] == [f"/v2/publish/{WORKER}"]


def letter(number: int, **more: Any) -> dict[str, Any]:
    return {
        "messageId": f"msg_{number}", "dlqId": f"dlq_{number}", "url": "https://worker.example.com/x", "method": "POST",
        "header": {"X-Event-Id": [f"evt_{number}"]}, "body": f'{{"n":{number}}}', "createdAt": 1_700_000_000_000,
        "maxRetries": 3, "notBefore": 0, "responseStatus": 489, "responseBody": "no such participant", **more,
    }  # fmt: skip


def test_dead_letters_are_listed_read_sent_again_and_deleted(queues: Any, elsewhere: Elsewhere) -> None:
    """S4-28, S4-29, S4-30: also what the official Python client cannot do."""
    elsewhere.bury(*(letter(number) for number in range(3)))
    dlq = queues().dlq
    first = dlq.list(count=2)
    rest = dlq.list(count=2, cursor=first.cursor, queue="orders", to="https://worker.example.com/x")
    assert [one.id for one in (*first.items, *rest.items)] == ["dlq_0", "dlq_1", "dlq_2"]
    assert rest.cursor is None
    one = dlq.get("dlq_1")
    assert (one.status, one.error, one.message.id) == (489, "HTTP 489: no such participant", "msg_1")
    assert (one.message.body, one.message.headers) == (b'{"n":1}', {"X-Event-Id": "evt_1"})
    assert dlq.retry("dlq_1", by="ada", why="mended") == "msg_again"
    dlq.delete("dlq_0", by="ada", why="a test")
    assert [one["dlqId"] for one in elsewhere.dead()] == ["dlq_2"]
    with pytest.raises(QueueRefused, match="404"):
        dlq.get("dlq_1")


async def test_messages_are_read_and_cancelled_and_nothing_stands_for_all(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.bury(letter(1, body=None, bodyBase64="AP8="))
    queue = queues()
    assert (await queue.messages.aget("msg_1")).body == b"\x00\xff"
    assert len((await queue.dlq.alist()).items) == 1
    for wrong in ("", " "):
        with pytest.raises(InvalidMessage, match="id cannot be"):
            await queue.messages.acancel(wrong, by="ada", why="a test")
    with pytest.raises(InvalidAct, match="why"):
        await queue.messages.acancel("msg_1", by="ada", why=" ")
    assert len(elsewhere.dead()) == 1
    await queue.messages.acancel("msg_1", by="ada", why="a test")
    assert elsewhere.dead() == []

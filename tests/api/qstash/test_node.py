"""The official client for Node, version 2.12, drives every endpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.qstash.conftest import CURRENT, NEXT, Server
from tests.daemon.running import until
from tests.support.nodejs import NodeClient, NodeError


def dead(node: NodeClient, label: str, number: int = 1) -> list[dict[str, Any]]:
    """Wait until so many dead letters have this label, and give them."""

    def found() -> list[dict[str, Any]] | None:
        messages: list[dict[str, Any]] = node.call("dlq.listMessages", {"filter": {"label": label}})["messages"]
        return messages if len(messages) == number else None

    return until(found, f"{number} dead letters")


def test_publish_arrives_and_its_own_receiver_verifies_it(node: NodeClient, server: Server, path: str) -> None:
    answer = node.call(
        "publishJSON",
        {
            "url": server.to(f"{path}?a=1"), "body": {"hello": "world"},
            "headers": {"test-header": "test-value", "Upstash-Forward-bypass-tunnel-reminder": "client-test"},
        },
    )  # fmt: skip
    assert answer["url"] == server.to(f"{path}?a=1")
    came = server.receiver.one(path)
    assert json.loads(came.body) == {"hello": "world"}
    assert (came.headers["test-header"], came.headers["bypass-tunnel-reminder"]) == ("test-value", "client-test")
    assert not [name for name in came.headers if "telemetry" in name or name.startswith("upstash-forward")]
    given = {
        "signature": came.headers["upstash-signature"],
        "body": came.body.decode(),
        "url": server.to(f"{path}?a=1"),
    }
    keys = {"currentSigningKey": CURRENT, "nextSigningKey": NEXT}
    assert node.call("receiver.verify", given, of=keys) is True
    with pytest.raises(NodeError, match="body hash"):
        node.call("receiver.verify", given | {"body": "another"}, of=keys)
    message = node.call("messages.get", answer["messageId"])
    assert message["header"] == {
        "Bypass-Tunnel-Reminder": ["client-test"],
        "Content-Type": ["application/json"],
        "Test-Header": ["test-value"],
    }
    until(
        lambda: node.call("logs", {"filter": {"messageId": answer["messageId"], "state": "DELIVERED"}})["logs"],
        "it is delivered",
    )


def test_what_was_asked_for_is_told_again(node: NodeClient, server: Server, name: str) -> None:
    answer = node.call(
        "publish",
        {
            "url": server.to("/ok"), "delay": 3600, "retries": 1, "retryDelay": "pow(2, retried)", "timeout": 15,
            "callback": "https://example.com/?foo=bar", "failureCallback": "https://example.com/failed",
            "label": [name, "second"], "flowControl": {"key": name, "ratePerSecond": 5, "period": "1d"},
            "redact": {"body": True, "header": ["X-Secret"]}, "body": "secret",
            "headers": {"X-Secret": "s", "X-Open": "o"},
        },
    )  # fmt: skip
    message = node.call("messages.get", answer["messageId"])
    assert (message["callback"], message["maxRetries"]) == ("https://example.com/?foo=bar", 1)
    assert (message["label"], message["labels"]) == (name, [name, "second"])
    assert (message["flowControlKey"], message["rate"], message["ratePerSecond"], message["period"]) == (
        name,
        5,
        5,
        86400,
    )
    assert "parallelism" not in message
    assert message["body"].startswith("REDACTED:")
    assert message["header"]["X-Secret"][0].startswith("REDACTED:")
    assert message["header"]["X-Open"] == ["o"]
    assert message["notBefore"] > message["createdAt"]
    assert node.call("messages.cancel", answer["messageId"]) == {"cancelled": 1}
    again = {"url": server.to("/ok"), "deduplicationId": name, "delay": 3600}
    first, second = node.call("publish", again), node.call("publish", again)
    assert (second["messageId"], second["deduplicated"]) == (first["messageId"], True)
    node.call("messages.delete", first["messageId"])


def test_batch_groups_and_queues(node: NodeClient, server: Server, name: str) -> None:
    node.call(
        "urlGroups.addEndpoints", {"name": name, "endpoints": [{"url": server.to(f"/{name}/1"), "name": "first"}]}
    )
    node.queue(name, "upsert", {"parallelism": 1})
    answers = node.call(
        "batchJSON",
        [
            {"urlGroup": name, "body": "one", "queueName": name, "headers": {"Test-Header": "1"}},
            {"url": server.to(f"/{name}/2"), "queueName": name, "body": {"n": 2}},
            {"url": server.to(f"/{name}/3")},
        ],
    )
    assert answers[0][0]["url"] == server.to(f"/{name}/1")
    assert server.receiver.one(f"/{name}/1").headers["test-header"] == "1"
    assert json.loads(server.receiver.one(f"/{name}/2").body) == {"n": 2}
    assert node.call("messages.get", answers[1]["messageId"])["queueName"] == name
    group = node.call("urlGroups.get", name)
    assert (group["name"], group["endpoints"]) == (name, [{"name": "first", "url": server.to(f"/{name}/1")}])
    assert name in [each["name"] for each in node.call("urlGroups.list")]
    node.call("urlGroups.removeEndpoints", {"name": name, "endpoints": [{"name": "first"}]})
    node.call("urlGroups.delete", name)
    with pytest.raises(NodeError) as gone:
        node.call("publish", {"urlGroup": name, "body": "x"})
    assert gone.value.status == 422


def test_queues(node: NodeClient, server: Server, name: str) -> None:
    node.queue(name, "upsert", {"parallelism": 3, "paused": True})
    node.queue(name, "enqueueJSON", {"url": server.to(f"/{name}"), "body": {"n": 1}})
    queue = node.queue(name, "get")
    assert (queue["parallelism"], queue["lag"], queue["paused"]) == (3, 1, True)
    node.queue(name, "resume")
    assert json.loads(server.receiver.one(f"/{name}").body) == {"n": 1}
    node.queue(name, "pause")
    assert {each["name"]: each["paused"] for each in node.call("queue.list")}[name] is True
    node.queue(name, "delete")
    with pytest.raises(NodeError) as gone:
        node.queue(name, "get")
    assert gone.value.status == 404


def test_cancelling_by_ids_by_filter_and_not_by_an_empty_id(node: NodeClient, server: Server, name: str) -> None:
    ids = [
        node.call("publish", {"url": server.to(f"/{name}/{n}"), "delay": 3600, "label": label})["messageId"]
        for n, label in enumerate((name, name, "other", "other"))
    ]
    assert node.call("messages.cancel", {"filter": {"label": name}}) == {"cancelled": 2}
    assert node.call("messages.cancel", {"filter": {"url": [server.to(f"/{name}/2"), server.to("/never")]}}) == {
        "cancelled": 1
    }
    with pytest.raises(NodeError, match="empty"):
        node.call("messages.cancel", "")
    assert node.call("messages.cancel", [ids[3]]) == {"cancelled": 1}
    with pytest.raises(NodeError) as unknown:
        node.call("messages.cancel", "019a0000-0000-7000-8000-000000000000")
    assert unknown.value.status == 404


def test_SEC_4_cancelling_all_goes_by_the_count_that_the_client_sends(
    node: NodeClient, server: Server, name: str
) -> None:
    """`cancel({ all: true })` is `?count=100` on the wire."""
    while node.call("messages.cancel", {"all": True})["cancelled"]:
        pass
    for n in range(3):
        node.call("publish", {"url": server.to(f"/{name}/{n}"), "delay": 3600})
    first = node.call("messages.cancel", {"all": True, "count": 2})
    assert first["cancelled"] == 2
    assert node.call("messages.cancel", {"all": True, "cursor": first["cursor"]}) == {"cancelled": 1}


def test_dead_letters_are_listed_retried_and_deleted(node: NodeClient, server: Server, name: str) -> None:
    """S4-28, S4-29, S4-30."""
    for n in range(3):
        node.call("publish", {"url": server.to("/status/404"), "retries": 0, "label": name, "body": str(n)})
    letters = dead(node, name, 3)
    assert {each["responseStatus"] for each in letters} == {404}
    assert {each["responseBody"] for each in letters} == {"404 Not Found"}
    retried = node.call("dlq.retry", letters[0]["dlqId"])
    assert len(retried["responses"]) == 1
    assert retried["responses"][0]["messageId"]
    dead(node, name, 3)  # it fails again, and is there again
    assert node.call("dlq.listMessages", {"dlqIds": [letters[1]["dlqId"]]})["messages"][0]["body"] == letters[1]["body"]
    page = node.call("dlq.listMessages", {"filter": {"label": name}, "count": 2})
    assert len(page["messages"]) == 2
    rest = node.call("dlq.listMessages", {"filter": {"label": name}, "count": 2, "cursor": page["cursor"]})
    assert len(rest["messages"]) == 1
    assert "cursor" not in rest
    assert node.call("dlq.delete", letters[1]["dlqId"]) == {"deleted": 1}
    with pytest.raises(NodeError) as gone:
        node.call("dlq.delete", letters[1]["dlqId"])
    assert gone.value.status == 404
    assert node.call("dlq.delete", {"filter": {"label": name}})["deleted"] == 2
    assert node.call("dlq.listMessages", {"filter": {"label": name}})["messages"] == []


def test_schedules(node: NodeClient, server: Server, name: str) -> None:
    made = node.call(
        "schedules.create",
        {
            "destination": server.to(f"/{name}"), "body": '{"hello":"world"}', "method": "GET", "delay": 10,
            "retries": 5, "headers": {"test-header": "test-value"}, "callback": "https://example.com",
            "queueName": name, "failureCallback": "https://example.com/failure", "cron": "*/10 * * * * ", "label": name,
            "flowControl": {"key": name, "parallelism": 10, "rate": 5, "period": "1d"},
        },
    )  # fmt: skip
    schedule = node.call("schedules.get", made["scheduleId"])
    expected = {
        "cron": "*/10 * * * *", "destination": server.to(f"/{name}"), "method": "GET", "body": '{"hello":"world"}',
        "header": {"Content-Type": ["application/json"], "Test-Header": ["test-value"]}, "retries": 5, "delay": 10,
        "callback": "https://example.com", "failureCallback": "https://example.com/failure", "queueName": name,
        "flowControlKey": name, "parallelism": 10, "rate": 5, "period": 86400, "isPaused": False, "label": name,
    }  # fmt: skip
    assert {key: schedule.get(key) for key in expected} == expected
    node.call("schedules.pause", {"schedule": made["scheduleId"]})
    assert node.call("schedules.get", made["scheduleId"])["isPaused"] is True
    node.call("schedules.resume", {"schedule": made["scheduleId"]})
    assert made["scheduleId"] in [each["scheduleId"] for each in node.call("schedules.list")]
    node.call("schedules.delete", made["scheduleId"])
    with pytest.raises(NodeError) as gone:
        node.call("schedules.get", made["scheduleId"])
    assert gone.value.status == 404


def test_flow_control(node: NodeClient, server: Server, name: str) -> None:
    node.call(
        "publish", {"url": server.to("/ok"), "flowControl": {"key": name, "parallelism": 5, "rate": 10, "period": "1m"}}
    )
    info = node.call("flowControl.get", name)
    assert (info["flowControlKey"], info["parallelismMax"], info["rateMax"], info["ratePeriod"]) == (name, 5, 10, 60)
    node.call("flowControl.pause", name)
    assert node.call("flowControl.get", name)["isPaused"] is True
    node.call("flowControl.resume", name)
    node.call("flowControl.pin", name, {"parallelism": 3, "rate": 20, "period": 120})
    assert node.call("flowControl.get", name)["isPinnedRate"] is True
    node.call("flowControl.unpin", name, {"parallelism": True, "rate": True})
    info = node.call("flowControl.get", name)
    assert (info["isPinnedRate"], info["isPinnedParallelism"], info["rateMax"]) == (False, False, 10)
    node.call("flowControl.resetRate", name)
    assert node.call("flowControl.getGlobalParallelism")["parallelismMax"] > 0


def test_logs_in_pages(node: NodeClient, server: Server, name: str) -> None:
    ids = [
        node.call("publish", {"url": server.to(f"/{name}"), "label": name, "body": "x"})["messageId"] for _ in range(3)
    ]
    until(
        lambda: len(node.call("logs", {"filter": {"label": name, "state": "DELIVERED"}})["logs"]) == 3,
        "three delivered",
    )
    seen: list[tuple[str, str]] = []
    cursor = None
    while True:
        page = node.call("logs", {"filter": {"label": name}, "count": 2, "cursor": cursor} if cursor else
                         {"filter": {"label": name}, "count": 2})  # fmt: skip
        seen += [(log["messageId"], log["state"]) for log in page["logs"]]
        if (cursor := page.get("cursor")) is None:
            break
    assert len(seen) == len(set(seen))
    assert {(id, state) for id in ids for state in ("CREATED", "DELIVERED")} <= set(seen)
    some = node.call("logs", {"messageIds": ids[:2]})["logs"]
    assert {log["messageId"] for log in some} == set(ids[:2])


def test_an_unknown_token_is_an_error_with_its_status(node: NodeClient, server: Server) -> None:
    with pytest.raises(NodeError) as refused:
        node.call("messages.get", "x", of={"config": {"token": "no-such-token-0123456789", "baseUrl": server.url}})
    assert refused.value.status == 401

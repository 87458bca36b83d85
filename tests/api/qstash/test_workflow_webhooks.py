"""Webhooks of workflow runs: the official SDK for Node creates and awaits them, and strangers request them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.api.qstash.conftest import CURRENT, NEXT, Server
from tests.daemon.running import until
from tests.support.nodejs import NodeWorkflows, node_workflows
from tests.support.world import SOMEBODY
from todoku.engine.http import api_tokens


@pytest.fixture(scope="module")
def workflows(server: Server) -> Iterator[NodeWorkflows]:
    """The application in Node, with a token in the form that `createWebhook` reads."""
    scopes = ("publish", "operate", "read")
    _, token = api_tokens.create(server.box.store, SOMEBODY, name="node", scopes=scopes, upstash=True)
    with node_workflows(server.url, token, (CURRENT, NEXT)) as workflows:
        yield workflows


@pytest.fixture
def stranger() -> Iterator[httpx.Client]:
    """A caller without a token."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        yield client


def trigger(workflows: NodeWorkflows, name: str, workflow: str = "hooks", **body: Any) -> str:
    options = {"url": f"{workflows.url}/{workflow}", "body": {"name": name, "timeout": "1h", **body}}
    return str(workflows.call("trigger", options)["workflowRunId"])


def created(workflows: NodeWorkflows, name: str) -> Any:
    """The webhook that a run has handed out."""
    return until(lambda: workflows.call("results")["webhooks"].get(name), "the webhook")


def result(workflows: NodeWorkflows, name: str) -> Any:
    return until(lambda: workflows.call("results")["results"].get(name), f"the result of {name}")


def test_the_run_gets_the_request_to_its_webhook(
    server: Server, workflows: NodeWorkflows, stranger: httpx.Client, name: str
) -> None:
    run_id = trigger(workflows, name)
    webhook = created(workflows, name)
    until(lambda: workflows.call("getWaiters", {"eventId": webhook["eventId"]}), "the run waits")
    url = webhook["webhookUrl"]
    answer = stranger.put(
        f"{url}?a=1&b=%20", content='{"paid":"届く"}',
        headers={"Content-Type": "application/json", "X-Own": "届く".encode(), "Webhook-Signature": "v1,abc"},
    )  # fmt: skip
    assert (answer.status_code, answer.json()) == (200, {})
    ((received,),) = [result(workflows, name)]
    assert (received["method"], received["url"], received["body"]) == ("PUT", f"{url}?a=1&b=%20", '{"paid":"届く"}')
    headers = received["headers"]
    assert (headers["content-type"], headers["webhook-signature"]) == ("application/json", "v1,abc")
    assert headers["x-own"].encode("latin-1").decode() == "届く"
    assert "host" not in headers
    assert url.startswith(f"{server.url}/v2/workflows/hooks/")
    assert f"/{run_id}/" in url
    assert re.fullmatch(r"evt_[A-Za-z0-9_-]{43}", url.rpartition("/")[2]), "todoku's token, not that of Math.random"
    until(lambda: stranger.post(url).status_code == 404, "a run that has ended serves no webhook")


def test_requests_that_come_before_the_wait_are_kept_in_their_order(
    workflows: NodeWorkflows, stranger: httpx.Client, name: str
) -> None:
    """Each wait takes one request, the oldest first: also a wait that begins later."""
    trigger(workflows, name, times=4)
    url = created(workflows, name)["webhookUrl"]
    for number in range(4):
        assert stranger.post(url, content=str(number)).status_code == 200
    assert [each["body"] for each in result(workflows, name)] == ["0", "1", "2", "3"]
    assert workflows.call("results")["ran"][f"{name} done"] == 1


def test_a_wait_for_a_webhook_ends_when_its_time_is_over(workflows: NodeWorkflows, name: str) -> None:
    trigger(workflows, name, timeout="1s")
    assert result(workflows, name) == [None]


def test_webhooks_may_be_created_and_awaited_in_parallel(
    workflows: NodeWorkflows, stranger: httpx.Client, name: str
) -> None:
    trigger(workflows, name, "parallelHooks")
    one, two = created(workflows, name)
    assert stranger.post(two["webhookUrl"], content="second").status_code == 200
    assert stranger.post(one["webhookUrl"], content="first").status_code == 200
    assert result(workflows, name) == ["first", "second"]


def test_the_sdk_fails_without_a_token_in_its_form(server: Server, name: str) -> None:
    """Why `todoku tokens create --upstash` exists: the SDK reads a UserID in its token to make the URL."""
    _, plain = api_tokens.create(server.box.store, SOMEBODY, name="plain", scopes=("publish", "read", "operate"))
    with node_workflows(server.url, plain, (CURRENT, NEXT)) as workflows:
        options = {"url": f"{workflows.url}/hooks", "body": {"name": name, "timeout": "1h"}, "retries": 0}
        run_id = workflows.call("trigger", options)["workflowRunId"]
        found = {"filter": {"workflowRunId": run_id}}
        (letter,) = until(lambda: workflows.call("dlq.list", found)["messages"], "the run fails")
        assert "Failed to decode QStash token" in letter["responseBody"]


# ------------------------------------------------------------------------------------------------- hostile


def test_a_stranger_who_knows_only_the_run_can_do_nothing(
    server: Server, workflows: NodeWorkflows, stranger: httpx.Client, name: str
) -> None:
    """The token is the only key: neither another webhook's, nor an event that the run waits for, nor a step."""
    run_id, other = trigger(workflows, name), trigger(workflows, f"{name}-other")
    url, others = created(workflows, name)["webhookUrl"], created(workflows, f"{name}-other")["webhookUrl"]
    base, token = url.rpartition("/")[0], others.rpartition("/")[2]
    waits = workflows.call(
        "trigger", {"url": f"{workflows.url}/waits", "body": {"name": f"{name}-waits", "event": name, "timeout": "1h"}}
    )["workflowRunId"]
    until(lambda: workflows.call("getWaiters", {"eventId": name}), "a run waits for an event")
    tries = (
        f"{base}/{token}",
        f"{base.replace(run_id, waits)}/{name}",
        f"{base}/{'a' * 47}",
        f"{base}/%00",
        f"{base}/",
    )
    for each in tries:
        assert stranger.post(each, content="forged").status_code in (404, 429)
    assert workflows.call("results")["results"].get(f"{name}-waits") is None
    assert server.box.store.http_runs.waiters(name)
    assert stranger.post(others, content="right").status_code == 200, "wrong ones do not keep a right one out (SEC-8)"
    assert workflows.call("cancel", [run_id, other, waits])["cancelled"] >= 2
    assert stranger.post(url).status_code in (404, 429)


def test_no_request_to_a_webhook_can_break_the_run(
    server: Server, workflows: NodeWorkflows, stranger: httpx.Client, name: str
) -> None:
    """The SDK builds a `Request` of it in every later call, which fails for some hosts, methods and headers."""
    trigger(workflows, name, times=3)
    url = created(workflows, name)["webhookUrl"]
    for method in ("TRACE", "HEAD", "OPTIONS", "BREW"):
        assert stranger.request(method, url).status_code in (400, 405)
    assert stranger.post(url, content=b"x" * ((1 << 20) + 1)).status_code == 413
    assert stranger.post(url, content=b"x", headers={"Content-Encoding": "gzip"}).status_code == 415
    hosts = {"Host": "user:password@1.2.3.4.5:99999", "Upstash-Workflow-RunId": "wfr_x", "Connection": "close"}
    assert stranger.get(url, headers=hosts).status_code == 200
    assert stranger.post(f"{url}?%ff=\\%5c%00", content=bytes(range(256))).status_code == 200
    assert stranger.delete(url, headers={"X-Any": b"\xff\xfe", "Content-Type": "a/b; charset=\xe9".encode()}).is_success
    first, second, third = result(workflows, name)
    assert (first["method"], urlsplit(first["url"]).netloc, first["body"]) == ("GET", urlsplit(server.url).netloc, "")
    assert (second["method"], third["method"]) == ("POST", "DELETE")


def test_logs_do_not_tell_the_secret_url(server: Server, workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, name)
    token = created(workflows, name)["eventId"]
    (run,) = workflows.call("logs", {"filter": {"workflowRunId": run_id}})["runs"]
    step = run["steps"][1]["steps"][0]
    assert (step["stepType"], token in str(step["out"]), "…" in step["out"]) == ("CreateWebhook", False, True)
    assert workflows.call("cancel", run_id) == {"cancelled": 1}

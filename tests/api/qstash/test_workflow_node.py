"""The official SDK of Upstash Workflow for Node, unchanged: parallel steps, events, invocations, logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.qstash.conftest import CURRENT, NEXT, TOKEN, Server
from tests.daemon.running import until
from tests.support.nodejs import NodeWorkflows, node_workflows


@pytest.fixture(scope="module")
def workflows(server: Server) -> Iterator[NodeWorkflows]:
    """The application in Node, which verifies every request."""
    with node_workflows(server.url, TOKEN, (CURRENT, NEXT)) as workflows:
        yield workflows


def trigger(workflows: NodeWorkflows, workflow: str, name: str, **body: Any) -> str:
    """Starts a run, and returns its id."""
    options = {"url": f"{workflows.url}/{workflow}", "body": {"name": name, **body}, "label": name}
    if workflow == "fails":
        options["retries"] = 1
    answer = workflows.call("trigger", {**options, "retryDelay": "100"})
    return str(answer["workflowRunId"])


def result(workflows: NodeWorkflows, name: str) -> Any:
    """What a workflow came to."""
    return until(lambda: workflows.call("results")["results"].get(name), f"the result of {name}")


def logged(workflows: NodeWorkflows, run_id: str, state: str) -> dict[str, Any]:
    """The log of a run once it is in this state."""

    def found() -> dict[str, Any] | None:
        (run,) = workflows.call("logs", {"filter": {"workflowRunId": run_id}})["runs"]
        return run if run["workflowState"] == state else None

    return until(found, f"{run_id} is {state}")


def test_steps_and_sleeps(workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "steps", name, amount=21)
    assert result(workflows, name) == 42
    log = logged(workflows, run_id, "RUN_SUCCESS")
    assert [step["stepName"] for group in log["steps"] for step in group["steps"]] == [
        "init", "reserve", "a second", "charge",
    ]  # fmt: skip
    assert (log["label"], log["workflowRunResponse"]) == (name, '{"charged":42}')
    ran = workflows.call("results")["ran"]
    assert (ran[f"{name} reserve"], ran[f"{name} charge"]) == (1, 1)


def test_parallel_steps_run_once_each_and_join_once(server: Server, workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "parallel", name, url=server.to(f"/status/200/{name}"))
    assert result(workflows, name) == ["A", "B", 200, "200 OK"]
    log = logged(workflows, run_id, "RUN_SUCCESS")
    ran = workflows.call("results")["ran"]
    assert [ran[f"{name} {step}"] for step in ("a", "b", "both")] == [1, 1, 1]
    (together,) = [group for group in log["steps"] if group["type"] == "parallel"]
    assert sorted(step["stepName"] for step in together["steps"]) == ["a", "ask", "b", "nap"]
    assert len(server.receiver.at(f"/status/200/{name}")) == 1


def test_an_event_continues_the_run_that_waits_for_it(workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "waits", name, event=name, timeout="1h")
    (waiter,) = until(lambda: workflows.call("getWaiters", {"eventId": name}), "the run waits")
    assert waiter["url"] == f"{workflows.url}/waits"
    (told,) = workflows.call("notify", {"eventId": name, "eventData": {"paid": 7}})
    assert told["waiter"]["url"] == waiter["url"]
    assert result(workflows, name) == [{"paid": 7}, False]
    logged(workflows, run_id, "RUN_SUCCESS")
    assert workflows.call("getWaiters", {"eventId": name}) == []
    assert workflows.call("notify", {"eventId": name, "eventData": "again"}) == []


def test_an_event_for_a_named_run_is_kept_until_it_waits(server: Server, workflows: NodeWorkflows, name: str) -> None:
    options = {"url": f"{workflows.url}/waits", "body": {"name": name, "event": name, "timeout": "1h"}}
    run_id = workflows.call("trigger", {**options, "delay": 2})["workflowRunId"]
    event = {"eventId": name, "eventData": "early", "workflowRunId": run_id}
    assert workflows.call("notify", event) == []
    assert result(workflows, name) == ["early", False]
    logged(workflows, run_id, "RUN_SUCCESS")


def test_a_wait_ends_when_its_time_is_over(workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "waits", name, event=name, timeout="1s")
    assert result(workflows, name) == [None, True]
    logged(workflows, run_id, "RUN_SUCCESS")


def test_a_workflow_notifies_another(workflows: NodeWorkflows, name: str) -> None:
    trigger(workflows, "waits", name, event=name, timeout="1h")
    until(lambda: workflows.call("getWaiters", {"eventId": name}), "the run waits")
    trigger(workflows, "notifies", f"{name}-two", event=name)
    assert result(workflows, f"{name}-two") == 1
    assert result(workflows, name) == [{"from": f"{name}-two"}, False]


def test_a_workflow_invokes_another_and_gets_its_result(workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "invokes", name, body={"number": 21})
    assert result(workflows, name) == [42, False]
    logged(workflows, run_id, "RUN_SUCCESS")


def test_a_workflow_learns_that_the_one_it_invoked_has_failed(workflows: NodeWorkflows, name: str) -> None:
    trigger(workflows, "invokes", name, body={"number": 21, "fails": True})
    assert result(workflows, name) == ["", True]


def test_a_run_is_cancelled_by_its_client_and_by_itself(workflows: NodeWorkflows, name: str) -> None:
    waiting = trigger(workflows, "waits", name, event=name, timeout="1h")
    until(lambda: workflows.call("getWaiters", {"eventId": name}), "the run waits")
    assert workflows.call("cancel", waiting) == {"cancelled": 1}
    logged(workflows, waiting, "RUN_CANCELED")
    assert workflows.call("notify", {"eventId": name, "eventData": 1}) == []
    assert workflows.call("cancel", waiting) == {"cancelled": 0}
    logged(workflows, trigger(workflows, "cancels", f"{name}-itself"), "RUN_CANCELED")


def test_a_failure_function_is_called_once_after_the_retries(workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "fails", name)
    failure = until(lambda: workflows.call("results")["failures"].get(name), "the failure function")
    assert failure == [500, "out of stock", run_id]
    log = logged(workflows, run_id, "RUN_FAILED")
    assert log["steps"][-1]["steps"][0]["state"] == "STEP_FAILED"
    assert workflows.call("results")["ran"][f"{name} bad"] == 2


def test_a_failed_run_is_listed_resumed_restarted_and_given_up(workflows: NodeWorkflows, name: str) -> None:
    run_id = trigger(workflows, "fails", name)

    def dead(of: str) -> str:
        found = {"filter": {"workflowRunId": of}}
        (letter,) = until(lambda: workflows.call("dlq.list", found)["messages"], "a dead letter")
        assert (letter["workflowRunId"], letter["responseStatus"]) == (of, 500)
        assert letter["workflowUrl"] == f"{workflows.url}/fails"
        return str(letter["dlqId"])

    first = dead(run_id)
    resumed = workflows.call("dlq.resume", {"dlqId": first})
    assert resumed["workflowRunId"] == run_id
    second = until(lambda: again if (again := dead(run_id)) != first else None, "it fails again")
    restarted = workflows.call("dlq.restart", second)["workflowRuns"][0]["workflowRunId"]
    assert restarted != run_id
    logged(workflows, run_id, "RUN_CANCELED")
    third = dead(restarted)
    assert workflows.call("dlq.delete", third) == {"deleted": 1}
    assert workflows.call("dlq.list", {"filter": {"workflowRunId": restarted}})["messages"] == []


def test_runs_are_found_and_cancelled_by_every_filter_of_the_sdk(
    server: Server, workflows: NodeWorkflows, name: str
) -> None:
    options = {"url": f"{workflows.url}/waits", "body": {"name": name, "event": name, "timeout": "1h"}, "label": name}
    run_id = workflows.call("trigger", {**options, "flowControl": {"key": name, "parallelism": 3}})["workflowRunId"]
    until(lambda: workflows.call("getWaiters", {"eventId": name}), "the run waits")
    (run,) = workflows.call("logs", {"filter": {"workflowRunId": run_id}})["runs"]
    created, message = run["workflowRunCreatedAt"], run["steps"][0]["steps"][0]["messageId"]
    host = workflows.url.removeprefix("http://")
    matching: list[dict[str, Any]] = [
        {"host": host}, {"host": "127.0.0.1"}, {"path": ["/waits", "/other"]}, {"callerIp": "127.0.0.1"},
        {"flowControlKey": name}, {"fromDate": created, "toDate": created + 1000},
        {"workflowUrl": f"{workflows.url}/waits"},
    ]  # fmt: skip
    others: list[dict[str, Any]] = [
        {"host": "localhost"}, {"path": "/wait"}, {"callerIp": "10.0.0.1"}, {"flowControlKey": "x"},
        {"toDate": created - 1000},
    ]  # fmt: skip
    for filter in (*matching, {"workflowCreatedAt": created}, {"messageId": message}):
        found = workflows.call("logs", {"filter": {**filter, "label": name}})["runs"]
        assert [each["workflowRunId"] for each in found] == [run_id], filter
    for filter in (*others, {"workflowCreatedAt": created + 10}, {"messageId": "msg_none"}):
        assert workflows.call("logs", {"filter": {**filter, "label": name}})["runs"] == [], filter
    for filter in others:
        assert workflows.call("cancel", {"filter": {**filter, "label": name}}) == {"cancelled": 0}, filter
    prefixes = ["https://none.example", f"{workflows.url}/wai"]
    every = {key: value for each in matching[:-1] for key, value in each.items()}
    chosen = {**every, "label": name, "workflowUrlStartingWith": prefixes}
    assert workflows.call("cancel", {"filter": chosen}) == {"cancelled": 1}
    logged(workflows, run_id, "RUN_CANCELED")


def test_a_run_is_triggered_by_one_request_without_the_headers_of_an_sdk(
    server: Server, workflows: NodeWorkflows, name: str
) -> None:
    """`POST /v2/trigger/{url}`: todoku adds what the SDK needs, also to be told that the run has failed."""
    headers = {"Upstash-Label": name, "Content-Type": "application/json", "Upstash-Forward-X-Own": "1"}
    url = f"/v2/trigger/{workflows.url}"
    answer = server.raw.post(f"{url}/steps", json={"name": name, "amount": 4}, headers=headers)
    run_id = answer.json()["workflowRunId"]
    assert (answer.status_code, run_id[:4]) == (200, "wfr_")
    assert result(workflows, name) == 8
    assert logged(workflows, run_id, "RUN_SUCCESS")["workflowRunCreatedAt"] == answer.json()["workflowCreatedAt"]
    chosen = {**headers, "Upstash-Workflow-RunId": f"wfr_{name}", "Upstash-Retries": "0"}
    for _ in range(2):
        again = server.raw.post(f"{url}/fails", json={"name": f"{name}-fails"}, headers=chosen)
        assert again.json()["workflowRunId"] == f"wfr_{name}"
    failure = until(lambda: workflows.call("results")["failures"].get(f"{name}-fails"), "the failure function")
    assert failure == [500, "out of stock", f"wfr_{name}"]
    assert server.raw.post("/v2/trigger/a-group").status_code == 422
    logged(workflows, f"wfr_{name}", "RUN_FAILED")


def test_many_runs_are_triggered_by_one_request_or_none(server: Server, workflows: NodeWorkflows, name: str) -> None:
    items = [
        {"destination": f"{workflows.url}/steps", "body": {"name": f"{name}-{number}", "amount": number}}
        for number in (1, 2)
    ]
    refused = server.raw.post("/v2/batch/trigger", json=[*items, {"destination": "a-group"}])
    assert refused.status_code == 422
    started = server.raw.post("/v2/batch/trigger", json=items).json()
    assert len({run["workflowRunId"] for run in started}) == 2
    assert [result(workflows, f"{name}-{number}") for number in (1, 2)] == [2, 4]

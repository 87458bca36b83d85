"""The official SDK of Upstash Workflow for Python, unchanged: todoku stores its steps and calls it again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from qstash import QStash

from tests.api.qstash.conftest import CURRENT, NEXT, TOKEN, Server
from tests.api.qstash.workflow_server import Workflows, serving_workflows
from tests.daemon.running import until

STATES = {"RUN_STARTED", "RUN_SUCCESS", "RUN_FAILED", "RUN_CANCELED"}


@pytest.fixture(scope="module")
def workflows(server: Server) -> Iterator[Workflows]:
    """The application, which verifies every request."""
    with serving_workflows(server.url, TOKEN, (CURRENT, NEXT)) as workflows:
        yield workflows


def start(client: QStash, workflows: Workflows, path: str, **payload: Any) -> None:
    """Publishes to a workflow's URL, as its documentation says."""
    client.message.publish_json(url=f"{workflows.url}{path}", body=payload, headers={"X-Tenant": "blue"})


def log(server: Server, run_id: str) -> dict[str, Any]:
    """What the log says of a run."""
    (run,) = server.raw.get("/v2/workflows/logs", params={"workflowRunId": run_id}).json()["runs"]
    assert run["workflowState"] in STATES
    return dict(run)


def ended(server: Server, run_id: str, state: str) -> dict[str, Any]:
    """The run once it is in this state."""
    return until(lambda: run if (run := log(server, run_id))["workflowState"] == state else None, f"{state}")


def test_steps_and_sleeps_run_once_in_order_with_their_results(
    server: Server, client: QStash, workflows: Workflows, name: str
) -> None:
    start(client, workflows, "/orders", name=name, amount=21)
    assert workflows.result(name) == 42
    assert workflows.steps[f"{name} reserve"] == workflows.steps[f"{name} charge"] == 1
    assert workflows.seen[name]["x-tenant"] == "blue"
    run = ended(server, workflows.runs[name], "RUN_SUCCESS")
    names = [step["stepName"] for group in run["steps"] for step in group["steps"]]
    assert names == ["init", "reserve", "a second", "until now", "charge"]
    assert server.raw.get(f"/v2/workflows/runs/{run['workflowRunId']}").status_code == 404  # it has ended


@pytest.mark.parametrize("answer", [(200, "200 OK"), (404, "404 Not Found")])
def test_a_call_gives_the_answer_of_a_third_party_whatever_it_is(
    server: Server, client: QStash, workflows: Workflows, name: str, answer: tuple[int, str]
) -> None:
    path = f"/status/{answer[0]}/{name}"
    start(client, workflows, "/calls", name=name, url=server.to(path))
    assert workflows.result(name) == (*answer, ["yes"])
    came = server.receiver.one(path)
    assert json.loads(came.body) == {"question": 7}
    assert came.headers["x-ours"] == "yes"
    assert not [header for header in came.headers if header.startswith("upstash-workflow-")]
    ended(server, workflows.runs[name], "RUN_SUCCESS")


@pytest.mark.slow
def test_a_step_that_keeps_failing_fails_the_run_once_and_a_retry_of_its_dead_letter_resumes_it(
    server: Server, client: QStash, workflows: Workflows, name: str
) -> None:
    start(client, workflows, "/fails", name=name)
    status, response, run_id = until(lambda: workflows.failures.get(name), "the failure function")
    assert (status, response) == (500, "out of stock")
    assert run_id == workflows.runs[name]
    assert (workflows.steps[f"{name} good"], workflows.steps[f"{name} bad"]) == (1, 2)
    run = ended(server, run_id, "RUN_FAILED")
    workflows.results["mended"] = True
    assert server.raw.post(f"/v2/dlq/retry/{run['dlqId']}").status_code == 201
    assert workflows.result(name) == "came through"
    ended(server, run_id, "RUN_SUCCESS")
    assert workflows.steps[f"{name} good"] == 1


def test_a_cancelled_run_goes_no_further(server: Server, client: QStash, workflows: Workflows, name: str) -> None:
    start(client, workflows, "/stops", name=name)
    until(lambda: workflows.steps[f"{name} before"], "the first step")
    run_id = workflows.runs[name]
    until(lambda: len(server.raw.get(f"/v2/workflows/runs/{run_id}").json()) == 3, "the run sleeps")
    assert server.raw.delete(f"/v2/workflows/runs/{run_id}?cancel=true").status_code == 200
    ended(server, run_id, "RUN_CANCELED")
    headers = {
        "Upstash-Workflow-RunId": run_id, "Upstash-Workflow-Init": "false",
        "Upstash-Workflow-Url": f"{workflows.url}/stops",
    }  # fmt: skip
    late = server.raw.post(f"/v2/publish/{workflows.url}/stops", headers=headers, json={"stepId": 3})
    assert (late.status_code, "has ended" in late.json()["error"]) == (400, True)
    assert server.raw.delete(f"/v2/workflows/runs/{run_id}?cancel=true").status_code == 200
    assert server.raw.delete("/v2/workflows/runs/wfr_unknown?cancel=true").status_code == 404


def test_a_request_without_our_signature_is_refused_by_the_application(workflows: Workflows, name: str) -> None:
    for headers in ({}, {"Upstash-Signature": "ey.no.t"}):
        answer = httpx.post(f"{workflows.url}/orders", json={"name": name, "amount": 1}, headers=headers)
        assert answer.status_code == 500
        assert "verify" in answer.json()["message"]
    assert name not in workflows.runs


def test_a_step_has_one_result_however_often_it_is_published(server: Server, name: str) -> None:
    """After a lost reply the SDK publishes again: the run has the first result, and one call for it."""
    url, run_id = server.to(f"/{name}"), f"wfr_{name}"
    headers = {"Upstash-Workflow-RunId": run_id, "Upstash-Workflow-Url": url, "Upstash-Workflow-Init": "true"}
    first = server.raw.post(f"/v2/publish/{url}", headers=headers, content=b"begin")
    again = server.raw.post(f"/v2/publish/{url}", headers=headers, content=b"other")
    assert (first.status_code, again.status_code) == (200, 202)
    assert again.json() == {**first.json(), "deduplicated": True}
    step = {"stepId": 1, "stepName": "one", "stepType": "Run", "concurrent": 1}
    headers["Upstash-Workflow-Init"] = "false"
    one = server.raw.post(f"/v2/publish/{url}", headers=headers, json={**step, "out": '"a"'})
    two = server.raw.post(f"/v2/publish/{url}", headers=headers, json={**step, "out": '"b"'})
    assert two.json() == {**one.json(), "deduplicated": True}
    until(lambda: len(server.receiver.at(f"/{name}")) == 2, "two calls")
    items = server.raw.get(f"/v2/workflows/runs/{run_id}").json()
    assert [item["messageId"] for item in items] == [first.json()["messageId"], one.json()["messageId"]]
    calls = [json.loads(call.body) for call in server.receiver.at(f"/{name}")]
    assert sorted(calls, key=len) == [items[:1], items]

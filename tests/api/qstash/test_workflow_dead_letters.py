"""Dead letters of workflow runs, by the official SDK for Node: lists of ids, filters, all, cursors, other options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api.qstash.conftest import CURRENT, NEXT, TOKEN, Server
from tests.daemon.running import until
from tests.support.nodejs import NodeError, NodeWorkflows, node_workflows


@pytest.fixture(scope="module")
def workflows(server: Server) -> Iterator[NodeWorkflows]:
    with node_workflows(server.url, TOKEN, (CURRENT, NEXT)) as workflows:
        yield workflows


def fail(workflows: NodeWorkflows, name: str, **options: Any) -> str:
    """Starts a run that fails at once."""
    made = {"url": f"{workflows.url}/flaky", "body": {"name": name}, "label": name, "retries": 0, **options}
    return str(workflows.call("trigger", made)["workflowRunId"])


def dead(workflows: NodeWorkflows, number: int, **filter: Any) -> list[dict[str, Any]]:
    """So many dead letters that match."""

    def found() -> tuple[list[dict[str, Any]]] | None:
        letters: list[dict[str, Any]] = workflows.call("dlq.list", {"filter": filter})["messages"]
        return (letters,) if len(letters) == number else None

    return until(found, f"{number} dead letters", seconds=30)[0]


def came_through(workflows: NodeWorkflows, *names: str) -> bool:
    return until(
        lambda: all(workflows.call("results")["results"].get(name) == "came through" for name in names), "all results"
    )


def test_a_list_of_ids_is_resumed_restarted_and_deleted(workflows: NodeWorkflows, name: str) -> None:
    runs = [fail(workflows, name) for _ in range(3)]
    letters = dead(workflows, 3, label=name)
    ids = [letter["dlqId"] for letter in letters]
    assert workflows.call("dlq.delete", ids[:1]) == {"deleted": 1}
    workflows.call("mend", name)
    resumed = workflows.call("dlq.resume", ids[1:2])["workflowRuns"]
    assert [run["workflowRunId"] for run in resumed] == [letters[1]["workflowRunId"]]
    restarted = workflows.call("dlq.restart", ids[2:])["workflowRuns"]
    assert restarted[0]["workflowRunId"] not in runs
    assert came_through(workflows, name)
    dead(workflows, 0, label=name)
    assert workflows.call("dlq.resume", ids) == {"workflowRuns": []}, "what is gone is passed over"


@pytest.mark.parametrize("act", ["resume", "restart", "delete"])
def test_a_filter_selects_and_a_cursor_goes_on(workflows: NodeWorkflows, name: str, act: str) -> None:
    """As the SDK documents it: repeat with the cursor until there is none. Others are left alone."""
    names = [f"{name}-{number}" for number in range(5)]
    for each in names:
        fail(workflows, each, label=name)
    other = fail(workflows, f"{name}-other")
    dead(workflows, 5, label=name)
    dead(workflows, 1, label=f"{name}-other")
    for each in names:
        workflows.call("mend", each)
    done, cursor, calls = 0, None, 0
    while calls == 0 or cursor:
        asked = {"filter": {"label": name}, "count": 2} | ({"cursor": cursor} if cursor else {})
        answer = workflows.call(f"dlq.{act}", asked)
        done += answer["deleted"] if act == "delete" else len(answer["workflowRuns"])
        cursor, calls = answer.get("cursor"), calls + 1
    assert (done, calls >= 3) == (5, True)
    if act != "delete":
        assert came_through(workflows, *names)
    dead(workflows, 0, label=name)
    assert [each["workflowRunId"] for each in dead(workflows, 1, label=f"{name}-other")] == [other]
    assert workflows.call("dlq.delete", {"filter": {"workflowRunId": other}}) == {"deleted": 1}


def test_every_filter_of_the_sdk_is_understood(workflows: NodeWorkflows, name: str) -> None:
    flow = {"key": name, "parallelism": 5}
    run_id = fail(workflows, name, flowControl=flow)
    (letter,) = dead(workflows, 1, label=name)
    created, failed = letter["workflowCreatedAt"], letter["failedAt"]
    matching: list[dict[str, Any]] = [
        {"label": [name, "other"]}, {"workflowRunId": run_id}, {"workflowCreatedAt": created, "label": name},
        {"flowControlKey": name}, {"workflowUrl": f"{workflows.url}/flaky", "label": name},
        {"callerIp": "127.0.0.1", "label": name}, {"label": name, "fromDate": failed - 1, "toDate": failed + 1},
        {"label": name, "responseStatus": 500},
    ]  # fmt: skip
    for filter in matching:
        assert [each["workflowRunId"] for each in dead(workflows, 1, **filter)] == [run_id], filter
    for filter in (
        {"label": "none"}, {"workflowUrl": f"{workflows.url}/other", "label": name}, {"workflowCreatedAt": created + 1},
        {"flowControlKey": f"{name}-2"}, {"callerIp": "10.9.9.9", "label": name}, {"fromDate": failed + 60_000},
    ):  # fmt: skip
        assert workflows.call("dlq.delete", {"filter": {**filter, "label": filter.get("label", name)}})["deleted"] == 0
    assert workflows.call("dlq.delete", {"filter": {"flowControlKey": name}}) == {"deleted": 1}


def test_all_means_those_of_workflows_and_nothing_else(server: Server, workflows: NodeWorkflows, name: str) -> None:
    """SEC-4: neither other dead letters, nor requests to third parties that were answered, nor failure callbacks."""
    plain = server.raw.post(
        f"/v2/publish/{server.to(f'/status/500/{name}')}", headers={"Upstash-Retries": "0", "Upstash-Label": name}
    ).json()["messageId"]
    until(lambda: server.raw.get(f"/v2/dlq?label={name}").json()["messages"], "a dead letter of no workflow")
    for number in range(3):
        fail(workflows, f"{name}-{number}")
        dead(workflows, 1, label=f"{name}-{number}")
    cursor, calls = None, 0
    while calls == 0 or cursor:
        answer = workflows.call("dlq.delete", {"all": True, "count": 2} | ({"cursor": cursor} if cursor else {}))
        cursor, calls = answer.get("cursor"), calls + 1
    assert workflows.call("dlq.list")["messages"] == []
    (left,) = server.raw.get(f"/v2/dlq?label={name}").json()["messages"]
    assert left["messageId"] == plain


@pytest.mark.slow
@pytest.mark.parametrize("act", ["resume", "restart"])
def test_runs_go_on_with_other_retries_and_limits(
    server: Server, workflows: NodeWorkflows, name: str, act: str
) -> None:
    """The failed call is made by a new message, and the next ones have the new options, too."""
    fail(workflows, name)
    (letter,) = dead(workflows, 1, label=name)
    flow = {"key": f"{name}-new", "rate": 10, "period": "1m"}
    (run,) = workflows.call(f"dlq.{act}", letter["dlqId"], {"retries": 1, "flowControl": flow})["workflowRuns"]
    (again,) = until(
        lambda: [each for each in dead(workflows, 1, label=name) if each["dlqId"] != letter["dlqId"]], "it fails again"
    )
    assert (again["workflowRunId"], again["maxRetries"]) == (run["workflowRunId"], 1)
    assert (again["flowControlKey"], again["rate"]) == (f"{name}-new", 10)
    ran = workflows.call("results")["ran"]
    assert (ran[f"{name} bad"], ran[f"{name} good"]) == (3, 1 if act == "resume" else 2), "one, then two with a retry"
    workflows.call("mend", name)
    assert workflows.call("dlq.resume", again["dlqId"])["workflowRuns"] == [run]
    assert came_through(workflows, name)


def test_a_failure_function_that_failed_is_listed_and_called_again(workflows: NodeWorkflows, name: str) -> None:
    run_id = fail(workflows, name)

    def with_callback() -> list[dict[str, Any]]:
        found = {"filter": {"failureFunctionState": "CALLBACK_FAIL", "label": name}}
        letters: list[dict[str, Any]] = workflows.call("dlq.list", found)["messages"]
        return letters

    (letter,) = until(with_callback, "the failure function fails")
    info = letter["failureCallbackInfo"]
    assert (letter["workflowRunId"], info["state"], info["responseStatus"]) == (run_id, "CALLBACK_FAIL", 500)
    workflows.call("mend", f"{name} failure")
    answer = workflows.call("dlq.retryFailureFunction", {"dlqId": letter["dlqId"]})
    assert (answer["workflowRunId"], answer["workflowCreatedAt"]) == (run_id, letter["workflowCreatedAt"])
    assert until(lambda: workflows.call("results")["failures"].get(name), "the failure function") == run_id
    until(lambda: with_callback() == [], "it has not failed any more")
    with pytest.raises(NodeError) as refused:
        workflows.call("dlq.retryFailureFunction", {"dlqId": letter["dlqId"]})
    assert refused.value.status == 422
    assert workflows.call("dlq.delete", letter["dlqId"]) == {"deleted": 1}


def test_one_dead_letter_by_its_id_over_http(server: Server, workflows: NodeWorkflows, name: str) -> None:
    run_id = fail(workflows, name)
    (letter,) = dead(workflows, 1, label=name)
    at = f"/v2/workflows/dlq/{letter['dlqId']}"
    assert server.raw.get(at).json()["workflowRunId"] == run_id
    answer = server.raw.post(f"/v2/workflows/dlq/resume/{letter['dlqId']}")
    assert answer.json()["workflowRunId"] == run_id
    (again,) = until(lambda: [x for x in dead(workflows, 1, label=name) if x != letter], "it fails again")
    assert server.raw.get(at).status_code == 404
    restarted = server.raw.post(f"/v2/workflows/dlq/restart/{again['dlqId']}").json()["workflowRunId"]
    (third,) = dead(workflows, 1, workflowRunId=restarted)
    assert server.raw.delete(f"/v2/workflows/dlq/{third['dlqId']}").status_code == 200
    for method, path in (
        ("GET", at), ("DELETE", at), ("POST", f"/v2/workflows/dlq/callback/{letter['dlqId']}"),
        ("POST", "/v2/workflows/dlq/resume/1-0"), ("POST", "/v2/workflows/dlq/restart/nonsense"),
    ):  # fmt: skip
        assert server.raw.request(method, path).status_code == 404


@pytest.mark.parametrize(
    "query",
    ["", "?cursor=1.1", "?labels=x", "?label=", "?all=yes", "?all=true&label=x", "?failureFunctionState=ODD&all=true"],
)
def test_nothing_is_changed_by_a_slip(raw: httpx.Client, query: str) -> None:
    """SEC-4: a filter that is missing, empty or not understood selects nothing."""
    for method, path in (("POST", "/resume"), ("POST", "/restart"), ("DELETE", "")):
        assert raw.request(method, f"/v2/workflows/dlq{path}{query}").status_code == 422


def test_options_that_cannot_be_changed_are_refused(raw: httpx.Client) -> None:
    for header in ("Upstash-Delay", "Upstash-Label", "Upstash-Failure-Callback", "Upstash-Retry-Delay"):
        answer = raw.post("/v2/workflows/dlq/resume?dlqIds=1-0", headers={header: "1"})
        assert answer.status_code == 422

"""`/v2/workflows`, `/v2/wait`, `/v2/notify` and `/v2/waiters`: workflow runs, for the SDKs of Upstash Workflow."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.problem import Refused
from todoku.api.qstash.answers import empty_response, json, milliseconds_or_none
from todoku.api.qstash.messages import after, message_ids, refuse_unclear
from todoku.api.qstash.parsing import LARGEST, Query, option_fields, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.duration import milliseconds
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import dead_id
from todoku.core.workflow_run import Wait, run_options
from todoku.core.workflow_webhook import webhook_digest, webhook_event
from todoku.engine.http import run_views
from todoku.engine.http.run_acts import HttpRunActs
from todoku.engine.http.run_calls import RunCalls
from todoku.engine.http.run_views import RunView, StepView
from todoku.store.deliveries import Delivery
from todoku.store.http_runs import RunFilter, ShownState, WaiterRow

_RUNS_A_PAGE: Final = 10
_MOST_RUNS: Final = 100
_MOST_CANCELLED: Final = 1000
_STATES: Final[dict[str, ShownState]] = {
    "RUN_STARTED": "started", "RUN_SUCCESS": "success", "RUN_FAILED": "failed", "RUN_CANCELED": "canceled",
}  # fmt: skip
_OF_RUNS: Final = (
    "workflowRunId", "workflowRunIds", "workflowUrl", "workflowUrlExactMatch", "label", "fromDate", "toDate", "count",
    "host", "path", "callerIp", "flowControlKey",
)  # fmt: skip
_MILLISECOND: Final = timedelta(milliseconds=1)
"""Clients get the time of a start in whole milliseconds."""

_NO_MESSAGE: Final = UUID(int=0)
_OF_LOGS: Final = (*_OF_RUNS, "state", "cursor", "groupBy", "workflowCreatedAt", "messageId")


class WorkflowEndpoints:
    """The endpoints of workflow runs."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._acts, self._calls = HttpRunActs(context.outbox), RunCalls(context.outbox)

    async def end(self, request: Request) -> Response:
        """Ends a run: its code has returned (`cancel=false`), or it is to stop (`cancel=true`)."""
        query, id = Query(request, ("cancel",)), segment(request, "id")
        body = await read_body(request, limit=self._context.settings.max_payload_bytes)
        if query.flag("cancel"):
            await asyncio.to_thread(self._acts.cancel, id, signed(request, "cancel"))
        else:
            await asyncio.to_thread(self._acts.finish, id, body)
        return empty_response()

    def cancel_many(self, request: Request) -> Response:
        """Cancels runs by id or filter, or all of them by `all=true` or `count`."""
        query = Query(request, (*_OF_RUNS, "all"))
        limit = query.count(_MOST_CANCELLED)
        which = _filter(query, by_prefix=True)
        refuse_unclear(query, is_filtered=which != RunFilter())
        return json({"cancelled": self._acts.cancel_many(which, signed(request, "cancel"), limit=limit)})

    def steps(self, request: Request) -> Response:
        """Returns the steps of a run that has not ended, as its calls contain them."""
        return json(self._calls.steps(segment(request, "id")))

    def logs(self, request: Request) -> Response:
        """Lists runs with their steps, the newest first."""
        query = Query(request, _OF_LOGS)
        limit = min(query.number("count", least=1, most=10**9) or _RUNS_A_PAGE, _MOST_RUNS)
        page = run_views.find(self._context.outbox, _filter(query), cursor=query.one("cursor"), limit=limit)
        runs = [_run(view) for view in page.runs]
        return json({"runs": runs} | ({} if page.cursor is None else {"cursor": page.cursor}))

    async def wait(self, request: Request) -> Response:
        """Lets a step of a run wait for an event."""
        if (run := run_options(option_fields(request))) is None:
            raise InvalidMessage("Upstash-Workflow-RunId is missing", hint="only the SDK of a workflow waits")
        wait = decode_json(await read_body(request, limit=LARGEST), Wait)
        id = await asyncio.to_thread(self._acts.wait, run.id, segment(request, "event"), wait)
        return json({"messageId": str(id)})

    async def notify(self, request: Request) -> Response:
        """Sends an event to the runs that wait for it, or to the named run, which may wait for it later."""
        body = await read_body(request, limit=self._context.settings.max_payload_bytes)
        run_id = request.path_params.get("run")
        found = await asyncio.to_thread(self._acts.notify, segment(request, "event"), body, run_id)
        return json([{"waiter": _waiter(row, url), "messageId": str(row.message_id)} for row, url in found])

    def waiters(self, request: Request) -> Response:
        """Lists the runs that wait for an event."""
        store = self._context.store.http_runs
        event = segment(request, "event")
        rows = store.waiters(event) or store.waiters(webhook_event(webhook_digest(event)))
        runs = {run.id: run.url for run in store.find(RunFilter(ids=tuple(row.run_id for row in rows)))} if rows else {}
        return json([_waiter(row, runs.get(row.run_id, "")) for row in rows])


def _filter(query: Query, *, by_prefix: bool = False) -> RunFilter:
    """Returns the filter of a query. `by_prefix`: `workflowUrl` is the beginning of URLs, unless it says otherwise."""
    state, is_prefix = query.one("state"), by_prefix and not query.flag("workflowUrlExactMatch")
    if state is not None and state not in _STATES:
        raise Refused(422, f"state cannot be {state[:64]!r}", hint=", ".join(_STATES))
    since, until, messages = query.moment("fromDate"), after(query.moment("toDate")), query.many("messageId")
    if (started := query.moment("workflowCreatedAt")) is not None:
        since, until = max(started, since or started), min(started + _MILLISECOND, until or started + _MILLISECOND)
    return RunFilter(
        ids=query.many("workflowRunId", "workflowRunIds"),
        urls=() if is_prefix else query.many("workflowUrl"),
        prefixes=query.many("workflowUrl") if is_prefix else (),
        hosts=query.many("host"),
        paths=query.many("path"),
        labels=query.many("label"),
        caller_ips=query.many("callerIp"),
        flow_keys=query.many("flowControlKey"),
        messages=message_ids(messages) or ((_NO_MESSAGE,) if messages else ()),
        state=None if state is None else _STATES[state],
        since=since,
        until=until,
    )


# ------------------------------------------------------------------------------------------------ answers


def _waiter(row: WaiterRow, url: str) -> dict[str, Any]:
    return {"url": url, "deadline": milliseconds(row.deadline) // 1000, "headers": {}, "workflowRunId": row.run_id}


def _run(view: RunView) -> dict[str, Any]:
    run = view.run
    optional = {
        "workflowRunCompletedAt": milliseconds_or_none(run.ended_at),
        "workflowRunResponse": view.result or None,
        "invoker": None if run.invoker is None else {"workflowRunId": run.invoker},
        "label": run.labels[0] if run.labels else None,
        "labels": run.labels or None,
        "dlqId": next((dead_id(row.id, row.replay_count) for row in view.calls if row.status == "aborted"), None),
    }
    return {
        "workflowRunId": run.id,
        "workflowUrl": run.url,
        "workflowState": f"RUN_{run.state.upper()}",
        "workflowRunCreatedAt": milliseconds(run.created_at),
        "steps": _groups(view),
    } | {name: value for name, value in optional.items() if value is not None}


def _groups(view: RunView) -> list[dict[str, Any]]:
    """Groups the steps: parallel ones together, by the number of steps that the SDK ran at once; then what is next."""
    groups: list[dict[str, Any]] = []
    for step in view.steps:
        if step.row.call_type != "step" or step.row.key.startswith("plan-"):
            continue
        made, at_once = _step(step, view.retries), step.concurrent
        if at_once > 1 and groups and groups[-1]["type"] == "parallel" and len(groups[-1]["steps"]) < at_once:
            groups[-1]["steps"].append(made)
        else:
            groups.append({"type": "parallel" if at_once > 1 else "sequential", "steps": [made]})
    if view.calls:
        groups.append({"type": "next", "steps": [_next(row, view.retries) for row in view.calls]})
    return groups


_STEP_FIELDS: Final = ("sleepFor", "sleepUntil", "waitEventId", "waitTimeout", "callUrl", "callMethod")
_NEXT_STATES: Final = {"aborted": "STEP_FAILED", "failed": "STEP_RETRY"}


def _step(step: StepView, retries: int) -> dict[str, Any]:
    row, body = step.row, step.body
    known = body if isinstance(body, dict) and row.position > 0 else {"out": body}
    return {
        "stepId": known.get("stepId", 0),
        "stepName": row.name,
        "stepType": row.type,
        "callType": row.call_type,
        "messageId": str(row.message_id),
        "out": known.get("out"),
        "retries": retries,
        "concurrent": step.concurrent,
        "state": "STEP_SUCCESS",
        "createdAt": milliseconds(row.created_at),
        "headers": {},
    } | {name: known[name] for name in _STEP_FIELDS if known.get(name) is not None}


def _next(row: Delivery, retries: int) -> dict[str, Any]:
    state = _NEXT_STATES.get(row.status, "STEP_PROGRESS")
    return {"messageId": str(row.message_id), "state": state, "retries": retries, "errors": []}

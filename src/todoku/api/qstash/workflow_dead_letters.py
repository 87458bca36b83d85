"""`/v2/workflows/dlq`: dead letters of workflow runs, by id or filter."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.problem import Refused
from todoku.api.qstash.answers import DeadPage, dead_letter, empty_response, json
from todoku.api.qstash.messages import after, refuse_unclear
from todoku.api.qstash.parsing import Query, option_fields, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.duration import milliseconds
from todoku.core.errors import NotThere
from todoku.core.upstash_headers import parse_options
from todoku.engine.http.dead_letters import RequestDeadLetter, Selection
from todoku.engine.http.run_dead_letters import OptionChanges, ResumedRun, ResumedRuns, RunDeadLetters, RunSelection
from todoku.store.deliveries import Filter

_MOST: Final = 100
"""Runs that one request changes; a cursor says that there are more."""

_MOST_IDS: Final = 1000
_LATEST_MS: Final = 253_402_300_799_000
_FAILED: Final = "CALLBACK_FAIL"
_PARAMETERS: Final = (
    "dlqIds", "fromDate", "toDate", "callerIp", "label", "flowControlKey", "workflowUrl", "url", "workflowRunId",
    "workflowCreatedAt", "failureFunctionState", "responseStatus", "count", "cursor", "all",
)  # fmt: skip
_KEPT_OPTIONS: Final = (
    "upstash-delay", "upstash-not-before", "upstash-retry-delay", "upstash-label", "upstash-failure-callback",
)  # fmt: skip


class WorkflowDeadLetterEndpoints:
    """The endpoints of dead letters of workflow runs."""

    def __init__(self, context: RequestContext) -> None:
        self._letters = RunDeadLetters(context.outbox)

    def list_all(self, request: Request) -> Response:
        """Returns one page of dead letters that runs stop for, newest first."""
        query = Query(request)
        page = self._letters.find(_selection(query), cursor=query.one("cursor"), limit=query.count(_MOST))
        callbacks = self._letters.failed_callbacks(page.items)
        shown = [dead_letter(each, callbacks.get(each.request.message_id)) for each in page.items]
        return json(DeadPage(messages=shown, cursor=page.cursor))

    def get(self, request: Request) -> Response:
        """Returns one dead letter."""
        refuse_query_and_body(request)
        letter = self._one(segment(request, "id"))
        callback = self._letters.failed_callbacks([letter]).get(letter.request.message_id)
        return json(dead_letter(letter, callback))

    def resume(self, request: Request) -> Response:
        """Goes on with the steps that have failed."""
        which, limit, cursor = _chosen(request)
        done = self._letters.resume(
            which, signed(request, "resume"), changes=_changes(request), cursor=cursor, limit=limit
        )
        return json(_resumed(done))

    def restart(self, request: Request) -> Response:
        """Begins failed runs again, as new ones."""
        which, limit, cursor = _chosen(request)
        done = self._letters.restart(
            which, signed(request, "restart"), changes=_changes(request), cursor=cursor, limit=limit
        )
        return json(_resumed(done))

    def remove(self, request: Request) -> Response:
        """Deletes dead letters: their runs do not go on."""
        which, limit, cursor = _chosen(request)
        number, following = self._letters.remove(which, signed(request, "delete"), cursor=cursor, limit=limit)
        return json({"deleted": number} | ({} if following is None else {"cursor": following}))

    def resume_one(self, request: Request) -> Response:
        """Goes on with the step that has failed."""
        which, who = self._just(request), signed(request, "resume")
        return _only(self._letters.resume(which, who, changes=_changes(request)), request)

    def restart_one(self, request: Request) -> Response:
        """Begins a failed run again, as a new one."""
        which, who = self._just(request), signed(request, "restart")
        return _only(self._letters.restart(which, who, changes=_changes(request)), request)

    def remove_one(self, request: Request) -> Response:
        """Deletes one dead letter: its run does not go on."""
        self._letters.remove(self._just(request), signed(request, "delete"))
        return empty_response()

    def retry_callback(self, request: Request) -> Response:
        """Sends the failure callback of a run again, which has failed itself."""
        refuse_query_and_body(request)
        return json(_run(self._letters.retry_callback(segment(request, "id"), signed(request, "callback"))))

    def _just(self, request: Request) -> RunSelection:
        refuse_query_and_body(request)
        return RunSelection(chosen=Selection(dead_ids=(self._one(segment(request, "id")).id,)))

    def _one(self, id: str) -> RequestDeadLetter:
        page = self._letters.find(RunSelection(chosen=Selection(dead_ids=(id,))), limit=1)
        if not page.items:
            raise _no_dead_letter(id)
        return page.items[0]


def _chosen(request: Request) -> tuple[RunSelection, int, str | None]:
    """Returns the dead letters to change, how many at most, and the cursor. Refused: nothing is selected."""
    query = Query(request, _PARAMETERS)
    which = _selection(query)
    refuse_unclear(query, is_filtered=which != RunSelection())
    ids = which.chosen.dead_ids
    if len(ids) > _MOST_IDS:
        raise Refused(422, f"{len(ids)} dlqIds are too many", hint=f"send at most {_MOST_IDS}")
    return which, len(ids) or query.count(_MOST), query.one("cursor")


def _selection(query: Query) -> RunSelection:
    """Returns the dead letters that a query selects. Its dates refer to when they died."""
    state = query.one("failureFunctionState")
    if state not in (None, _FAILED):
        hint = f"{_FAILED}: todoku finds no others by their state"
        raise Refused(422, f"failureFunctionState cannot be {state[:64]!r}", hint=hint)
    started = query.number("workflowCreatedAt", least=0, most=_LATEST_MS)
    which = Filter(
        urls=query.many("workflowUrl", "url"),
        labels=query.many("label"),
        caller_ips=query.many("callerIp"),
        flow_keys=query.many("flowControlKey"),
        response_statuses=query.numbers("responseStatus"),
        run_ids=query.many("workflowRunId"),
        run_starts=() if started is None else (started,),
        since=query.moment("fromDate"),
        until=after(query.moment("toDate")),
    )
    return RunSelection(chosen=Selection(dead_ids=query.many("dlqIds"), which=which), callback_failed=state is not None)


def _changes(request: Request) -> OptionChanges:
    """Returns the options that the SDK gives to runs which go on."""
    given = option_fields(request)
    if found := [name for name in _KEPT_OPTIONS if name in given]:
        hint = "only Upstash-Retries and Upstash-Flow-Control-* can be changed"
        raise Refused(422, f"a run keeps its {found[0]}", hint=hint)
    options = parse_options(
        {name: value for name, value in given.items() if name.startswith(("upstash-retries", "upstash-flow-"))},
        now=datetime.now(UTC),
    )
    return OptionChanges(
        retries=options.request.retries if "upstash-retries" in given else None, flow=options.request.flow
    )


def _resumed(done: ResumedRuns) -> dict[str, Any]:
    more = {} if done.cursor is None else {"cursor": done.cursor}
    return {"workflowRuns": [_run(run) for run in done.runs]} | more


def _only(done: ResumedRuns, request: Request) -> Response:
    if not done.runs:
        raise _no_dead_letter(segment(request, "id"))
    return json(_run(done.runs[0]))


def _run(run: ResumedRun) -> dict[str, Any]:
    return {"workflowRunId": run.id, "workflowCreatedAt": milliseconds(run.created_at)}


def _no_dead_letter(id: str) -> NotThere:
    hint = "it was resumed, restarted or deleted; GET /v2/workflows/dlq lists the others"
    return NotThere(f"there is no dead letter {id[:64]!r} of a workflow run", hint=hint)

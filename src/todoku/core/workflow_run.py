"""Workflow runs over HTTP, as the SDKs of Upstash Workflow drive them: the headers of a run, its steps, and the body
with which its URL is called.

A run is a list of steps. Each publish of the SDK appends one, and then todoku calls the URL of the run with all steps
up to that one. The list only grows, so the body of a call is the same whenever it is made.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from todoku.core.address_guard import check_url
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import Callback, HttpRequest, RunPart, is_run_header
from todoku.core.msgspec_warmup import warm_up

MOST_BYTES: Final = 32 << 20
"""Bytes that all steps of one run may have together: every call of its URL contains them."""

INITIAL: Final = "0"
"""The key of the first step, which is the body that the run was started with."""

_ID: Final = re.compile(r"[A-Za-z0-9._~-]{1,200}")
_MOST_STEPS: Final = 1_000_000
_MAX_EVENT: Final = 200

RunState = Literal["started", "success", "canceled"]
"""The stored states of a run. A run that is started has failed while one of its calls is a dead letter."""

_RUN_ID: Final = "upstash-workflow-runid"
_STEP_OF_CALL: Final = "upstash-callback-forward-upstash-workflow-stepid"
_INVOKE_COUNT: Final = "Upstash-Workflow-Invoke-Count"


_INVOKED: Final = "invoked "


def invoked_event(run_id: str) -> str:
    """Returns the event that the invoker of a run waits for. No client can send it: its events have no space."""
    return _INVOKED + run_id


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The `Upstash-Workflow-*` headers of a publish."""

    id: str
    url: str
    init: bool
    """Whether this publish starts the run; otherwise it appends a step."""
    call: str | None = None
    """The key of the step that requests a third party (`context.call`); None: the publish is no such request."""
    invoke: bool = False


class RunStep(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The parts of a step's JSON that todoku reads. `target_step`: it plans the step of this number."""

    step_id: int
    step_name: str = ""
    step_type: str = ""
    target_step: int | None = None

    @property
    def key(self) -> str:
        """The name of the step within its run: a second result under the same key is a repetition."""
        return f"plan-{self.target_step}" if self.is_plan else str(self.step_id)

    @property
    def is_plan(self) -> bool:
        """Whether it says only that another step will run, beside others."""
        return self.step_id == 0 and bool(self.target_step)


class CallItem(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step in the body of a call; `body` is base64."""

    message_id: str
    body: str
    call_type: str = "step"


class Wait(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of `POST /v2/wait/{event}`."""

    step: dict[str, Any]
    timeout: str | None = None


class Invocation(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of a publish that invokes another workflow: the waiting run, its step, and the body of the new run."""

    workflow_run_id: str
    step: dict[str, Any]
    body: str | None = None


warm_up(RunStep)
warm_up(Invocation)


def run_options(given: Mapping[str, str]) -> RunOptions | None:
    """Parses the headers of a workflow run; None: the publish belongs to none. InvalidMessage names the header."""
    if (id := given.get(_RUN_ID)) is None:
        return None
    check_run_id(id)
    init = given.get("upstash-workflow-init", "false").lower()
    if init not in ("true", "false"):
        raise InvalidMessage(f"Upstash-Workflow-Init cannot be {init[:64]!r}", hint="true or false")
    if not (url := given.get("upstash-workflow-url")):
        raise InvalidMessage("Upstash-Workflow-Url is missing", hint="send the URL that serves the workflow")
    call = None
    if given.get("upstash-workflow-calltype", "step").lower() == "tocallback":
        call = f"call-{_call_step(given)}"
    return RunOptions(
        id=id,
        url=check_url(url, what="Upstash-Workflow-Url"),
        init=init == "true",
        call=call,
        invoke=given.get("upstash-workflow-invoke", "false").lower() == "true",
    )


def trigger_fields(given: Mapping[str, str], url: str, id: str) -> dict[str, str]:
    """Returns the headers of a publish that starts a run, of those of a trigger, which has only what its caller chose.

    `id` is that of the run unless the caller has chosen one. If the run fails, its own URL is told, or the chosen one.
    """
    run_id, failure = given.get(_RUN_ID, id), "upstash-failure-callback"
    told = {
        f"{failure}-{name.removeprefix('upstash-')}": value
        for name, value in given.items()
        if name.startswith("upstash-forward-") or name in ("upstash-retries", "upstash-retry-delay")
    }
    return {
        failure: url,
        **told,
        **given,
        _RUN_ID: run_id,
        "upstash-workflow-init": "true",
        "upstash-workflow-url": url,
        "upstash-forward-upstash-workflow-sdk-version": "1",
        f"{failure}-forward-upstash-workflow-is-failure": "true",
        f"{failure}-forward-upstash-workflow-failure-callback": "true",
        f"{failure}-workflow-runid": run_id,
        f"{failure}-workflow-init": "false",
        f"{failure}-workflow-url": url,
        f"{failure}-workflow-calltype": "failureCall",
    }


def is_run_id(id: str) -> bool:
    """Returns whether a run may have this id."""
    return _ID.fullmatch(id) is not None


def check_run_id(id: str) -> str:
    """Returns the id of a run. InvalidMessage: it is not valid."""
    if not is_run_id(id):
        hint = "1 to 200 letters, digits, dots, dashes, underscores and tildes"
        raise InvalidMessage(f"Upstash-Workflow-RunId cannot be {id[:64]!r}", hint=hint)
    return id


def _call_step(given: Mapping[str, str]) -> str:
    step = given.get(_STEP_OF_CALL, "")
    if not (step.isascii() and step.isdecimal() and len(step) <= 7):
        hint = "send the number of the step that calls"
        raise InvalidMessage("Upstash-Callback-Forward-Upstash-Workflow-StepId is missing", hint=hint)
    return step


def parse_step(body: bytes | str) -> RunStep:
    """Parses the JSON of a step. InvalidMessage."""
    try:
        step = msgspec.json.decode(body, type=RunStep)
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"the step cannot be read: {error}", hint="only the SDK of the workflow appends") from None
    if not 0 <= step.step_id <= _MOST_STEPS or (step.step_id == 0 and not step.target_step):
        raise InvalidMessage(f"stepId cannot be {step.step_id}", hint=f"1 to {_MOST_STEPS}; 0 with a targetStep")
    return step


def call_body(items: Sequence[CallItem]) -> bytes:
    """Returns the body of a call: the steps of the run in their order, as a JSON list."""
    return msgspec.json.encode(items)


def check_event(event: str) -> str:
    """Returns the id of an event. InvalidMessage: it is not valid."""
    if not 0 < len(event) <= _MAX_EVENT or not event.isprintable() or " " in event:
        hint = f"1 to {_MAX_EVENT} printable characters without a space"
        raise InvalidMessage(f"an event cannot be called {event[:64]!r}", hint=hint)
    return event


def waited_step(step: Mapping[str, Any], event: str, data: bytes | None) -> bytes:
    """Returns the JSON of a step that waited for an event. `data` None: the time to wait is over."""
    out = {} if data is None else {"out": base64.b64encode(data).decode()}
    return msgspec.json.encode({**step, "waitEventId": event, "waitTimeout": data is None, **out})


def invoked_step(step: Mapping[str, Any], result: str, *, canceled: bool = False, failed: bool = False) -> bytes:
    """Returns the JSON of a step that invoked another workflow. `result` is the text that the other one returned."""
    out = {"body": result, "isCanceled": canceled, "isFailed": failed}
    return msgspec.json.encode({**step, "out": msgspec.json.encode(out).decode()})


def timed_out_step(step: Mapping[str, Any], event: str) -> bytes:
    """Returns the JSON of a step whose time to wait is over."""
    return invoked_step(step, "", failed=True) if event.startswith(_INVOKED) else waited_step(step, event, None)


# ------------------------------------------------------------
# The requests of a run.


def call_request(config: HttpRequest, part: RunPart) -> HttpRequest:
    """Returns the request that calls the URL of a run, with the options that the run was started with."""
    failure = config.failure_callback
    if failure is not None:
        failure = msgspec.structs.replace(failure, run=msgspec.structs.replace(part, part="failure"))
    own = {
        "Content-Type": "application/json",
        "Upstash-Workflow-Runid": part.id,
        "Upstash-Workflow-Init": "false",
        "Upstash-Workflow-Url": config.url,
        "Upstash-Workflow-Calltype": "step",
        "Upstash-Workflow-Createdat": str(part.created_at),
    }
    return msgspec.structs.replace(
        config, headers={**config.headers, **own}, callback=None, failure_callback=failure, run=part
    )


def third_party_request(request: HttpRequest, config: HttpRequest, part: RunPart) -> HttpRequest:
    """Returns the request of `context.call`: its answer goes to the URL of the run, whether it is a success or not.

    The callback has the headers and retries that the run was started with, which its code may check first.
    """
    to = request.callback or Callback(url=config.url)
    kept = {name: value for name, value in config.headers.items() if name == _INVOKE_COUNT or not is_run_header(name)}
    own = {"Upstash-Workflow-Runid": part.id, "Upstash-Workflow-Createdat": str(part.created_at)}
    callback = msgspec.structs.replace(
        to,
        headers={**kept, **to.headers, **own},
        retries=config.retries,
        retry_delay=config.retry_delay,
        run=msgspec.structs.replace(part, part="result"),
    )
    plain = {name: value for name, value in request.headers.items() if not is_run_header(name)}
    return msgspec.structs.replace(
        request,
        headers=plain,
        callback=callback,
        failure_callback=None,
        labels=request.labels or config.labels,
        redact=request.redact or config.redact,
        run=msgspec.structs.replace(part, part="call"),
    )

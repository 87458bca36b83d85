"""Workflow runs over HTTP: their steps, which are only appended, and the events that they wait for.

A step and the message that continues the run are one commit, under the lock of the run's row. So no run stops because
one of the two is missing, and no step has two results.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, TypeVar
from uuid import UUID

import msgspec

from todoku.core.message import Draft, Message
from todoku.core.sealed import parse_master_sealed
from todoku.core.workflow_run import RunState, invoked_event, invoked_step, parse_step
from todoku.store.columns import moment, moment_or_none, uuid
from todoku.store.database import Database, Tx, run_steps
from todoku.store.publish import Publishing, publish

T = TypeVar("T")
CallType = Literal["step", "toCallback"]
ShownState = RunState | Literal["failed"]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run. `request` (the options it was started with) and `result` are texts that may be sealed."""

    id: str
    url: str
    state: ShownState
    request: str
    labels: tuple[str, ...]
    invoker: str | None
    result: str | None
    steps: int
    bytes: int
    created_at: datetime
    ended_at: datetime | None

    @property
    def is_open(self) -> bool:
        """Whether steps may be added. A failed run goes on when its dead letter is replayed."""
        return self.state in ("started", "failed")


class NewRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run to be started."""

    id: str
    url: str
    request: str
    labels: tuple[str, ...] = ()
    invoker: str | None = None


class NewStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step to be added. `body` is base64, or sealed."""

    key: str
    message_id: UUID
    body: str
    call_type: CallType = "step"
    name: str = ""
    type: str = ""


class HttpRunStep(msgspec.Struct, frozen=True):
    """A step of a run."""

    position: int
    key: str
    message_id: UUID
    call_type: CallType
    name: str
    type: str
    body: str
    created_at: datetime


class WaiterRow(msgspec.Struct, frozen=True):
    """A run that waits for an event until the deadline. `step` is the JSON of the waiting step."""

    run_id: str
    step_key: str
    event_id: str
    step: str
    message_id: UUID
    deadline: datetime


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects runs; a field that is empty matches all."""

    ids: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    """Beginnings of URLs."""
    hosts: tuple[str, ...] = ()
    """Of URLs: names in any case, or `host:port`."""
    paths: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    caller_ips: tuple[str, ...] = ()
    flow_keys: tuple[str, ...] = ()
    messages: tuple[UUID, ...] = ()
    """Messages that steps have published."""
    state: ShownState | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Exclusive."""


class RunTransaction:
    """The changes that one transaction makes to runs. Rows of runs are locked in the order of their ids."""

    def __init__(self, tx: Tx, publishing: Publishing) -> None:
        self._tx, self._publishing = tx, publishing

    def publish(self, drafts: Sequence[Draft]) -> list[Message]:
        """Stores messages in this transaction."""
        return run_steps(self._tx, publish(self._publishing, drafts)) if drafts else []

    def lock(self, id: str) -> RunRow | None:
        """Locks a run until the commit, and returns it."""
        return next((_run(row) for row in self._tx.rows("lock_http_run", id=id)), None)

    def create(self, new: NewRun) -> datetime | None:
        """Starts a run, and returns when. None: there is one of this id."""
        values = {"id": new.id, "url": new.url, "request": new.request, "invoker": new.invoker}
        labels = msgspec.json.encode(new.labels).decode()
        return next((moment(at) for (at,) in self._tx.rows("create_http_run", labels=labels, **values)), None)

    def initial_body(self, run_id: str) -> str | None:
        """Returns the text of the body that a run was started with; None: there is no such run."""
        return next((text for (text,) in self._tx.rows("http_run_initial", run=run_id)), None)

    def message_of(self, run_id: str, key: str) -> UUID | None:
        """Returns the message that a step has published; None: the run does not have the step."""
        return next((uuid(id) for (id,) in self._tx.rows("http_run_step_message", run=run_id, key=key)), None)

    def add(self, run_id: str, step: NewStep) -> None:
        """Appends a step. The run is locked or new, and does not have the step."""
        self._tx.rows(
            "add_http_run_step", run=run_id, key=step.key, message=step.message_id, call_type=step.call_type,
            name=step.name, type=step.type, body=step.body,
        )  # fmt: skip

    def change_options(self, run_id: str, request: str) -> None:
        """Gives the next calls of a run other options. The run is locked."""
        self._tx.rows("set_http_run_request", run=run_id, request=request)

    def replace_call(self, run_id: str, old: UUID, new: UUID) -> bool:
        """Lets another message make the call that follows a step. The run is locked. False: there is no such call."""
        return bool(self._tx.rows("replace_http_call", run=run_id, old=old, new=new))

    def end(self, run_id: str, state: RunState, result: str | None) -> bool:
        """Ends a run; nothing waits for events any more. False: it had ended before."""
        return bool(self._tx.rows("end_http_run", id=run_id, state=state, result=result))

    def waiter_of(self, run_id: str, key: str) -> UUID | None:
        """Returns the delayed call of a step that waits; None: the step does not wait."""
        return next((uuid(id) for (id,) in self._tx.rows("http_waiter", run=run_id, key=key)), None)

    def waiter_with(self, run_id: str, message_id: UUID) -> WaiterRow | None:
        """Returns the wait after which this delayed call is made; None: it has ended."""
        rows = self._tx.rows("http_waiter_with", run=run_id, message=message_id)
        return next((_waiter(row) for row in rows), None)

    def add_waiter(self, run_id: str, key: str, event: str, step: str, message_id: UUID, timeout: float) -> None:
        """Lets a step wait for an event. The run is locked."""
        self._tx.rows(
            "add_http_waiter", run=run_id, key=key, event=event, step=step, message=message_id, timeout=timeout
        )

    def take_waiter(self, run_id: str, message_id: UUID) -> bool:
        """Ends a wait, for the caller alone. The run is locked. False: it has ended."""
        return bool(self._tx.rows("take_http_waiter", run=run_id, message=message_id))

    def keep_event(self, run_id: str, event: str, data: str) -> None:
        """Keeps an event for a run that does not wait for it yet. The run is locked."""
        self._tx.rows("keep_http_event", run=run_id, event=event, data=data)

    def take_event(self, run_id: str, event: str) -> str | None:
        """Takes the oldest event that was kept for a run. The run is locked."""
        return next((data for (data,) in self._tx.rows("take_http_event", run=run_id, event=event)), None)

    def kept(self, run_id: str) -> tuple[int, int]:
        """Returns how many events are kept for a run, and how long their texts are together. The run is locked."""
        ((number, size),) = self._tx.rows("kept_http_events", run=run_id)
        return int(number), int(size)

    def add_webhook(self, run_id: str, digest: str, origin: str) -> None:
        """Stores a webhook of a run, by the digest of its token. The run is locked."""
        self._tx.rows("add_http_webhook", run=run_id, digest=digest, origin=origin)

    def webhook(self, run_id: str, digest: str) -> str | None:
        """Returns the origin of a webhook's URL; None: the run has no such webhook."""
        return next((origin for (origin,) in self._tx.rows("http_webhook", run=run_id, digest=digest)), None)

    def hasten(self, message_id: UUID) -> None:
        """Makes a delayed call due now, unless a worker has taken it already."""
        self._tx.rows("hasten_http_call", message=message_id)

    def waiters(self, event: str, run_id: str | None) -> tuple[WaiterRow, ...]:
        """Returns the runs that wait for an event, or only this one, by run."""
        return tuple(map(_waiter, self._tx.rows("http_waiters", event=event, run=run_id)))


class HttpRunStore:
    """The workflow runs of one database."""

    def __init__(self, database: Database, *, notify: bool) -> None:
        self._database = database
        self._notify = notify

    def write(self, work: Callable[[RunTransaction], T]) -> T:
        """Changes runs in one transaction. `work` is called inside it."""
        database = self._database

        def change(tx: Tx) -> T:
            to = Publishing(database.dialect, database.queries, database.now(), self._notify)
            return work(RunTransaction(tx, to))

        return database.write("http_run", change)

    def get(self, id: str) -> RunRow | None:
        """Returns a run."""
        return next((_run(row) for row in self._database.read(lambda tx: tx.rows("http_run", id=id))), None)

    def steps(self, run_id: str, *, until: UUID | None = None) -> tuple[HttpRunStep, ...]:
        """Returns the steps of a run, or those up to the step that has published this message."""
        rows = self._database.read(lambda tx: tx.rows("http_run_steps", run=run_id, message=until))
        return tuple(
            HttpRunStep(position, key, uuid(message_id), call_type, name, type, body, moment(at))
            for position, key, message_id, call_type, name, type, body, at in rows
        )

    def find(
        self, which: RunFilter, *, before: tuple[datetime, str] | None = None, limit: int = 100
    ) -> tuple[RunRow, ...]:
        """Returns runs, the newest first. `before`: only those behind this one."""
        at, id = before or (None, None)
        rows = self._database.read(
            lambda tx: tx.rows("http_runs", **_parameters(which), before_at=at, before_id=id, most=limit)
        )
        return tuple(map(_run, rows))

    def waiters(self, event: str) -> tuple[WaiterRow, ...]:
        """Returns the runs that wait for an event."""
        return tuple(map(_waiter, self._database.read(lambda tx: tx.rows("http_waiters", event=event, run=None))))

    def has_webhook(self, run_id: str, digest: str) -> bool:
        """Returns whether a run has the webhook with this digest."""
        return bool(self._database.read(lambda tx: tx.rows("http_webhook", run=run_id, digest=digest)))

    def calls(self, run_id: str) -> tuple[int, ...]:
        """Returns the deliveries of a run that have not ended."""
        return tuple(id for (id,) in self._database.read(lambda tx: tx.rows("http_run_calls", run=run_id)))


_MANY: Final = ("ids", "urls", "prefixes", "paths", "labels", "caller_ips", "flow_keys")


def _parameters(which: RunFilter) -> dict[str, Any]:
    hosts = [host.lower() for host in which.hosts]
    return {
        **{name: list(getattr(which, name)) or None for name in _MANY},
        "hosts": hosts or None,
        "with_port": any(":" in host for host in hosts),
        "messages": [str(id) for id in which.messages] or None,
        "state": which.state,
        "since": which.since,
        "until": which.until,
    }


def read_initial_body(tx: Tx, run_id: str) -> bytes | None:
    """Returns the body that a run was started with, in an open transaction. None: it is sealed, or was pruned."""
    for (text,) in tx.rows("http_run_initial", run=run_id):
        return None if parse_master_sealed(text) is not None else base64.b64decode(text)
    return None


def fail_invoker(tx: Tx, run_id: str) -> None:
    """Continues the run that has invoked this one, which has failed, in the transaction that ends its last call."""
    for waiter in map(_waiter, tx.rows("http_waiters", event=invoked_event(run_id), run=None)):
        tx.rows("lock_http_run", id=waiter.run_id)
        if tx.rows("take_http_waiter", run=waiter.run_id, message=waiter.message_id):
            body = invoked_step(msgspec.json.decode(waiter.step), "", failed=True)
            step = parse_step(body)
            tx.rows(
                "add_http_run_step", run=waiter.run_id, key=waiter.step_key, message=waiter.message_id,
                call_type="step", name=step.step_name, type=step.step_type, body=base64.b64encode(body).decode(),
            )  # fmt: skip
            tx.rows("hasten_http_call", message=waiter.message_id)


def _run(row: Any) -> RunRow:
    id, url, state, request, labels, invoker, result, steps, size, created_at, ended_at = row
    return RunRow(
        id=id, url=url, state=state, request=request, labels=msgspec.json.decode(labels, type=tuple[str, ...]),
        invoker=invoker, result=result, steps=steps, bytes=size, created_at=moment(created_at),
        ended_at=moment_or_none(ended_at),
    )  # fmt: skip


def _waiter(row: Any) -> WaiterRow:
    run_id, key, event, step, message_id, deadline = row
    return WaiterRow(run_id, key, event, step, uuid(message_id), moment(deadline))

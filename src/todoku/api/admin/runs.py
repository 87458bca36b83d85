"""Runs of workflows: look at one with its steps, rewind it, undo it, send it a signal."""

from __future__ import annotations

from typing import Annotated, Any, Final

from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ById, Parameters, Reasoned, Text, signed
from todoku.api.request_context import RequestContext
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.core.msgspec_warmup import warm_up
from todoku.engine.flows import operations
from todoku.engine.flows.operations import RunAct, ShownRun


class RewindBody(Reasoned, frozen=True, kw_only=True):
    """Where a run begins again: at the step `to`, by its name or number; or `accept`, only what has changed.

    `dry_run`: only return the steps that would be repeated.
    """

    to: Text | None = None
    accept: bool = False
    dry_run: bool = False


class UndoBody(Reasoned, frozen=True, kw_only=True):
    """`dry_run`: only return the steps that would be undone."""

    dry_run: bool = False


class SignalBody(Reasoned, frozen=True, kw_only=True):
    """A signal: its name, and its value. `dry_run`: only return the steps that wait for it."""

    name: Annotated[str, Meta(min_length=1, max_length=MAX_TOPIC_LENGTH, pattern=r"^[^\x00]*$")]
    payload: Any = None
    dry_run: bool = False


class ByKey(Parameters, frozen=True, kw_only=True):
    """The idempotency key with which a run was started. If workflows of several names have one: give the run's id."""

    idempotency_key: Annotated[str, Meta(min_length=1, max_length=MAX_KEY_LENGTH, pattern=r"^[^\x00]*$")]


warm_up(RewindBody, UndoBody, SignalBody)


@operation("GET", "/runs/{id}", access="read")
def get_run(context: RequestContext, where: ById) -> ShownRun:
    """Returns a run of a workflow with its steps, and what it waits for."""
    return operations.show(context.store, where.id, mask_fields=context.settings.mask_fields)


@operation("POST", "/runs/{id}/rewind", access="operate")
def rewind_run(context: RequestContext, where: ById, body: RewindBody, by: str) -> RunAct:
    """Runs a dead letter again from a step on: that step and all later ones are repeated, audited."""
    return operations.rewind(
        context.store, where.id, signed(by, body), to=body.to, accept=body.accept, dry_run=body.dry_run
    )


@operation("POST", "/runs/{id}/undo", access="operate")
def undo_run(context: RequestContext, where: ById, body: UndoBody, by: str) -> RunAct:
    """Undoes the steps of a dead letter, the last one first, audited."""
    return operations.undo(context.store, where.id, signed(by, body), dry_run=body.dry_run)


@operation("POST", "/runs/{id}/signal", access="operate")
def signal_run(context: RequestContext, where: ById, body: SignalBody, by: str) -> RunAct:
    """Sends a value to a run that waits for it, or will, audited."""
    sent = operations.signal(
        context.outbox, where.id, body.name, body.payload, signed(by, body), dry_run=body.dry_run
    )  # fmt: skip
    if not sent.dry_run:
        context.box.telemetry.signalled()
    return sent


# ------------------------------------------------------------------------------------------------- by the key


@operation("GET", "/runs/by-key", access="read")
def get_keyed_run(context: RequestContext, query: ByKey) -> ShownRun:
    """Returns the run that was started with an idempotency key: one that has not ended, else the newest."""
    return get_run.run(context, _keyed(context, query))  # type: ignore[no-any-return]


@operation("POST", "/runs/by-key/signal", access="operate")
def signal_keyed_run(context: RequestContext, query: ByKey, body: SignalBody, by: str) -> RunAct:
    """Sends a value to the run that was started with an idempotency key, audited."""
    return signal_run.run(context, _keyed(context, query), body, by)  # type: ignore[no-any-return]


def _keyed(context: RequestContext, query: ByKey) -> ById:
    return ById(id=operations.find_run(context.store, query.idempotency_key))


OPERATIONS: Final = (get_keyed_run, signal_keyed_run, get_run, rewind_run, undo_run, signal_run)

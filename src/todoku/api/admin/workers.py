"""Workers: what each runs, draining one from afar, the stacks of its handlers."""

from __future__ import annotations

from typing import Annotated, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ById, Parameters, Reasoned, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine import workers
from todoku.engine.workers import RunningWorker, TakenStacks, WorkerStatus
from todoku.store.leases import HeldDelivery, WorkerRow

_HOLDS: Final = 100


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's lease, and the deliveries that it has held longest: it runs them, or they wait for one of its slots.

    `status`: `drained` means that an operator drained it and it holds nothing. `host` and `pid` are those of its name.
    `lease_left`: seconds until the lease ends, unless the worker renews it.
    """

    lease: WorkerRow
    alive: bool
    status: WorkerStatus
    host: str | None
    pid: int | None
    lease_left: float
    holds: tuple[HeldDelivery, ...]


class Workers(msgspec.Struct, frozen=True):
    """The leases of all workers."""

    items: tuple[Worker, ...]


class WorkersQuery(Parameters, frozen=True, kw_only=True):
    """`holds`: the most deliveries of each worker."""

    holds: Annotated[int, Meta(ge=0, le=500)] = 5


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a worker, which obeys within about two seconds."""

    worker: UUID
    did: Literal["drain", "resume"]


@operation("GET", "/workers", access="read")
def list_workers(context: RequestContext, query: WorkersQuery) -> Workers:
    """Lists workers with their leases and what each holds."""
    return Workers(tuple(_worker(row) for row in workers.list_workers(context.store, most=query.holds)))


@operation("GET", "/workers/{id}", access="read")
def get_worker(context: RequestContext, where: ById) -> Worker:
    """Returns one worker, with up to 100 deliveries that it holds."""
    for row in workers.list_workers(context.store, most=_HOLDS, only=where.id):
        return _worker(row)
    raise NotThere(f"there is no worker {where.id}", hint="its lease has ended and was reclaimed")


@operation("POST", "/workers/{id}/drain", access="operate")
def drain_worker(context: RequestContext, where: ById, body: Reasoned, by: str) -> Asked:
    """Asks a worker to claim nothing until it is resumed or restarted; what it runs ends, the rest is given back."""
    workers.drain(context.store, where.id, signed(by, body))
    return Asked(worker=where.id, did="drain")


@operation("POST", "/workers/{id}/resume", access="operate")
def resume_worker(context: RequestContext, where: ById, body: Reasoned, by: str) -> Asked:
    """Lets a drained worker claim again."""
    workers.resume(context.store, where.id, signed(by, body))
    return Asked(worker=where.id, did="resume")


@operation("POST", "/workers/{id}/stack", access="operate")
def take_stacks(context: RequestContext, where: ById, body: Reasoned, by: str) -> TakenStacks:
    """Asks a worker where its handlers stand and waits for its answer: stacks without local variables."""
    return workers.ask_stacks(context.store, where.id, signed(by, body))


@operation("GET", "/workers/{id}/stack", access="read")
def get_stacks(context: RequestContext, where: ById) -> TakenStacks:
    """Returns the last stacks of a worker; they are stored for a minute."""
    return workers.read_stacks(context.store, where.id)


def _worker(row: RunningWorker) -> Worker:
    return Worker(
        lease=row.lease,
        alive=row.is_alive,
        status=row.status,
        host=row.host,
        pid=row.pid,
        lease_left=row.lease_left,
        holds=row.holds,
    )


OPERATIONS: Final = (list_workers, get_worker, drain_worker, resume_worker, take_stacks, get_stacks)

"""Workers: what each runs and for how long, draining one from afar, the stacks of its handlers."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.operation import Operation, convert_parameters
from todoku.api.admin.parameters import ById, Reasoned
from todoku.api.admin.workers import (
    WorkersQuery,
    drain_worker,
    get_stacks,
    get_worker,
    list_workers,
    resume_worker,
    take_stacks,
)
from todoku.core.errors import NotThere
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/workers", access="read")
def workers(view: View) -> PageAnswer:
    """Shows all workers, each with the deliveries that it has held longest."""
    return view.answer("workers.html", list_workers.run(view.context, WorkersQuery()))


@page("GET", "/workers/{id}", access="read")
def worker(view: View) -> PageAnswer:
    """Shows one worker with everything that it holds, and its last stacks."""
    where = _where(view)
    found = get_worker.run(view.context, where)
    try:
        stacks = get_stacks.run(view.context, where)
    except NotThere:  # its lease has just ended
        stacks = None
    return view.answer("worker.html", found, stacks=stacks)


@page("POST", "/workers/{id}/drain", access="operate")
def drain(view: View) -> Redirect:
    """Drains a worker."""
    _act(view, drain_worker)
    return view.back("/workers", "The worker drains: it claims nothing more")


@page("POST", "/workers/{id}/resume", access="operate")
def resume(view: View) -> Redirect:
    """Resumes a worker."""
    _act(view, resume_worker)
    return view.back("/workers", "The worker claims again within two seconds")


@page("POST", "/workers/{id}/stack", access="operate")
def stack(view: View) -> Redirect:
    """Asks a worker where its handlers stand, and waits for the answer."""
    where, signed = _where(view), view.signed()
    found = take_stacks.run(view.context, where, Reasoned(why=signed.why), signed.by)
    flash = "The worker has not answered; is it alive?" if found.stacks is None else "The worker has answered"
    return view.redirect(f"/workers/{where.id}", flash)


def _act(view: View, operation: Operation) -> None:
    signed = view.signed()
    operation.run(view.context, _where(view), Reasoned(why=signed.why), signed.by)


def _where(view: View) -> ById:
    return convert_parameters(view.path.items(), ById, "path")


PAGES: Final = (workers, worker, drain, resume, stack)

"""Schedules: in words, their next slots, running one now, pausing and resuming."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.operation import Operation, convert_parameters
from todoku.api.admin.parameters import ByName, Reasoned
from todoku.api.admin.schedules import (
    Changed,
    SchedulesQuery,
    list_schedules,
    pause_schedule,
    resume_schedule,
    run_schedule,
)
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/schedules", access="read")
def schedules(view: View) -> PageAnswer:
    """Shows all schedules."""
    query = convert_parameters({"language": view.language}.items(), SchedulesQuery, "query")
    return view.answer("schedules.html", list_schedules.run(view.context, query))


@page("POST", "/schedules/run", access="operate")
def run(view: View) -> Redirect:
    """Publishes one message of a schedule now."""
    done = _act(view, run_schedule)
    return view.back("/schedules", "{name} published the message {id}", name=done.name, id=done.message_id)


@page("POST", "/schedules/pause", access="operate")
def pause(view: View) -> Redirect:
    """Pauses a schedule."""
    return view.back("/schedules", "{name} is paused", name=_act(view, pause_schedule).name)


@page("POST", "/schedules/resume", access="operate")
def resume(view: View) -> Redirect:
    """Resumes a schedule."""
    return view.back("/schedules", "{name} fires again", name=_act(view, resume_schedule).name)


def _act(view: View, operation: Operation) -> Changed:
    """Acts on the schedule that the form names: a name may contain a slash, so it is not in the path."""
    signed = view.signed()
    where = convert_parameters({"name": view.form.get("name", "")}.items(), ByName, "form")
    done: Changed = operation.run(view.context, where, Reasoned(why=signed.why), signed.by)
    return done


PAGES: Final = (schedules, run, pause, resume)

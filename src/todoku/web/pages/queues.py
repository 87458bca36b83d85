"""Queues: how deep, how old, how busy; pause, resume and limit in place."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.parameters import ByName, Reasoned
from todoku.api.admin.queues import LimitBody, limit_queue, list_queues, pause_queue, resume_queue
from todoku.web.form import parse_form
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/queues", access="read")
def queues(view: View) -> PageAnswer:
    """Shows all queues."""
    return view.answer("queues.html", list_queues.run(view.context))


@page("POST", "/queues/pause", access="operate")
def pause(view: View) -> Redirect:
    """Pauses a queue."""
    name = _name(view)
    pause_queue.run(view.context, name, parse_form(view, Reasoned, "why"), view.viewer.name)
    return view.back("/queues", "{name} is paused", name=name.name)


@page("POST", "/queues/resume", access="operate")
def resume(view: View) -> Redirect:
    """Resumes a queue."""
    name = _name(view)
    resume_queue.run(view.context, name, parse_form(view, Reasoned, "why"), view.viewer.name)
    return view.back("/queues", "{name} goes on", name=name.name)


@page("POST", "/queues/limit", access="operate")
def limit(view: View) -> Redirect:
    """Limits a queue, or takes its limit away."""
    name = _name(view)
    body = parse_form(view, LimitBody, "why", "concurrency", "rate", "lasts")
    limit_queue.run(view.context, name, body, view.viewer.name)
    unlimited = body.concurrency is None and body.rate is None
    return view.back("/queues", "{name} has no limit" if unlimited else "{name} is limited", name=name.name)


def _name(view: View) -> ByName:
    return parse_form(view, ByName, "name")


PAGES: Final = (queues, pause, resume, limit)

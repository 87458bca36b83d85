"""The catalogue of an App: the jobs and events that it declares, with the JSON Schema of each, for forms."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import msgspec

from todoku.core.ending import OWN
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.jobs.job import Job
from todoku.engine.jobs.schema import json_schema


class CatalogueJob(msgspec.Struct, frozen=True, kw_only=True):
    """A declared job, or the consumer of a topic. `schema`: of its arguments, or of the event that it takes."""

    name: str
    kind: Literal["job", "consumer"]
    topic: str
    queue: str
    ordered: bool
    description: str
    schema: dict[str, Any]


class CatalogueEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A declared event class. `key`: the field that is the key of its messages."""

    topic: str
    key: str | None
    description: str
    schema: dict[str, Any]


class Catalogue(msgspec.Struct, frozen=True, kw_only=True):
    """What an App declares. `topics`: the patterns of its routes. All are empty in a process without an App."""

    jobs: tuple[CatalogueJob, ...]
    events: tuple[CatalogueEvent, ...]
    topics: tuple[str, ...]


def read_catalogue(declarations: Declarations) -> Catalogue:
    """Returns the jobs, events and topics declared here, by name."""
    consumed = {route.destination for route in declarations.routes}
    jobs = (
        _job(job, consumer=name in consumed)
        for name, job in sorted(declarations.jobs.items())
        if not job.handler.topic.startswith(OWN)
    )
    events = (
        CatalogueEvent(
            topic=event.topic,
            key=event.key,
            description=_summary(event.kind),
            schema=json_schema(event.kind),
        )
        for event in sorted(declarations.events, key=lambda event: event.topic)
    )
    topics = sorted({route.pattern for route in declarations.routes})
    return Catalogue(jobs=tuple(jobs), events=tuple(events), topics=tuple(topics))


def _job(job: Job[..., Any], *, consumer: bool) -> CatalogueJob:
    return CatalogueJob(
        name=job.name,
        kind="consumer" if consumer else "job",
        topic=job.handler.topic,
        queue=job.route.queue,
        ordered=job.route.ordered,
        description=_summary(job.handler.function),
        schema=job.handler.signature.schema(),
    )


def _summary(thing: Any) -> str:
    """The first line of a docstring; empty for the signature that a dataclass has instead of one."""
    first = inspect.cleandoc(getattr(thing, "__doc__", None) or "").partition("\n")[0].strip()
    return "" if first.startswith(f"{getattr(thing, '__name__', '')}(") else first

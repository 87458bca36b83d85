"""New messages that an operator writes in a form: a call of a job, or an event of a topic. Each is audited."""

from __future__ import annotations

from typing import Any

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.message import Draft, Message
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.jobs.options import CallOptions
from todoku.engine.jobs.schema import kind_problem
from todoku.engine.publish import Encoded, MessageOptions, directed, encode
from todoku.store.audit import Signed


class NewMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A call of `job` with these arguments, or a message of `topic` with this payload, to its routes or to `to` only.

    Durations are seconds.
    """

    job: str | None = None
    topic: str | None = None
    payload: Any = None
    to: str | None = None
    key: str | None = None
    idempotency_key: str | None = None
    delay: float | None = None
    priority: int = 0


def find_problems(declarations: Declarations, new: NewMessage) -> dict[str, str]:
    """Returns what is wrong with a new message, by field of its payload, or as a whole (""); {}: it can be published.

    UnknownJob: there is no such job here.
    """
    signature = None if new.job is None else declarations.jobs[new.job].handler.signature
    try:
        text = encode(new.payload)
        if signature is not None:
            if found := signature.problems(text):
                return found
        else:
            for event in (event for event in declarations.events if event.topic == new.topic):
                if (problem := kind_problem(event.kind, text)) is not None:
                    return _at_field(problem, event.fields)
        _draft(declarations, new)
    except InvalidMessage as error:
        return {"": str(error)}
    return {}


def _at_field(problem: str, fields: tuple[str, ...]) -> dict[str, str]:
    field, colon, rest = problem.partition(": ")
    return {field: rest} if colon and field in fields else {"": problem}


def publish_new(declarations: Declarations, new: NewMessage, signed: Signed) -> Message:
    """Publishes a new message, audited with its author. InvalidMessage: it cannot be published. Blocks."""
    outbox = declarations.outbox
    message = outbox.store.acts.publish(_draft(declarations, new), signed)
    outbox.wake()
    return message


def _draft(declarations: Declarations, new: NewMessage) -> Draft:
    if (new.job is None) == (new.topic is None):
        raise InvalidMessage("exactly one of job and topic is needed", hint="give one of them")
    if new.job is not None:
        job = declarations.jobs[new.job]
        args, kwargs = job.handler.signature.call_arguments({} if new.payload is None else new.payload)
        options: CallOptions = {
            "key": new.key, "idempotency_key": new.idempotency_key, "delay": new.delay, "priority": new.priority,
        }  # fmt: skip
        return job.using(**options).call(*args, **kwargs).draft()
    outbox = declarations.outbox
    usual = outbox.settings.max_attempts
    routes = directed(declarations.routes, declarations.registry, to=new.to, max_attempts=None, usual=usual)
    given = MessageOptions(
        key=new.key, idempotency_key=new.idempotency_key, delay=new.delay, priority=new.priority
    )  # fmt: skip
    return outbox.draft(new.topic or "", Encoded(encode(new.payload)), given, routes)

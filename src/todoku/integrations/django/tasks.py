"""A backend for Django's tasks: `django.tasks` of Django 6, or the package django-tasks for older versions.

    TASKS = {"default": {"BACKEND": "todoku.integrations.django.tasks.TodokuBackend"}}

A task is one message to the destination "django.tasks"; its topic is the task's path. Enqueued inside
`transaction.atomic()`, it commits with that transaction or not at all (I2).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from django.apps import apps
from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from todoku.core.errors import InvalidSetting
from todoku.core.failure import classify
from todoku.core.msgspec_warmup import warm_up
from todoku.core.outcome import Abort, Retry, Snooze
from todoku.core.sealed import shown_traceback
from todoku.engine.context import Context
from todoku.engine.jobs.job import Job, routed
from todoku.engine.jobs.options import CallOptions
from todoku.engine.publish import MessageOptions
from todoku.integrations.django.project import get_box
from todoku.store.attempts import Attempt
from todoku.store.deliveries import Delivery
from todoku.store.messages import Story

DESTINATION: Final = "django.tasks"
_LOWEST, _HIGHEST = -100, 100


def _framework() -> str:
    """The module of the task framework: Django's own, if it has one."""
    for name in ("django.tasks", "django_tasks"):
        if find_spec(name) is not None:
            return name
    raise InvalidSetting("this Django has no tasks", hint="use Django 6, or run pip install django-tasks")


_TASKS: Final = _framework()
_values = import_module(f"{_TASKS}.base")
_signals = import_module(f"{_TASKS}.signals")
_ResultDoesNotExist: type[Exception] = import_module(f"{_TASKS}.exceptions").TaskResultDoesNotExist
_Backend: Any = import_module(f"{_TASKS}.backends.base").BaseTaskBackend
_STATUSES: Final = {
    "pending": _values.TaskResultStatus.READY,
    "failed": _values.TaskResultStatus.READY,
    "sending": _values.TaskResultStatus.RUNNING,
    "succeeded": _values.TaskResultStatus.SUCCESSFUL,
    "aborted": _values.TaskResultStatus.FAILED,
}


class StoredTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as stored in the message."""

    task: str
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str
    queue: str
    priority: int
    run_after: datetime | None = None

    def load(self) -> Any:
        """Returns the Task with the options it was enqueued with. Abort: there is no task of that name."""
        return find_task(self.task).using(
            priority=self.priority, queue_name=self.queue, run_after=self.run_after, backend=self.backend
        )  # fmt: skip


warm_up(StoredTask)


def find_task(path: str) -> Any:
    """Returns the task at a path. Abort: it is not a task of this project.

    A name that an attacker wrote must neither import a module of their choice, because that runs it, nor reach an
    object that only looks like a task.
    """
    module, _, _name = path.rpartition(".")
    if module in sys.modules or any(f"{module}.".startswith(f"{package}.") for package in _packages()):
        with suppress(ImportError, ValueError):
            load = import_string(path)
            if isinstance(load, _values.Task) and load.module_path == path:
                return load
    raise Abort("UNKNOWN_TASK", f"there is no task {path!r} in this project")


def _packages() -> set[str]:
    """The packages that may have tasks: those of the project's applications, and that of its settings and URLs."""
    own = (os.environ.get("DJANGO_SETTINGS_MODULE", ""), getattr(settings, "ROOT_URLCONF", None) or "")
    names = {name.partition(".")[0] for name in own} | {each.name for each in apps.get_app_configs()}
    return names - {""}


class TodokuBackend(_Backend):
    """Stores tasks as messages. OPTIONS: `max_attempts` (1: a failed task is a dead letter at once) and `timeout`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        if unknown := self.options.keys() - {"max_attempts", "timeout"}:
            hint = "its options are max_attempts and timeout"
            raise InvalidSetting(f"TASKS[{alias!r}] has no option {', '.join(sorted(unknown))}", hint=hint)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Stores a task: in the open transaction of the project's database, if there is one."""
        self.validate_task(task)
        box = get_box()
        stored = StoredTask(
            task=task.module_path, args=list(args), kwargs=dict(kwargs), backend=self.alias, queue=task.queue_name,
            priority=task.priority, run_after=_aware(task.run_after),
        )  # fmt: skip
        route = routed(runner().route, cast("CallOptions", {"queue": task.queue_name, **self.options}))
        options = MessageOptions(priority=map_priority(task.priority), at=stored.run_after)
        draft = box.outbox.draft(stored.task, runner().call(stored).payload, options, [route])
        tx = None if transaction.get_autocommit(box.alias) else box.connection
        (message,) = box.outbox.put([draft], tx, twin="task.aenqueue(…)")
        result = _result(task, str(message.id), self.alias, stored, enqueued_at=message.created_at)
        _signals.task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Returns the state of a task. TaskResultDoesNotExist: there is no committed task with that id."""
        story = _story(result_id)
        delivery = next((each for each in story.deliveries if each.destination == DESTINATION), None) if story else None
        if story is None or delivery is None:
            raise _ResultDoesNotExist(result_id)
        opener = get_box().outbox.opener
        stored = _decode(opener.text(story.message) or "")
        try:
            task = stored.load()
        except Abort:
            raise _ResultDoesNotExist(result_id) from None
        attempts = [each for each in story.attempts if each.replay == delivery.replay_count]
        result = _result(
            task, result_id, stored.backend, stored,
            status=_STATUSES[delivery.status], enqueued_at=story.message.created_at,
            errors=[_error(each) for each in attempts], worker_ids=_workers(delivery, attempts),
            **_times(delivery, attempts),
        )  # fmt: skip
        if delivery.status == "succeeded":
            returned = get_box().store.deliveries.result(delivery.id)
            value = None if returned is None else opener.result(returned, result_id, DESTINATION)
            object.__setattr__(result, "_return_value", None if value is None else msgspec.json.decode(value))
        return result


def map_priority(priority: int) -> int:
    """Maps Django's -100 … 100 to todoku's 0 … 15. Django's default 0 is in the middle; in both, higher runs first."""
    return (priority - _LOWEST) * 16 // (_HIGHEST - _LOWEST + 1)


@cache
def runner() -> Job[..., Any]:
    """The job that runs tasks."""
    return get_box().job(DESTINATION, max_attempts=1, keep_result=True)(run_task)


def run_task(ctx: Context, stored: StoredTask) -> Any:
    """Runs one task. Errors are stored with the path of their class, by which `TaskResult.errors` finds it again."""
    task = stored.load()
    running = _result(
        task, str(ctx.message_id), stored.backend, stored, status=_STATUSES["sending"],
        started_at=timezone.now(), last_attempted_at=timezone.now(), worker_ids=[str(ctx.claim.worker)] * ctx.attempt,
    )  # fmt: skip
    backend = type(task.get_backend())
    _signals.task_started.send(backend, task_result=running)
    try:
        first = (_values.TaskContext(task_result=running),) if task.takes_context else ()
        returned = task.call(*first, *stored.args, **stored.kwargs)
    except (Retry, Abort, Snooze):
        raise  # the task uses todoku's own outcomes
    except Exception as error:
        _finish(backend, running, "aborted" if ctx.attempt >= ctx.max_attempts else "failed")
        raise _with_class_path(error) from error
    _finish(backend, running, "succeeded")
    return returned


def _finish(backend: type[Any], result: Any, status: str) -> None:
    object.__setattr__(result, "status", _STATUSES[status])
    object.__setattr__(result, "finished_at", timezone.now())
    _signals.task_finished.send(backend, task_result=result)


def _with_class_path(error: Exception) -> Retry | Abort | Snooze:
    outcome = classify(error)
    detail = f"{type(error).__module__}.{type(error).__qualname__}: {error}"
    match outcome:
        case Retry():
            return Retry(reason=outcome.reason, detail=detail)
        case Abort():
            return Abort(outcome.reason, detail)
        case Snooze():
            return outcome


# ---------------------------------------------------------------------------------------------- a result


def _result(task: Any, id: str, backend: str, stored: StoredTask, **known: Any) -> Any:
    times = {"enqueued_at": None, "started_at": None, "finished_at": None, "last_attempted_at": None}
    defaults = {"status": _STATUSES["pending"], "errors": [], "worker_ids": [], **times}
    return _values.TaskResult(
        task=task, id=id, backend=backend, args=stored.args, kwargs=stored.kwargs, **{**defaults, **known}
    )


def _story(result_id: str) -> Story | None:
    try:
        return get_box().store.messages.story(UUID(result_id))
    except ValueError:
        return None


def _decode(payload: str) -> StoredTask:
    return msgspec.json.decode(payload, type=dict[str, StoredTask])["stored"]


def _error(attempt: Attempt) -> Any:
    name, _, _ = (attempt.error or "").partition(": ")
    known = name if "." in name and " " not in name else "builtins.Exception"
    return _values.TaskError(
        exception_class_path=known, traceback=shown_traceback(attempt.traceback) or attempt.error or attempt.reason
    )


def _workers(delivery: Delivery, attempts: Sequence[Attempt]) -> list[str]:
    """The worker of each attempt. For the successful one, only the number of attempts is stored."""
    named = [str(each.worker or "") for each in attempts]
    last = str(delivery.worker or "")
    return named + [last] * (delivery.attempts - len(named))


def _times(delivery: Delivery, attempts: Sequence[Attempt]) -> dict[str, datetime | None]:
    """When it started and finished. For a success at the first attempt, only the end is stored."""
    started = [each.started_at or each.ended_at for each in attempts]
    if delivery.status in ("sending", "succeeded"):
        started.append(delivery.updated_at)
    ended = delivery.updated_at if delivery.status in ("succeeded", "aborted") else None
    return {
        "started_at": started[0] if started else None,
        "last_attempted_at": started[-1] if started else None,
        "finished_at": ended,
    }


def _aware(moment: datetime | None) -> datetime | None:
    return moment if moment is None or timezone.is_aware(moment) else timezone.make_aware(moment)


runner()  # registers the job when this module is imported

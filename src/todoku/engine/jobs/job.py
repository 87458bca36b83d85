"""A job: a function to be called later. `Job` is what the decorator makes of it, `Call` one call that can be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.backoff import Backoff
from todoku.core.errors import InvalidMessage, InvalidSetting, TodokuError
from todoku.core.message import MAX_TOPIC_LENGTH, Claimed, Draft, Message
from todoku.core.outcome import Duration, seconds
from todoku.core.route import Route
from todoku.engine.context import Context
from todoku.engine.jobs.handle import Handle, Kept
from todoku.engine.jobs.signature import Signature
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import Encoded, Options
from todoku.engine.registry import Target

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(TypedDict, total=False):
    """How a job is run: the keywords of `@box.job` and `@box.on`."""

    queue: str
    max_attempts: int | None
    backoff: Backoff | None
    timeout: Duration | None
    run: Literal["auto", "loop", "thread", "process"]
    transactional: bool
    ordered: bool
    unique_for: Duration | None
    keep_result: bool


class CallOptions(TypedDict, total=False):
    """How one call is stored: the keywords of `Job.using`."""

    tx: Any
    delay: Duration | None
    at: datetime | None
    expires: Duration | None
    queue: str | None
    priority: int | None
    key: str | None
    idempotency_key: str | None
    max_attempts: int | None
    timeout: Duration | None
    headers: Mapping[str, str] | None
    labels: Sequence[str]
    best_effort: bool


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function as it was declared: what a message for it looks like, and how it is routed."""

    function: Callable[..., Any]
    signature: Signature
    takes_context: bool
    topic: str
    route: Route
    target: Target
    kept: Kept
    unique_for: float | None = None


class Job(Generic[P, R]):
    """A function that can be called later: `enqueue` stores a call, a worker makes it."""

    def __init__(self, outbox: Outbox, handler: Handler, options: CallOptions | None = None) -> None:
        self._outbox = outbox
        self._handler = handler
        self._options: CallOptions = options or {}
        self.__doc__ = handler.function.__doc__

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def name(self) -> str:
        """The job's name, which is its destination."""
        return self._handler.target.name

    @property
    def target(self) -> Target:
        """How a worker runs it."""
        return self._handler.target

    @property
    def route(self) -> Route:
        """The way of its own calls: straight to it."""
        return self._handler.route

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Run the function here and now, as if it were not a job; of an async one this is the coroutine."""
        if self._handler.takes_context:
            here = Context(_here_and_now(self._handler), float("inf"), self._options.get("tx"))
            return self._handler.function(here, *args, **kwargs)
        return self._handler.function(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Job[P, R]:
        """The same job with options for the calls made through it; the job itself stays as it is.

        `tx`: in your transaction. `delay`, `at`: later. `expires`: not after so long. `priority`: 0 to 15, larger is
        sooner. `key`: what shares it and is ordered runs in turn. `idempotency_key`: once. `queue`, `max_attempts`,
        `timeout`: other than declared. `best_effort`: a call that cannot be stored is logged, and your work goes on.
        """
        if unknown := options.keys() - CallOptions.__optional_keys__:
            raise InvalidMessage(f"there is no option {', '.join(sorted(unknown))}", hint="see Job.using")
        return Job(self._outbox, self._handler, {**self._options, **options})

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """One call, checked, to be stored with others by `box.enqueue_many`."""
        return Call(self._outbox, self._handler, self._options, self._handler.signature.encoded(args, kwargs))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Store a call: it commits with `tx`, or in a transaction of its own."""
        call: Call[R] = self.call(*args, **kwargs)
        tx = self._options.get("tx")
        if self._options.get("best_effort"):
            draft = call.draft()
            return call.handle_or_none(draft, self._outbox.try_put([draft], tx, twin=f"{self.name}.aenqueue(…)"))
        (message,) = self._outbox.put([call.draft()], tx, twin=f"{self.name}.aenqueue(…)")
        return call.handle(message)

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As `enqueue`, for async code."""
        call: Call[R] = self.call(*args, **kwargs)
        tx = self._options.get("tx")
        if self._options.get("best_effort"):
            draft = call.draft()
            return call.handle_or_none(draft, await self._outbox.atry_put([draft], tx))
        (message,) = await self._outbox.aput([call.draft()], tx)
        return call.handle(message)


class Call(Generic[R]):
    """One call of a job: its arguments are checked and encoded, nothing is stored yet."""

    __slots__ = ("_handler", "_outbox", "options", "payload")

    def __init__(self, outbox: Outbox, handler: Handler, options: CallOptions, payload: Encoded) -> None:
        self._outbox = outbox
        self._handler = handler
        self.options = options
        self.payload = payload

    def draft(self) -> Draft:
        """A message for the job, checked, with an id of its own."""
        handler, given = self._handler, self.options
        options = Options(
            key=given.get("key"),
            idempotency_key=given.get("idempotency_key"),
            delay=given.get("delay"),
            at=given.get("at"),
            expires=given.get("expires"),
            priority=given.get("priority") or 0,
            headers=given.get("headers"),
            labels=given.get("labels", ()),
            unique_for=handler.unique_for,
        )
        return self._outbox.draft(handler.topic, self.payload, options, [routed(handler.route, given)])

    def handle(self, message: Message) -> Handle[R]:
        """The handle of the stored call."""
        handler = self._handler
        return Handle(
            self._outbox.store, message.id, handler.target.name, handler.kept, duplicate=message.duplicate
        )  # fmt: skip

    def handle_or_none(self, draft: Draft, messages: list[Message] | None) -> Handle[R]:
        """The handle of a call that may not have been stored; then it says so, and has the id it would have had."""
        if messages is not None:
            return self.handle(messages[0])
        handler = self._handler
        return Handle(self._outbox.store, draft.id, handler.target.name, handler.kept, stored=False)


def routed(route: Route, given: CallOptions) -> Route:
    """A job's own route with what one call wants otherwise."""
    queue, attempts, timeout = given.get("queue"), given.get("max_attempts"), given.get("timeout")
    if queue is None and attempts is None and timeout is None:
        return route
    return msgspec.structs.replace(
        route,
        queue=route.queue if queue is None else checked_queue(queue, InvalidMessage),
        max_attempts=route.max_attempts if attempts is None else checked_attempts(attempts, InvalidMessage),
        timeout=route.timeout if timeout is None else checked_duration(timeout, "timeout", InvalidMessage),
    )


Refusal = type[InvalidMessage] | type[InvalidSetting]


def checked_queue(queue: object, refusal: Refusal) -> str:
    """A name of a queue, or the refusal."""
    if not isinstance(queue, str) or not 0 < len(queue) <= MAX_TOPIC_LENGTH or not queue.isprintable():
        raise refusal(f"queue cannot be {queue!r}", hint=f"a name of 1 to {MAX_TOPIC_LENGTH} characters")
    return queue


def checked_attempts(attempts: object, refusal: Refusal) -> int:
    """A number of attempts, or the refusal."""
    if type(attempts) is not int or not 0 < attempts <= 10_000:
        raise refusal(f"max_attempts cannot be {attempts!r}", hint="1 to 10000; the first attempt counts too")
    return attempts


def checked_duration(duration: Duration, what: str, refusal: Refusal) -> float:
    """Seconds above 0, or the refusal."""
    try:
        value = seconds(duration, what=what)
    except TodokuError:
        value = 0.0
    if value <= 0:
        raise refusal(f"{what} cannot be {duration!r}", hint="give seconds > 0 or a timedelta, at most 10 years")
    return value


def _here_and_now(handler: Handler) -> Claimed:
    """The claim of a call that no worker makes: the first attempt, of a message that is stored nowhere."""
    return Claimed(
        id=0, epoch=0, message_seq=0, message_id=str(new_id()), topic=handler.topic, key=None, payload=None,
        payload_bytes=None, content_type="application/json", headers=None, destination=handler.target.name,
        queue=handler.route.queue, priority=0, lane=None, attempt=1, max_attempts=1, lost=0, snoozes=0,
        replay_count=0, next_run_at=0.0, created_at=0.0, expires_at=None, timeout=handler.target.timeout, key_hash=None,
        digest=None, effect_state=None, effect_digest=None, worker=UUID(int=0),
    )  # fmt: skip

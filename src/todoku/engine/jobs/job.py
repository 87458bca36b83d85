"""A job: a function to be called later. `Job` is what the decorator makes of it, `Call` one call that can be stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.message import Claimed, Draft, Message
from todoku.core.topic_pattern import Route
from todoku.engine.context import Context
from todoku.engine.jobs.handle import Handle, ResultReader
from todoku.engine.jobs.options import CallOptions, checked_attempts, checked_duration, checked_queue
from todoku.engine.jobs.signature import Signature
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import Encoded, MessageOptions
from todoku.engine.registry import Target
from todoku.engine.twins import asynchronous, blocking
from todoku.store.values import EPOCH

P = ParamSpec("P")
R = TypeVar("R")


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A function as it was declared: what a message for it looks like, and how it is routed."""

    function: Callable[..., Any]
    signature: Signature
    takes_context: bool
    topic: str
    route: Route
    target: Target
    kept: ResultReader
    unique_for: float | None = None
    aliases: tuple[str, ...] = ()
    """Names it had before: what was stored under them still runs."""


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
    def aliases(self) -> tuple[str, ...]:
        """Names it had before."""
        return self._handler.aliases

    @property
    def outbox(self) -> Outbox:
        """Where its calls go."""
        return self._outbox

    @property
    def handler(self) -> Handler:
        """The function as it was declared."""
        return self._handler

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
            here = Context(here_and_now(self._handler), float("inf"), self._options.get("tx"))
            return self._handler.function(here, *args, **kwargs)
        return self._handler.function(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Job[P, R]:
        """The same job with options for the calls made through it; the job itself stays as it is.

        `tx`: in your transaction. `delay`, `at`: later. `expires`: not after so long. `priority`: 0 to 15, larger is
        sooner. `key`: what shares it runs in turn if it is ordered, or within its limit `per_key`. `idempotency_key`:
        once. `queue`, `max_attempts`, `timeout`: other than declared. `best_effort`: a call that cannot be stored is
        logged, and your work goes on.
        """
        if unknown := options.keys() - CallOptions.__optional_keys__:
            raise InvalidMessage(f"there is no option {', '.join(sorted(unknown))}", hint="see Job.using")
        return Job(self._outbox, self._handler, {**self._options, **options})

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """One call, checked, to be stored with others by `box.enqueue_many`."""
        return Call(self._outbox, self._handler, self._options, self._handler.signature.encoded(args, kwargs))

    @blocking(lambda job: job.name)
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Stores a call: it commits with `tx`, or in a transaction of its own."""
        call: Call[R] = self.call(*args, **kwargs)
        draft, tx = call.draft(), self._options.get("tx")
        if self._options.get("best_effort"):
            return call.handle_or_none(draft, await self._outbox.try_insert([draft], tx))
        (message,) = await self._outbox.insert([draft], tx)
        return call.handle(message)

    aenqueue = asynchronous(enqueue)


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
        options = MessageOptions(
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
            self._outbox.store, message.id, handler.target.name, handler.kept,
            duplicate=message.duplicate, opener=self._outbox.opener,
        )  # fmt: skip

    def handle_of(self, draft: Draft) -> Handle[R]:
        """The handle of a call that will be stored with this draft's id."""
        return self.handle(Message(id=draft.id, topic=draft.topic, key=draft.key, duplicate=False, created_at=EPOCH))

    def handle_or_none(self, draft: Draft, messages: list[Message] | None) -> Handle[R]:
        """The handle of a call that may not have been stored; then it says so, and has the id it would have had."""
        if messages is not None:
            return self.handle(messages[0])
        handler = self._handler
        return Handle(self._outbox.store, draft.id, handler.target.name, handler.kept, stored=False)


def routed(route: Route, given: CallOptions) -> Route:
    """A job's own route with what one call wants otherwise."""
    queue, timeout = given.get("queue"), given.get("timeout")
    attempts = checked_attempts(given.get("max_attempts"), given.get("max_retries"), InvalidMessage)
    if queue is None and attempts is None and timeout is None:
        return route
    if queue is not None and route.per_key is not None and queue != route.queue:
        raise InvalidMessage(
            f"queue cannot be {queue!r} for a call: {route.destination} has a limit per key",
            hint="say the queue where the job is declared: a key has one",
        )
    return msgspec.structs.replace(
        route,
        queue=route.queue if queue is None else checked_queue(queue, InvalidMessage),
        max_attempts=route.max_attempts if attempts is None else attempts,
        timeout=route.timeout if timeout is None else checked_duration(timeout, "timeout", InvalidMessage),
    )


def here_and_now(handler: Handler) -> Claimed:
    """The claim of a call that no worker makes: the first attempt, of a message that is stored nowhere."""
    return Claimed(
        id=0, epoch=0, message_seq=0, message_id=str(new_id()), topic=handler.topic, key=None, payload=None,
        payload_bytes=None, content_type="application/json", headers=None, destination=handler.target.name,
        queue=handler.route.queue, priority=0, lane=None, gate=None, attempt=1, max_attempts=1, lost=0, snoozes=0,
        replay_count=0, next_run_at=0.0, created_at=0.0, expires_at=None, timeout=handler.target.timeout, key_hash=None,
        digest=None, effect_state=None, effect_digest=None, worker=UUID(int=0),
    )  # fmt: skip

"""Jobs: `Job` is a function that can be called later, `Call` one call of it that can be stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, ParamSpec, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.flow import RUN
from todoku.core.message import Alike, Claimed, Draft, Message
from todoku.core.topic_pattern import Route
from todoku.engine.context import Context
from todoku.engine.deliveries import parse_message_id
from todoku.engine.jobs.handle import Handle, ResultReader
from todoku.engine.jobs.options import CallOptions, checked_attempts, checked_duration, checked_queue
from todoku.engine.jobs.signature import Signature
from todoku.engine.outbox import Outbox, new_id, new_ids
from todoku.engine.publish import Encoded, MessageOptions, PreparedDraft
from todoku.engine.registry import Target
from todoku.engine.twins import asynchronous, blocking

P = ParamSpec("P")
R = TypeVar("R")


class Handler(msgspec.Struct, frozen=True, kw_only=True):
    """A declared function: how its messages are encoded, routed and run."""

    function: Callable[..., Any]
    signature: Signature
    takes_context: bool
    topic: str
    route: Route
    target: Target
    kept: ResultReader
    unique_for: float | None = None
    aliases: tuple[str, ...] = ()
    """Its former names: calls stored under them still run."""
    marks: Mapping[str, str] = {}
    """Headers that todoku gives each call: those of a run."""


_OF_STORING: Final = frozenset({"tx", "best_effort"})
"""Options of a call that say how it is stored, and change nothing of its message."""


class _Usual:
    """What calls of a job without options have in common, checked once. `job.using(tx=…)` shares its job's."""

    __slots__ = ("prepared",)

    def __init__(self) -> None:
        self.prepared: PreparedDraft | None = None


class Job(Generic[P, R]):
    """A function that can be called later: `enqueue` stores a call, and a worker makes it."""

    def __init__(self, outbox: Outbox, handler: Handler, options: CallOptions | None = None) -> None:
        self._outbox = outbox
        self._handler = handler
        self._options: CallOptions = options or {}
        self._usual = _Usual()
        self.__doc__ = handler.function.__doc__

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    @property
    def name(self) -> str:
        """The job's name, which is its destination."""
        return self._handler.target.name

    @property
    def aliases(self) -> tuple[str, ...]:
        """Its former names."""
        return self._handler.aliases

    @property
    def outbox(self) -> Outbox:
        """The outbox that stores its calls."""
        return self._outbox

    @property
    def handler(self) -> Handler:
        """The declared function."""
        return self._handler

    @property
    def target(self) -> Target:
        """How a worker runs it."""
        return self._handler.target

    @property
    def route(self) -> Route:
        """The route of its own calls."""
        return self._handler.route

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls the function in this thread, as if it were not a job; an async function returns its coroutine."""
        if self._handler.takes_context:
            here = Context(here_and_now(self._handler), float("inf"), self._options.get("tx"))
            return self._handler.function(here, *args, **kwargs)
        return self._handler.function(*args, **kwargs)

    def using(self, **options: Unpack[CallOptions]) -> Job[P, R]:
        """Returns the same job with options for its calls; this job does not change.

        `tx`: in your transaction. `delay`, `at`: later. `expires`: seconds after which it is not run. `priority`: 0 to
        15, larger is sooner. `key`: calls with the same key run in turn if the job is ordered, or within its limit
        `per_key`. `idempotency_key`: once. `queue`, `max_attempts`, `timeout`: other than declared. `best_effort`: a
        call that cannot be stored is logged, and the handle says so, instead of an error.
        """
        if unknown := options.keys() - CallOptions.__optional_keys__:
            raise InvalidMessage(f"there is no option {', '.join(sorted(unknown))}", hint="see Job.using")
        made = type(self)(self._outbox, self._handler, {**self._options, **options})
        if made._options.keys() <= _OF_STORING:
            made._usual = self._usual
        return made

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Returns one checked call, to be stored with others by `box.enqueue_many`, `box.batch` or `box.chain`."""
        return Call(self._outbox, self._handler, self._options, self._handler.signature.encoded(args, kwargs))

    @blocking(lambda job: job.name)
    async def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """Stores a call: it commits with `tx`, or in a transaction of its own."""
        return await self._store(*args, **kwargs)

    aenqueue = asynchronous(enqueue)

    async def _store(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        call: Call[R] = self.call(*args, **kwargs)
        draft, tx = self._draft(call), self._options.get("tx")
        if self._options.get("best_effort"):
            return call.handle_or_none(draft, await self._outbox.try_insert([draft], tx))
        (message,) = await self._outbox.insert([draft], tx)
        return call.handle(message)

    def _draft(self, call: Call[R]) -> Draft:
        """Returns the draft of a call. What calls without options of their message have in common is checked once."""
        if not self._options.keys() <= _OF_STORING:
            return call.draft()
        prepared = self._usual.prepared
        if prepared is None or not self._outbox.is_current(prepared):
            prepared = self._usual.prepared = call._prepared()
        return self._outbox.fill(prepared, new_id(), call.payload)

    def handle(self, id: UUID | str) -> Handle[R]:
        """Returns the handle of this job's delivery of the message with this id, stored by any process.

        It is not looked up here: of a message that does not exist, the handle's calls raise NoSuchMessage.
        """
        return handle_of(self._outbox, self._handler, id if isinstance(id, UUID) else parse_message_id(id))


def handle_of(
    outbox: Outbox, handler: Handler, id: UUID, *, duplicate: bool = False, stored: bool = True
) -> Handle[Any]:
    """Returns the handle of a handler's delivery of a message, also of one that was stored under a former name."""
    names = (handler.target.name, *handler.aliases)
    return Handle(outbox, id, names, handler.kept, handler.route, duplicate=duplicate, stored=stored)


class Call(msgspec.Struct, Generic[R], eq=False, gc=False):
    """One call of a job: its arguments are checked and encoded, and it is not stored yet."""

    _outbox: Outbox
    _handler: Handler
    options: CallOptions
    payload: Encoded

    def __repr__(self) -> str:
        return f"<Call of {self.job}>"

    @property
    def job(self) -> str:
        """The name of its job."""
        return self._handler.target.name

    @property
    def handler(self) -> Handler:
        """The declared function."""
        return self._handler

    def draft(self) -> Draft:
        """Returns a checked draft of its message, with a new id."""
        return self._outbox.fill(self._prepared(), new_id(), self.payload)

    def _prepared(self) -> PreparedDraft:
        handler, given = self._handler, self.options
        options = MessageOptions(
            key=given.get("key"),
            idempotency_key=given.get("idempotency_key"),
            delay=given.get("delay"),
            at=given.get("at"),
            expires=given.get("expires"),
            priority=given.get("priority") or 0,
            headers={**(given.get("headers") or {}), **handler.marks} if handler.marks else given.get("headers"),
            labels=given.get("labels", ()),
            unique_for=handler.unique_for,
            unique_until_end=RUN in handler.marks,
        )
        return self._outbox.prepare(handler.topic, options, [routed(handler.route, given)])

    def handle(self, message: Message) -> Handle[R]:
        """Returns the handle of the stored call."""
        return handle_of(self._outbox, self._handler, message.id, duplicate=message.duplicate)

    def handle_of(self, id: UUID) -> Handle[R]:
        """Returns the handle of a call that will be stored with this id."""
        return handle_of(self._outbox, self._handler, id)

    def handle_or_none(self, draft: Draft, messages: list[Message] | None) -> Handle[R]:
        """Returns the handle of a call that may not be stored (None): then `stored` is False."""
        if messages is not None:
            return self.handle(messages[0])
        return handle_of(self._outbox, self._handler, draft.id, stored=False)


def handles_of(call: Call[R], ids: Sequence[UUID]) -> list[Handle[R]]:
    """Returns the handles of calls of the same job that will be stored with these ids."""
    outbox, handler = call._outbox, call._handler
    names, kept, route = (handler.target.name, *handler.aliases), handler.kept, handler.route
    return [Handle(outbox, id, names, kept, route) for id in ids]


class CallDrafts:
    """Calls that are to be stored together. What calls of one job have in common is checked once."""

    def __init__(self, calls: Sequence[Call[Any]]) -> None:
        self.calls = calls
        self._prepared: dict[tuple[int, int], PreparedDraft] = {}

    def __len__(self) -> int:
        return len(self.calls)

    def build(self, start: int, stop: int) -> list[Draft]:
        """As Unbuilt.build."""
        calls = self.calls[start:stop]
        return [
            call._outbox.fill(self._prepared_for(call), new, call.payload)
            for call, new in zip(calls, new_ids(len(calls)), strict=True)
        ]

    def alike(self, start: int, stop: int) -> Alike | None:
        """As Unbuilt.alike."""
        calls = self.calls[start:stop]
        first = calls[0]
        handler, options = first._handler, first.options
        for call in calls:
            if call._handler is not handler or call.options is not options:
                return None
        return first._outbox.alike(self._prepared_for(first), [call.payload.text for call in calls])

    def _prepared_for(self, call: Call[Any]) -> PreparedDraft:
        common = (id(call._handler), id(call.options))  # of one job: the calls keep both alive
        if (prepared := self._prepared.get(common)) is None:
            prepared = self._prepared[common] = call._prepared()
        return prepared


def drafts(calls: Sequence[Call[Any]]) -> list[Draft]:
    """Returns a checked draft of each call."""
    return CallDrafts(calls).build(0, len(calls))


def routed(route: Route, given: CallOptions) -> Route:
    """Returns a job's route with the options of one call."""
    queue, timeout = given.get("queue"), given.get("timeout")
    attempts = checked_attempts(given.get("max_attempts"), given.get("max_retries"), InvalidMessage)
    if queue is None and attempts is None and timeout is None:
        return route
    if queue is not None and route.per_key is not None and queue != route.queue:
        raise InvalidMessage(
            f"queue cannot be {queue!r} for a call: {route.destination} has a limit per key",
            hint="give the queue where the job is declared: a key has one",
        )
    return msgspec.structs.replace(
        route,
        queue=route.queue if queue is None else checked_queue(queue, InvalidMessage),
        max_attempts=route.max_attempts if attempts is None else attempts,
        timeout=route.timeout if timeout is None else checked_duration(timeout, "timeout", InvalidMessage),
    )


def here_and_now(handler: Handler) -> Claimed:
    """Returns a claim for a call that no worker makes: the first attempt of a message that is not stored."""
    return Claimed(
        id=0, epoch=0, message_seq=0, message_id=str(new_id()), topic=handler.topic, key=None, payload=None,
        payload_bytes=None, content_type="application/json", headers=None, destination=handler.target.name,
        queue=handler.route.queue, priority=0, lane=None, gate=None, attempt=1, max_attempts=1, lost=0, snoozes=0,
        replay_count=0, next_run_at=0.0, created_at=0.0, expires_at=None, timeout=handler.target.timeout, key_hash=None,
        digest=None, effect_state=None, effect_digest=None, worker=UUID(int=0),
    )  # fmt: skip

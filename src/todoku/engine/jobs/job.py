"""Jobs: `Job` is a function that can be called later, `Call` one call of it that can be stored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, ParamSpec, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage, JobAborted, NoSuchMessage, ResultNotKept
from todoku.core.message import Claimed, Draft, Message
from todoku.core.outcome import Duration, seconds
from todoku.core.status import Status
from todoku.core.topic_pattern import Route
from todoku.engine import operations
from todoku.engine.context import Context
from todoku.engine.encryption.opener import Opener
from todoku.engine.jobs.options import CallOptions, checked_attempts, checked_duration, checked_queue
from todoku.engine.jobs.signature import Signature
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import Encoded, MessageOptions
from todoku.engine.registry import Target
from todoku.engine.twins import Pause, asynchronous, blocking, in_thread
from todoku.store.columns import EPOCH
from todoku.store.deliveries import Filter, Standing
from todoku.store.store import Store

# ------------------------------------------------------------
# The handle of an enqueued job: its status, its result, and cancelling it.

R_co = TypeVar("R_co", covariant=True)

_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.5


class ResultReader(msgspec.Struct, frozen=True):
    """How a job's result is decoded; None: it keeps none."""

    decode: Callable[[str], Any] | None


class Handle(Generic[R_co]):
    """One enqueued job. `duplicate`: an equal one was stored before. `stored`: False if a `best_effort` call failed."""

    __slots__ = ("_kept", "_opener", "_store", "duplicate", "id", "job", "stored")

    def __init__(
        self, store: Store, id: UUID, job: str, kept: ResultReader, *, duplicate: bool = False, stored: bool = True,
        opener: Opener | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._kept = kept
        self._opener = opener
        self.id = id
        self.job = job
        self.duplicate = duplicate
        self.stored = stored

    def __repr__(self) -> str:
        return f"<Handle {self.job} {self.id}{' duplicate' if self.duplicate else ''}{'' if self.stored else ' lost'}>"

    @blocking("handle")
    async def status(self) -> Status:
        """Returns its status. NoSuchMessage: it was rolled back, is not committed yet, or its retention has passed."""
        standing = await in_thread(self._store.deliveries.standing, self.id, self.job)
        if standing is None:
            raise NoSuchMessage(
                f"there is no {self.job} {self.id}",
                hint="its transaction is not committed or was rolled back, or its retention has passed",
            )
        return Status(standing.status)

    astatus = asynchronous(status)

    @blocking("handle")
    async def result(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - of the result, not of this call
        """Waits for the job's return value, at most `timeout` (None: without a limit).

        JobAborted if it became a dead letter, TimeoutError if it takes longer, ResultNotKept if the job was declared
        without `keep_result=True`, CannotOpen if it is encrypted and its key is gone or not here.
        """
        for wait in self._waits(timeout):
            standing = await in_thread(self._look)
            if standing is not None and standing.status == Status.SUCCEEDED:
                return self._value(standing)
            self._refuse_aborted(standing)
            await Pause(wait)
        raise TimeoutError(f"{self.job} {self.id} has no result after {timeout} s; it goes on")

    aresult = asynchronous(result)

    @blocking("handle")
    async def cancel(self, *, by: str, why: str) -> bool:
        """Cancels it: True if it had not ended. A running attempt is asked to stop, and a success before that wins."""
        which, who = Filter(message_id=self.id, destination=self.job), operations.sign(by, why)
        return (await in_thread(operations.cancel, self._store, which, who)).changed > 0

    acancel = asynchronous(cancel)

    # ------------------------------------------------------------------------------------------- inside

    def _look(self) -> Standing | None:
        """Where it is now, with its result decrypted. Blocks."""
        standing = self._store.deliveries.standing(self.id, self.job)
        if standing is None or standing.result is None or self._opener is None:
            return standing
        opened = self._opener.result(standing.result, str(self.id), self.job)
        return msgspec.structs.replace(standing, result=opened)

    def _waits(self, timeout: Duration | None) -> Iterator[float]:
        """The pauses between looks, each longer than the one before; the last look is at the end of the timeout."""
        if self._kept.decode is None:
            raise ResultNotKept(f"{self.job} keeps no result", hint="declare it with keep_result=True")
        ends = None if timeout is None else time.monotonic() + seconds(timeout, what="timeout")
        wait = _FIRST_WAIT
        while ends is None or (left := ends - time.monotonic()) > 0:
            yield wait if ends is None else min(wait, left)
            wait = min(wait * 1.5, _LONGEST_WAIT)
        yield 0.0

    def _value(self, standing: Standing) -> R_co:
        if standing.result is None or self._kept.decode is None:
            return None  # type: ignore[return-value]  # it returned None, and that is what R says then
        return self._kept.decode(standing.result)  # type: ignore[no-any-return]

    def _refuse_aborted(self, standing: Standing | None) -> None:
        if standing is not None and standing.status == Status.ABORTED:
            reason = standing.reason or "UNKNOWN"
            raise JobAborted(
                f"{self.job} {self.id} was aborted: {reason}: {standing.error or reason}",
                hint="remove the cause, then replay it",
                reason=reason,
            )


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


class Job(Generic[P, R]):
    """A function that can be called later: `enqueue` stores a call, and a worker makes it."""

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
        return Job(self._outbox, self._handler, {**self._options, **options})

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Returns one checked call, to be stored with others by `box.enqueue_many`, `box.batch` or `box.chain`."""
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
    """One call of a job: its arguments are checked and encoded, and it is not stored yet."""

    __slots__ = ("_handler", "_outbox", "options", "payload")

    def __init__(self, outbox: Outbox, handler: Handler, options: CallOptions, payload: Encoded) -> None:
        self._outbox = outbox
        self._handler = handler
        self.options = options
        self.payload = payload

    def draft(self) -> Draft:
        """Returns a checked draft of its message, with a new id."""
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
        """Returns the handle of the stored call."""
        handler = self._handler
        return Handle(
            self._outbox.store, message.id, handler.target.name, handler.kept,
            duplicate=message.duplicate, opener=self._outbox.opener,
        )  # fmt: skip

    def handle_of(self, draft: Draft) -> Handle[R]:
        """Returns the handle of a call that will be stored with this draft's id."""
        return self.handle(Message(id=draft.id, topic=draft.topic, key=draft.key, duplicate=False, created_at=EPOCH))

    def handle_or_none(self, draft: Draft, messages: list[Message] | None) -> Handle[R]:
        """Returns the handle of a call that may not be stored (None): then `stored` is False."""
        if messages is not None:
            return self.handle(messages[0])
        handler = self._handler
        return Handle(self._outbox.store, draft.id, handler.target.name, handler.kept, stored=False)


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

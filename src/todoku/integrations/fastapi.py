"""todoku in a FastAPI application: its lifespan beside yours, and publishing in the session of the request.

api = FastAPI(lifespan=lifespans(own_lifespan, box.lifespan))
Outbox = Annotated[Publisher, Depends(publisher(box, get_session))]

@api.post("/orders")
async def create(db: Session, outbox: Outbox): ...
    await outbox.apublish(OrderCreated(…))        # in the transaction of `db`: tx= cannot be forgotten
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, ParamSpec, TypeVar, Unpack

from fastapi import Depends, Header, HTTPException, Request

from todoku.app import App, PublishOptions
from todoku.core.errors import IdempotencyConflict, InProgress, InvalidMessage
from todoku.core.message import Message
from todoku.engine.jobs.event import Event
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.job import Job
from todoku.engine.ledger import Answer
from todoku.integrations.idempotency import request_of
from todoku.integrations.principal import Principal, asker, stated

P = ParamSpec("P")
R = TypeVar("R")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespans(*parts: Lifespan) -> Lifespan:
    """Several lifespans as one: begun in this order, ended in the other. What they yield as state is put together."""

    @asynccontextmanager
    async def together(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            state: dict[str, Any] = {}
            for part in parts:
                state |= await stack.enter_async_context(part(app)) or {}
            yield state

    return together


class Publisher:
    """Publishes and enqueues in the transaction of one request."""

    def __init__(self, box: App, tx: Any) -> None:
        self.box = box
        self.tx = tx

    def publish(self, event: str | Event, payload: object = None, **options: Unpack[PublishOptions]) -> Message:
        """As `App.publish`."""
        return self.box.publish(event, payload, tx=self.tx, **options)

    async def apublish(self, event: str | Event, payload: object = None, **options: Unpack[PublishOptions]) -> Message:
        """As `App.apublish`."""
        return await self.box.apublish(event, payload, tx=self.tx, **options)

    def enqueue(self, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As `job.enqueue`. Options go before: `enqueue(welcome.using(delay=60), 7)`."""
        return job.using(tx=self.tx).enqueue(*args, **kwargs)

    async def aenqueue(self, job: Job[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As `job.aenqueue`."""
        return await job.using(tx=self.tx).aenqueue(*args, **kwargs)


def publisher(box: App, session: Callable[..., Any]) -> Callable[..., Publisher]:
    """A dependency: a Publisher in the session that the dependency `session` gives this request.

    FastAPI calls `session` once a request, so it is the very session of the endpoint; overriding it in tests works.
    """

    def joined(tx: Any = Depends(session)) -> Publisher:  # noqa: B008 - as FastAPI reads it
        return Publisher(box, tx)

    return joined


def once(
    box: App,
    session: Callable[..., Any],
    *,
    scope: str,
    principal: Principal | None = None,
    conflict: int = 422,
) -> Callable[..., AsyncIterator[Answer]]:
    """A dependency: `Idempotency-Key` in the session of the request. The endpoint looks at `first`, and stores.

    `if not done.first: return done.response`, else do it and `done.store(response)`. Both commit with the session,
    which its own dependency commits. 400: no key. 409: another request has it. `conflict`: it was another request's.
    `principal`: who asks, as for `IdempotencyMiddleware`; no other caller gets the answer.
    """
    known = stated(principal, scope)

    async def answered(
        request: Request,
        tx: Any = Depends(session),  # noqa: B008 - as FastAPI reads it
        idempotency_key: str | None = Header(None),
    ) -> AsyncIterator[Answer]:
        body = request_of(request.scope, await request.body())
        where = f"{scope}:{asker(request.scope, known)}"
        async with AsyncExitStack() as stack:
            # Only what the key itself meets is told so: an error of the endpoint stays what it is.
            try:
                block = box.once((idempotency_key or "").strip('"'), scope=where, tx=tx, body=body)
                done = await stack.enter_async_context(block)
            except InvalidMessage as error:
                raise HTTPException(400, f"Idempotency-Key: {error}") from error
            except InProgress as error:
                raise HTTPException(409, "a request with this Idempotency-Key runs", {"Retry-After": "1"}) from error
            except IdempotencyConflict as error:
                raise HTTPException(conflict, "this Idempotency-Key was used with another request") from error
            yield done

    return answered

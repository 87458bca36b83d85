"""todoku in a FastAPI application: its lifespan beside yours, and publishes in the session of the request.

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
from todoku.integrations.idempotency import Principal, caller_hash, principal_or_default, request_fields

P = ParamSpec("P")
R = TypeVar("R")

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespans(*parts: Lifespan) -> Lifespan:
    """Combines lifespans: they start in this order and end in the reverse order. The states they yield are merged."""

    @asynccontextmanager
    async def combined(app: Any) -> AsyncIterator[dict[str, Any]]:
        async with AsyncExitStack() as stack:
            state: dict[str, Any] = {}
            for part in parts:
                state |= await stack.enter_async_context(part(app)) or {}
            yield state

    return combined


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
    """Returns a dependency: a Publisher in the session that the dependency `session` provides.

    FastAPI calls `session` once per request, so it is the session of the endpoint; overriding it in tests works.
    """

    def provide(tx: Any = Depends(session)) -> Publisher:  # noqa: B008 - how FastAPI declares a dependency
        return Publisher(box, tx)

    return provide


def once(
    box: App,
    session: Callable[..., Any],
    *,
    scope: str,
    principal: Principal | None = None,
    conflict: int = 422,
) -> Callable[..., AsyncIterator[Answer]]:
    """Returns a dependency that handles `Idempotency-Key` in the session of the request.

    In the endpoint: `if not done.first: return done.response`; else do the work and call `done.store(response)`. Both
    commit with the session, which its own dependency commits. Responds 400 without a key, 409 while another request
    with this key runs, and `conflict` if the key was used with another request. `principal` identifies the caller, as
    in `IdempotencyMiddleware`; no other caller gets the response.
    """
    identify = principal_or_default(principal, scope)

    async def provide(
        request: Request,
        tx: Any = Depends(session),  # noqa: B008 - how FastAPI declares a dependency
        idempotency_key: str | None = Header(None),
    ) -> AsyncIterator[Answer]:
        body = request_fields(request.scope, await request.body())
        caller_scope = f"{scope}:{caller_hash(request.scope, identify)}"
        async with AsyncExitStack() as stack:
            # Only errors of the key become these responses; errors of the endpoint are raised unchanged.
            try:
                block = box.once((idempotency_key or "").strip('"'), scope=caller_scope, tx=tx, body=body)
                done = await stack.enter_async_context(block)
            except InvalidMessage as error:
                raise HTTPException(400, f"Idempotency-Key: {error}") from error
            except InProgress as error:
                text = "a request with this Idempotency-Key is running"
                raise HTTPException(409, text, {"Retry-After": "1"}) from error
            except IdempotencyConflict as error:
                raise HTTPException(conflict, "this Idempotency-Key was used with another request") from error
            yield done

    return provide

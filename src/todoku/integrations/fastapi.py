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

from fastapi import Depends

from todoku.app import App, PublishOptions
from todoku.core.message import Message
from todoku.engine.jobs.event import Event
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.job import Job

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

"""`/v2/queues`."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.qstash.answers import done, json, milliseconds
from todoku.api.qstash.parsing import LARGEST, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine.http import request_queues
from todoku.engine.http.publish_requests import RequestPublisher


class Upsert(msgspec.Struct, frozen=True, rename="camel"):
    """What a queue is to be."""

    queue_name: str
    parallelism: int | None = None
    paused: bool | None = None


class QueueEndpoints:
    """The endpoints of queues."""

    def __init__(self, context: RequestContext, posts: RequestPublisher) -> None:
        self._store, self._posts = context.store, posts

    async def upsert(self, request: Request) -> Response:
        """Make a queue, or change it."""
        wanted = decode_json(await read_body(request, limit=LARGEST), Upsert)
        who = signed(request, "upsert")
        await asyncio.to_thread(
            request_queues.upsert,
            self._store,
            wanted.queue_name,
            who,
            parallelism=wanted.parallelism,
            paused=wanted.paused,
        )
        self._posts.forget(wanted.queue_name)
        return done()

    def listed(self, _: Request) -> Response:
        """All of them."""
        return json([_body(queue) for queue in request_queues.list_queues(self._store)])

    def get(self, request: Request) -> Response:
        """One of them."""
        name = segment(request, "queue")
        if (found := request_queues.get(self._store, name)) is None:
            raise NotThere(f"there is no queue {name!r}", hint="enqueue something, or POST /v2/queues")
        return json(_body(found))

    def remove(self, request: Request) -> Response:
        """Remove one; one that is gone already is no error, as with QStash."""
        refuse_query_and_body(request)
        name = segment(request, "queue")
        request_queues.remove(self._store, name, signed(request, "delete"))
        self._posts.forget(name)
        return done()

    def pause(self, request: Request) -> Response:
        """Deliver nothing of it until it is resumed."""
        request_queues.pause(self._store, segment(request, "queue"), signed(request, "pause"), paused=True)
        return done()

    def resume(self, request: Request) -> Response:
        """Deliver again."""
        request_queues.pause(self._store, segment(request, "queue"), signed(request, "resume"), paused=False)
        return done()


def _body(queue: request_queues.RequestQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "parallelism": queue.parallelism,
        "createdAt": milliseconds(queue.created_at),
        "updatedAt": milliseconds(queue.updated_at),
        "lag": queue.lag,
        "paused": queue.paused,
    }

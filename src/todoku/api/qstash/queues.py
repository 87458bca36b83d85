"""`/v2/queues`."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.qstash.answers import empty_response, json, milliseconds
from todoku.api.qstash.parsing import LARGEST, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine.http import request_queues
from todoku.engine.http.publish_requests import RequestPublisher


class Upsert(msgspec.Struct, frozen=True, rename="camel"):
    """The new settings of a queue; None: unchanged."""

    queue_name: str
    parallelism: int | None = None
    paused: bool | None = None


class QueueEndpoints:
    """The endpoints of queues."""

    def __init__(self, context: RequestContext, posts: RequestPublisher) -> None:
        self._store, self._posts = context.store, posts

    async def upsert(self, request: Request) -> Response:
        """Creates a queue, or changes it."""
        upsert = decode_json(await read_body(request, limit=LARGEST), Upsert)
        who = signed(request, "upsert")
        await asyncio.to_thread(
            request_queues.upsert,
            self._store,
            upsert.queue_name,
            who,
            parallelism=upsert.parallelism,
            paused=upsert.paused,
        )
        self._posts.forget(upsert.queue_name)
        return empty_response()

    def list_all(self, _: Request) -> Response:
        """Lists all queues."""
        return json([_body(queue) for queue in request_queues.list_queues(self._store)])

    def get(self, request: Request) -> Response:
        """Returns one queue."""
        name = segment(request, "queue")
        if (found := request_queues.get(self._store, name)) is None:
            raise NotThere(f"there is no queue {name!r}", hint="create it by an enqueue or by POST /v2/queues")
        return json(_body(found))

    def remove(self, request: Request) -> Response:
        """Removes a queue; does nothing if it does not exist, like QStash."""
        refuse_query_and_body(request)
        name = segment(request, "queue")
        request_queues.remove(self._store, name, signed(request, "delete"))
        self._posts.forget(name)
        return empty_response()

    def pause(self, request: Request) -> Response:
        """Pauses a queue until it is resumed."""
        request_queues.pause(self._store, segment(request, "queue"), signed(request, "pause"), paused=True)
        return empty_response()

    def resume(self, request: Request) -> Response:
        """Resumes a queue."""
        request_queues.pause(self._store, segment(request, "queue"), signed(request, "resume"), paused=False)
        return empty_response()


def _body(queue: request_queues.RequestQueue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "parallelism": queue.parallelism,
        "createdAt": milliseconds(queue.created_at),
        "updatedAt": milliseconds(queue.updated_at),
        "lag": queue.lag,
        "paused": queue.paused,
    }

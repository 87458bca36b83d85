"""`/v2/queues`."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.qstash.answers import empty_response, json, number
from todoku.api.qstash.parsing import LARGEST, Query, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.duration import interval, milliseconds
from todoku.core.errors import NotThere
from todoku.core.upstash_headers import with_unit
from todoku.engine.http import flow_control, request_queues
from todoku.engine.http.publish_requests import RequestPublisher

# ------------------------------------------------------------
# `/v2/flowControl` and `/v2/globalParallelism`.

_MOST: Final = 1_000_000


class FlowEndpoints:
    """The endpoints of flow control."""

    def __init__(self, context: RequestContext, posts: RequestPublisher) -> None:
        self._store, self._settings, self._posts = context.store, context.settings, posts

    def list_all(self, request: Request) -> Response:
        """Lists all flow keys, or those that contain the text of `search`."""
        return json(
            [_flow_body(key) for key in flow_control.list_keys(self._store, search=Query(request).one("search"))]
        )

    def get(self, request: Request) -> Response:
        """Returns one flow key."""
        key = segment(request, "key")
        if (found := flow_control.get(self._store, key)) is None:
            raise NotThere(
                f"there is no flow key {key!r}", hint="it is created by a publish with Upstash-Flow-Control-Key"
            )
        return json(_flow_body(found))

    def pause(self, request: Request) -> Response:
        """Pauses deliveries with this key until it is resumed."""
        flow_control.pause(self._store, segment(request, "key"), signed(request, "pause"), paused=True)
        return empty_response()

    def resume(self, request: Request) -> Response:
        """Resumes deliveries with this key."""
        flow_control.pause(self._store, segment(request, "key"), signed(request, "resume"), paused=False)
        return empty_response()

    def pin(self, request: Request) -> Response:
        """Fixes the limits of a key; publishers no longer change them."""
        query = Query(request, ("parallelism", "rate", "period"))
        period = query.one("period")
        flow_control.pin(
            self._store,
            segment(request, "key"),
            signed(request, "pin"),
            parallelism=query.number("parallelism", least=1, most=_MOST),
            rate=query.number("rate", least=1, most=_MOST),
            period=None if period is None else interval(with_unit(period), what="period"),
        )
        return empty_response()

    def unpin(self, request: Request) -> Response:
        """Lets publishers change the limits of a key again."""
        query = Query(request, ("parallelism", "rate"))
        key, who = segment(request, "key"), signed(request, "unpin")
        flow_control.unpin(self._store, key, who, parallelism=query.flag("parallelism"), rate=query.flag("rate"))
        self._posts.forget()
        return empty_response()

    def reset_rate(self, request: Request) -> Response:
        """Starts a new period of the rate now."""
        key = segment(request, "key")
        if not flow_control.reset_rate(self._store, key, signed(request, "reset rate")):
            raise NotThere(f"there is no flow key {key!r}", hint="GET /v2/flowControl lists them")
        return empty_response()

    def parallelism(self, _: Request) -> Response:
        """Returns how many requests are running, and the largest possible number."""
        running, workers = self._store.queues.count_running()
        return json({"parallelismMax": workers * self._settings.http_concurrency, "parallelismCount": running})


def _flow_body(key: flow_control.FlowKey) -> dict[str, Any]:
    return {
        "flowControlKey": key.key,
        "waitListSize": key.waiting,
        "parallelismMax": key.parallelism_max or 0,
        "parallelismCount": key.parallelism_count,
        "rateMax": key.rate_max or 0,
        "rateCount": key.rate_count,
        "ratePeriod": number(key.period),
        "ratePeriodStart": 0 if key.period_start is None else milliseconds(key.period_start) // 1000,
        "isPaused": key.paused,
        "isPinnedParallelism": key.pinned_parallelism,
        "isPinnedRate": key.pinned_rate,
    }


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

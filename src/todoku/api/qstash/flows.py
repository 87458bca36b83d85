"""`/v2/flowControl` and `/v2/globalParallelism`."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import done, json, milliseconds, number
from todoku.api.qstash.parsing import Query, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.duration import interval
from todoku.core.errors import NotThere
from todoku.core.upstash_headers import with_unit
from todoku.engine.http import flow_control
from todoku.engine.http.publish_requests import Posts

_MOST: Final = 1_000_000


class Flows:
    """The endpoints of flow control."""

    def __init__(self, context: RequestContext, posts: Posts) -> None:
        self._store, self._settings, self._posts = context.store, context.settings, posts

    def listed(self, request: Request) -> Response:
        """All of them, or those whose key contains something."""
        return json([_body(key) for key in flow_control.listed(self._store, search=Query(request).one("search"))])

    def get(self, request: Request) -> Response:
        """One of them."""
        key = segment(request, "key")
        if (found := flow_control.get(self._store, key)) is None:
            raise NotThere(f"there is no flow key {key!r}", hint="publish something with Upstash-Flow-Control-Key")
        return json(_body(found))

    def pause(self, request: Request) -> Response:
        """Deliver nothing with this key until it is resumed."""
        flow_control.pause(self._store, segment(request, "key"), signed(request, "pause"), paused=True)
        return done()

    def resume(self, request: Request) -> Response:
        """Deliver again."""
        flow_control.pause(self._store, segment(request, "key"), signed(request, "resume"), paused=False)
        return done()

    def pin(self, request: Request) -> Response:
        """Fix what it allows, whatever publishers say."""
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
        return done()

    def unpin(self, request: Request) -> Response:
        """Let what publishers say count again."""
        query = Query(request, ("parallelism", "rate"))
        key, who = segment(request, "key"), signed(request, "unpin")
        flow_control.unpin(self._store, key, who, parallelism=query.flag("parallelism"), rate=query.flag("rate"))
        self._posts.forget()
        return done()

    def reset_rate(self, request: Request) -> Response:
        """Let a period begin now."""
        key = segment(request, "key")
        if not flow_control.reset_rate(self._store, key, signed(request, "reset rate")):
            raise NotThere(f"there is no flow key {key!r}", hint="GET /v2/flowControl lists them")
        return done()

    def parallelism(self, _: Request) -> Response:
        """How many requests are being sent, and how many may be at once."""
        running, workers = self._store.queues.count_running()
        return json({"parallelismMax": workers * self._settings.http_concurrency, "parallelismCount": running})


def _body(key: flow_control.FlowKey) -> dict[str, Any]:
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

"""The API: `POST /do/order`, and `GET /metrics`."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from prometheus_client import CollectorRegistry, Counter, generate_latest
from sqlalchemy.exc import SQLAlchemyError
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import todoku
from orders_example.accepting import Accepting, Answer
from orders_example.order import Order, Refused, read_order
from orders_example.problem import problem
from orders_example.rate import Rate
from orders_example.reasons import Reason
from orders_example.settings import Settings

LARGEST: Final = 1 << 16


class TooLarge(Exception):
    """A body nobody reads to its end."""


class Api:
    """`POST /do/order` on an application that is open."""

    def __init__(self, accepting: Accepting, settings: Settings) -> None:
        self._accepting = accepting
        self._instruments = settings.instruments
        self._rate = Rate(settings.orders_per_minute)
        self._registry = CollectorRegistry()
        self._counted = Counter("order_requests", "Orders asked for.", ["status"], registry=self._registry)

    async def order(self, request: Request) -> Response:
        """Accept an order, or say what became of it."""
        try:
            answer = await self._answered(request)
        except (todoku.DatabaseUnavailable, SQLAlchemyError):
            answer = problem(503, Reason.INTERNAL_ERROR, "The database is away. Nothing was accepted.", retry_after=5)
        except Exception:
            self._counted.labels("500").inc()
            raise
        self._counted.labels(str(answer.status_code)).inc()
        return answer

    async def metrics(self, _request: Request) -> Response:
        """How many orders were asked for, by the status of the answer."""
        return Response(generate_latest(self._registry), media_type="text/plain; version=0.0.4")

    async def _answered(self, request: Request) -> Response:
        if wait := self._rate.wait(request.client.host if request.client else ""):
            return problem(429, "RATE_LIMITED", "Too many requests in a minute.", retry_after=wait)
        try:
            order = read_order(await _body(request), self._instruments)
        except TooLarge:
            return problem(413, Reason.VALIDATION_ERROR, f"An order has at most {LARGEST} bytes.")
        except Refused as error:
            return _refused(error.field, error.problem)
        given = _unquoted(request.headers.get("idempotency-key"))
        if given != order.idempotency_key:
            what = "is missing" if given is None else "is not the order's idempotency_key"
            return problem(422, "IDEMPOTENCY_MISMATCH", f"The header Idempotency-Key {what}.")
        return await self._accepted(order)

    async def _accepted(self, order: Order) -> Response:
        try:
            answer = await run_in_threadpool(self._accepting.accept, order)
        except todoku.IdempotencyConflict:
            return problem(409, Reason.IDEMPOTENCY_CONFLICT, "This idempotency_key was used for another order.")
        except todoku.InvalidMessage as error:  # what JSON allows and a database does not
            return _refused("body", str(error))
        return _json(answer)


def make_api(accepting: Accepting, settings: Settings) -> Starlette:
    """The API as an ASGI application; what it raises is a problem document, too."""
    api = Api(accepting, settings)
    routes = [Route("/do/order", api.order, methods=["POST"]), Route("/metrics", api.metrics)]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http, Exception: _broken})


async def _body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > LARGEST:
            raise TooLarge
    return b"".join(parts)


def _unquoted(header: str | None) -> str | None:
    """As a structured field it is a quoted string, and many clients send it bare."""
    quoted = header is not None and len(header) >= 2 and header[0] == header[-1] == '"'
    return header[1:-1] if header is not None and quoted else header


def _refused(field: str, said: str) -> Response:
    """Which field, and what is wrong with it."""
    return problem(422, Reason.VALIDATION_ERROR, f"{field}: {said}", errors=[{"field": field, "problem": said}])


def _json(answer: Answer) -> Response:
    return Response(msgspec.json.encode(answer.document), answer.status, media_type="application/json")


def _http(_request: Request, error: Any) -> Response:
    """No such path, no such method."""
    return problem(error.status_code, error.detail.upper().replace(" ", "_"), error.detail)


def _broken(_request: Request, _error: Exception) -> Response:
    return problem(500, Reason.INTERNAL_ERROR, "This is our fault. Nothing was accepted, or ask again and see.")

"""`python -m orders_example.broker.server`: a small broker. Each key is one order; its log says what it was asked.

It notes an order in BROKER_LOG before it answers, and reads that file when it starts: a restart executes nothing twice.
An order whose sender hangs up before it was executed is dropped: its key is free for the sender's next attempt.
"""

from __future__ import annotations

import asyncio
import hmac
import os
import sys
import time
from collections import defaultdict
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import todoku
from orders_example.broker import BrokerAdapter, Execution
from orders_example.broker.paper import PaperAdapter
from orders_example.broker.scenario import read_scenario
from orders_example.order import Order
from orders_example.problem import problem
from orders_example.reasons import HTTP_STATUS, AdapterError, Reason, reason_code_from
from orders_example.settings import whole

PORT = 8331

GRACE: Final = 2
"""Seconds that orders in progress have after SIGTERM: one that its scenario never answers must not keep it alive."""

HUNG_UP: Final = 499
"""The status of an answer that is not sent, because its client has gone."""


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the log: an `order` that was executed now, or a `repeat` of one that had been."""

    event: Literal["order", "repeat"]
    at: float
    key: str
    worker: int
    order: Order
    execution: Execution


class Exchange:
    """Executes each key once, and notes every order it is asked for, again or not."""

    def __init__(self, market: BrokerAdapter, log: Path) -> None:
        self._market = market
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.ftruncate(self._log, log.read_bytes().rfind(b"\n") + 1)  # what a crash cut off was never answered
        self._known = {noted.key: noted for noted in read_log(log) if noted.event == "order"}
        self._busy: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def execute(self, order: Order, worker: int) -> Execution:
        """The execution of an order, new or known. AdapterError: there is none."""
        key = order.idempotency_key
        async with self._busy[key]:  # the same key at the same moment waits for the first
            if (known := self._known.get(key)) is None:
                execution = await self._market.send(order)
                noted = Noted(event="order", at=time.time(), key=key, worker=worker, order=order, execution=execution)
                self._known[key] = noted
            else:
                if known.order != order:
                    raise AdapterError(Reason.IDEMPOTENCY_CONFLICT, "this key was used for another order")
                noted = msgspec.structs.replace(known, event="repeat", at=time.time(), worker=worker)
            os.write(self._log, msgspec.json.encode(noted) + b"\n")
        return noted.execution


def read_log(path: Path) -> list[Noted]:
    """What a broker was asked for, in order. A last line that is not whole is being written."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [msgspec.json.decode(line, type=Noted) for line in lines]


def make_broker(exchange: Exchange, token: str, latency: float = 0.0) -> Starlette:
    """The broker as an ASGI application. It thinks for `latency` seconds before it executes, and after."""

    async def orders(request: Request) -> Response:
        if not hmac.compare_digest(request.headers.get("authorization", ""), f"Bearer {token}"):
            return problem(401, "UNAUTHORIZED", "Who are you?")
        try:
            order = msgspec.json.decode(await request.body(), type=Order)
            if order.idempotency_key != request.headers.get("idempotency-key"):
                return problem(422, Reason.VALIDATION_ERROR, "Idempotency-Key is not the order's.")
            await asyncio.sleep(latency)
            worker = int(request.headers.get("x-worker", "0"))
            execution = await _while_connected(request, exchange.execute(order, worker))
            if execution is None:
                return Response(status_code=HUNG_UP)
            await asyncio.sleep(latency)
        except msgspec.MsgspecError as error:
            return problem(422, Reason.VALIDATION_ERROR, str(error))
        except asyncio.CancelledError:  # only the server cancels a request: when GRACE is over
            return problem(503, Reason.BROKER_DOWN, "The broker stops. The order was not executed, or ask again.")
        except Exception as error:  # noqa: BLE001 - whatever the market raises is an answer
            reason = reason_code_from(error)
            return problem(HTTP_STATUS[reason], reason, str(error))
        return Response(msgspec.json.encode(execution), 201, media_type="application/json")

    return Starlette(routes=[Route("/orders", orders, methods=["POST"])])


async def _while_connected(request: Request, execution: Coroutine[Any, Any, Execution]) -> Execution | None:
    """The execution; None: its client hung up before it was there, and it was cancelled.

    The client's time limit is the only one. Without this, an order that is never answered would keep its key locked
    after the client has given up, and the client's next attempt would wait behind it for ever.
    """
    working = asyncio.create_task(execution)
    gone = asyncio.create_task(_hang_up(request))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        working.cancel()  # does nothing if it has ended
    await asyncio.wait((working,))
    return None if working.cancelled() else working.result()


async def _hang_up(request: Request) -> None:
    """Returns when the client has closed the connection. The request's body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def main() -> int:
    """Serves until SIGINT or SIGTERM; orders that are not executed GRACE seconds later are dropped."""
    environ = os.environ
    try:
        exchange = Exchange(
            PaperAdapter(read_scenario(environ.get("BROKER_SCENARIO", ""), "BROKER_SCENARIO")),
            Path(environ.get("BROKER_LOG", "broker.jsonl")),
        )
        broker = make_broker(exchange, environ.get("BROKER_TOKEN", ""), whole(environ, "BROKER_LATENCY_MS", 10) / 1000)
        port = whole(environ, "BROKER_PORT", PORT)
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"broker: {error}\n")
        return 2
    uvicorn.run(
        broker, host="127.0.0.1", port=port, log_level="warning", access_log=False, timeout_graceful_shutdown=GRACE
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

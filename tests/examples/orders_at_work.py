"""The orders example at work: an application, requests to its API, a broker server, and `todoku` on its database."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from click.testing import CliRunner
from orders_example.api import make_api
from orders_example.application import Application, opened
from orders_example.broker.paper import PaperAdapter
from orders_example.broker.scenario import read_scenario
from orders_example.broker.server import Exchange, make_broker
from orders_example.order import Order, read_order
from orders_example.settings import DEFAULT_INSTRUMENTS, Settings, instruments
from sqlalchemy import text

from tests.daemon.running import until
from tests.support.ports import free_port
from todoku.cli.main import cli

KEY = "order-key-1"
ORDER: dict[str, Any] = {
    "idempotency_key": KEY, "order_id": "o-1", "instrument": "AAPL", "side": "BUY", "qty": 3, "price": 187.5,
    "requested_at": "2026-11-16T09:00:00Z", "trace_id": "t-1",
}  # fmt: skip


@contextmanager
def orders_at(url: str, **settings: Any) -> Iterator[Application]:
    """An open application, its broker of paper unless a `broker_url` is given."""
    given = {"instruments": instruments(DEFAULT_INSTRUMENTS), "broker_timeout": 30.0} | settings
    with opened(Settings(database=url, **given)) as application:
        yield application


def an_order(**changed: Any) -> Order:
    return read_order(json.dumps(ORDER | changed).encode(), instruments(DEFAULT_INSTRUMENTS))


class Desk:
    """Somebody who orders: requests go straight into the ASGI application."""

    def __init__(self, application: Application) -> None:
        self._api = make_api(application.accepting, application.settings)

    async def post(self, body: Any, key: str | None = KEY) -> httpx.Response:
        """`POST /do/order`. A body that is text is sent as it is."""
        headers = {"content-type": "application/json"} | ({} if key is None else {"idempotency-key": key})
        transport = httpx.ASGITransport(self._api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://orders") as client:
            content = body if isinstance(body, str | bytes) else json.dumps(body)
            return await client.post("/do/order", content=content, headers=headers)


def rows(application: Application, sql: str, **values: object) -> list[tuple[Any, ...]]:
    """What a statement finds, committed."""
    with application.database.begin() as tx:
        found = tx.execute(text(sql), values)
        return [tuple(row) for row in found] if found.returns_rows else []


def ledger(application: Application, key: str = KEY) -> tuple[str, int, dict[str, Any]]:
    """Status, HTTP status and response of a key."""
    ((status, code, response),) = rows(
        application,
        "select status, http_status, cast(response_payload_json as text) from idempo_ledger where idempotency_key = :k",
        k=key,
    )
    return status, code, json.loads(response)


def outbox(application: Application, key: str = KEY) -> tuple[str, int, str | None]:
    """Status, attempts and last error of a key's outbox row."""
    ((status, attempts, error),) = rows(
        application, "select status, attempts, last_error_code from outbox_orders where idempotency_key = :k", k=key
    )
    return status, attempts, error


def todoku(application: Application, *arguments: str) -> str:
    """Type a `todoku` command; returns what it prints."""
    environ = {"TODOKU_DATABASE": application.settings.database, "TODOKU_BY": "ada"}
    done = CliRunner().invoke(cli, arguments, env=environ)
    assert done.exit_code == 0, done.output
    return done.output


@contextmanager
def broker_at(home: Path, token: str = "sesame", scenario: str = "") -> Iterator[str]:
    """A broker server, really served; its log is home/broker.jsonl."""
    exchange = Exchange(PaperAdapter(read_scenario(scenario)), home / "broker.jsonl")
    port = free_port()
    config = uvicorn.Config(make_broker(exchange, token), port=port, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started, "the broker")
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()

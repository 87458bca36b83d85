"""Ingest: how fast `POST /ingest/stripe` of a daemon is acknowledged, beside the same framework's empty endpoint.

At 500 requests a second for some seconds: the 50th and 99th percentile, on SQLite with synchronous=FULL and on
PostgreSQL, with a worker that handles each event. Then as many as the daemon takes from 256 connections, in turns with
an application of Starlette and uvicorn whose only endpoint answers 204 and does nothing.
"""

from __future__ import annotations

import hmac
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

import todoku
from bench.bars import Bar, compared
from bench.http.load import Order, Result
from tests.daemon.running import Daemon, until
from tests.support.ports import free_port
from tests.support.services import ROOT

SECRET = "whsec_of_the_benchmark"
RATE = 500.0
CONNECTIONS = 256
LATENCY_MS = 50.0
SHARE = 0.5

HOOKS = f"""
import todoku

box = todoku.App()
box.ingest("stripe", todoku.stripe(secrets=["{SECRET}"]), topic="stripe.{{type}}")
box.route("stripe.kept", to="elsewhere")

@box.on("stripe.handled")
async def handled(event: object) -> None:
    pass
"""

EMPTY = """
import sys
import uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def empty(request):
    return Response(status_code=204)

uvicorn.run(
    Starlette(routes=[Route("/ingest/stripe", empty, methods=["POST"])]),
    port=int(sys.argv[1]), http="httptools", loop="uvloop", log_level="error", access_log=False, lifespan="off",
)
"""


def requests(number: int, type: str, batch: str) -> list[bytes]:
    """Signed events, each with an id of its own, as bytes on the wire."""
    at = int(time.time())
    return [_request(f"evt_{batch}_{n}", type, at) for n in range(number)]


def _request(id: str, type: str, at: int) -> bytes:
    intent = {
        "id": f"pi_{id}", "object": "payment_intent", "amount": 4200, "currency": "eur", "status": "succeeded",
        "customer": "cus_1", "metadata": {"participant_id": "p_1", "note": "x" * 400},
    }  # fmt: skip
    event = {"id": id, "object": "event", "type": type, "created": at, "livemode": False, "data": {"object": intent}}
    body = json.dumps(event).encode()
    signature = hmac.digest(SECRET.encode(), f"{at}.".encode() + body, "sha256").hex()
    head = (
        "POST /ingest/stripe HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json; charset=utf-8\r\n"
        f"User-Agent: Stripe/1.0\r\nStripe-Signature: t={at},v1={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def sent(port: int, wanted: list[bytes], rate: float | None = None, *, connections: int = CONNECTIONS) -> Result:
    """What a load generator of its own measured."""
    order = Order(port, wanted, connections, 204, rate)
    done = subprocess.run(
        [sys.executable, "-m", "bench.http.load"],
        input=msgspec.msgpack.encode(order), stdout=subprocess.PIPE, check=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    result = msgspec.msgpack.decode(done.stdout, type=Result)
    if result.other:
        raise RuntimeError(f"{result.other} answers were not 204")
    return result


@contextmanager
def serving(url: str, serve_workers: int = 1, **more: str) -> Iterator[Daemon]:
    """A daemon with the App above, and so many processes that serve. `more` is for its environment."""
    with tempfile.TemporaryDirectory(prefix="todoku-bench-") as home:
        (Path(home) / "hooks.py").write_text(HOOKS)
        environ = {"TODOKU_DATABASE": url or f"sqlite:///{home}/bench.db"}
        box = todoku.App(environ["TODOKU_DATABASE"])
        box.migrate()
        box.close()
        arguments = ("run", "--app", "hooks:box", "--workers", "1", "--serve-workers", str(serve_workers))
        daemon = Daemon(arguments, Path(home), environ | more)
        try:
            daemon.until_ready()
            until(lambda: all(one["state"] == "serving" for one in daemon.serving()), "all serving processes")
            yield daemon
        finally:
            daemon.close()


@contextmanager
def empty() -> Iterator[int]:
    """The port of the empty endpoint."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", EMPTY, str(port)])
    try:
        until(lambda: _answers(port), "the empty endpoint")
        yield port
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    try:
        return sent(port, requests(1, "kept", "probe")).other == 0
    except subprocess.CalledProcessError:
        return False


def bars(url: str, name: str, *, seconds: float, number: int, rounds: int, serve_workers: int = 1) -> list[Bar]:
    """The bars of one database. `url` is empty for a SQLite file, on which one process serves."""
    with serving(url, serve_workers if url else 1) as daemon, empty() as nothing:
        sent(daemon.port, requests(500, "handled", "warm"))
        paced = sent(daemon.port, requests(int(RATE * seconds), "handled", "paced"), RATE)
        middle, late = paced.percentile(0.5), paced.percentile(0.99)
        print(f"  {name}: {RATE:.0f}/s for {seconds:g} s: p50 {middle:.1f} ms, p99 {late:.1f} ms", flush=True)
        turn = iter(range(1000))
        ingest, bare = compared(
            rounds, f"ingest on {name}",
            ("todoku", lambda: sent(daemon.port, requests(number, "kept", f"full{next(turn)}")).rate),
            ("empty endpoint", lambda: sent(nothing, requests(number, "kept", "bare")).rate),
        )  # fmt: skip
    return [
        Bar(f"ingest/{name}/p99", late, LATENCY_MS, " ms", at_most=True),
        Bar(f"ingest/{name}/share", ingest / bare, SHARE),
    ]

"""With a uvicorn that was not tested, or without its private names, the server speaks HTTP by uvicorn's own means."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

import todoku
from tests.ingest.signers import KINDS, event
from tests.support.migrated import copy_migrated
from tests.support.serving import Server, serving_events
from todoku.api.http_limits import LARGEST_HEAD, BoundedProtocol
from todoku.api.ingest_fast_path import ServedApp, protocol_options
from todoku.api.uvicorn_protocol import is_tested
from todoku.store.deliveries import Filter

STRIPE = KINDS[0]
ROOT = Path(__file__).resolve().parents[3]


async def nothing(*_: object) -> None: ...


@pytest.fixture
def box(tmp_path: Path) -> Iterator[todoku.App]:
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    copy_migrated(url)
    box = todoku.App(url)
    yield box
    box.close()


def ingested(server: Server) -> int:
    """The status of an event that is posted twice."""
    body = event()
    headers = dict(STRIPE.arrived(body).headers)
    (status,) = {server.client().post("/ingest/stripe", content=body, headers=headers).status_code for _ in range(2)}
    return status


def test_the_versions_that_were_tested_have_our_protocol() -> None:
    assert is_tested()
    assert issubclass(protocol_options(ServedApp(nothing))["http"].func, BoundedProtocol)


@pytest.mark.parametrize("way", ["0.35.0", "0.55.0", "1.0", "unknown", "no method"])
def test_others_take_in_events_all_the_same(box: todoku.App, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    if way == "no method":
        monkeypatch.setattr("todoku.api.uvicorn_protocol._OVERRIDDEN", ("on_body", "gone"))
    else:
        monkeypatch.setattr(uvicorn, "__version__", way)
    assert protocol_options(ServedApp(nothing))["http"] == "h11"
    with serving_events(box, STRIPE.verifier()) as server:
        assert ingested(server) == 204
        assert server.client().get("/healthz").status_code == 200
        assert server.client("publish").post("/v2/publish/https://a.example/", content=b"{}").status_code == 200
        large = server.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX: " + b"x" * LARGEST_HEAD)
        assert large.startswith(b"HTTP/1.1 400"), "a head is bounded by uvicorn, too"
    assert sorted(found.topic for found in box.store.deliveries.find(Filter(), limit=10).items) == [
        "http.request", "stripe.payment_intent.succeeded",
    ]  # fmt: skip


WITHOUT = """
import json, sys
import uvicorn.protocols.http.httptools_impl as private
del private.HttpToolsProtocol
import todoku
from tests.api.http.test_fallback import STRIPE, ingested
from tests.support.serving import serving_events
from todoku.api.uvicorn_protocol import is_tested
box = todoku.App(sys.argv[1])
box.migrate()
with serving_events(box, STRIPE.verifier()) as server:
    status = ingested(server)
print(json.dumps([is_tested(), status, box.store.statistics.counts().of("pending")]))
"""


def test_so_does_one_without_the_class(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, f"sqlite:///{tmp_path / 'shop.db'}"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [False, 204, 1]

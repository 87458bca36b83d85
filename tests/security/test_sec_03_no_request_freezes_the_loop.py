"""SEC-3: no request freezes the event loop. What is parsed from outside has a bound on its cost.

Nothing is timed here. Requests that were answered meanwhile are counted, or the calls that a parser makes.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from tests.support.raw_http import RawConnection, request
from tests.support.serving import Server
from todoku.api.qstash.publish import BatchItem, PublishEndpoints
from todoku.core.address import address
from todoku.core.backoff import parse
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.schedule import EPOCH, Cron, cron, next_after
from todoku.core.upstash_headers import collect_fields
from todoku.engine.http.publish_requests import CheckedRequest

NEVER = "58,59 58,59 */23 LW * */6"
SELDOM = "58,59 */59 22,23 30 2 MON#5"
"""Cron expressions that are costly to follow: nothing matches for 50 years, or for 28."""

LONG_DELAY = "+".join(["1"] * 250)
URL = "https://shop.example/hook"


class Meanwhile:
    """Asks for health again and again, over a connection of its own, and counts the answers."""

    def __init__(self, server: Server) -> None:
        self.answers = 0
        self._connection = RawConnection(server.port)
        self._over = threading.Event()
        self._asking = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while not self._over.is_set():
            self._connection.send(request("GET", "/healthz"))
            assert self._connection.answer().status == 200
            self.answers += 1

    @contextmanager
    def counting(self) -> Iterator[None]:
        self._asking.start()
        try:
            yield
        finally:
            self._over.set()
            self._asking.join()
            self._connection.close()


def post(server: Server, path: str, headers: dict[str, str], body: bytes) -> int:
    bearer = {"Authorization": f"Bearer {server.token('publish', 'operate')}"}
    with RawConnection(server.port) as connection:
        connection.send(request("POST", path, bearer | headers, body))
        return connection.answer().status


def batch(number: int, headers: dict[str, str]) -> bytes:
    return json.dumps([{"destination": URL, "headers": headers, "body": "x"}] * number).encode()


def test_SEC_3_a_header_that_means_nothing_is_not_parsed(server: Server) -> None:
    """A thousand costly cron expressions in a batch, where they mean nothing: a minute of silence once."""
    meanwhile = Meanwhile(server)
    with meanwhile.counting():
        assert post(server, "/v2/batch", {}, batch(1000, {"Upstash-Cron": f"CRON_TZ=America/New_York {SELDOM}"})) == 200
    assert meanwhile.answers >= 5
    assert post(server, f"/v2/publish/{URL}", {"Upstash-Cron": "nonsense"}, b"x") == 200


@pytest.mark.slow
def test_SEC_3_the_worst_batch_lets_others_be_served(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of the longest retry expressions in each of a thousand messages. Others are served while these are read,
    not only when the batch waits for the database."""
    item = PublishEndpoints._item

    def noted(
        publishing: PublishEndpoints, request: Request, number: int, given: BatchItem, *, is_trigger: bool
    ) -> CheckedRequest:
        served.append(meanwhile.answers)
        return item(publishing, request, number, given, is_trigger=is_trigger)

    served: list[int] = []
    monkeypatch.setattr(PublishEndpoints, "_item", noted)
    costly = {
        "Upstash-Retry-Delay": LONG_DELAY,
        "Upstash-Callback": URL,
        "Upstash-Callback-Retry-Delay": LONG_DELAY,
        "Upstash-Failure-Callback": URL,
        "Upstash-Failure-Callback-Retry-Delay": LONG_DELAY,
        "Upstash-Redact-Fields": "body," * 2000,
    }
    meanwhile = Meanwhile(server)
    with meanwhile.counting():
        assert post(server, "/v2/batch", {}, batch(1000, costly)) == 200
    assert len(served) == 1000
    assert served[-1] - served[0] >= 20


JSON: list[tuple[str, Callable[[], bytes], int]] = [
    ("a million headers", lambda: _nested(b",".join(b'"%x":""' % n for n in range(1_000_000))), 413),
    ("a million messages", lambda: b"[" + b",".join([b'{"destination":"a"}'] * 800_000) + b"]", 413),
    ("texts that end in a backslash", lambda: _nested(b",".join(rb'"%x\\":"\\"' % n for n in range(900_000))), 413),
    ("a destination without end", lambda: json.dumps([{"destination": "https%3a" + "%41" * 1_000_000}]).encode(), 422),
    ("more headers than a request has", lambda: _nested(b",".join(b'"%x":""' % n for n in range(300))), 422),
    ("depth", lambda: b"[" * 1_000_000, 422),
    ("a long number", lambda: b'[{"destination":' + b"9" * 1_000_000 + b"}]", 422),
]


def _nested(headers: bytes) -> bytes:
    return b'[{"destination":"' + URL.encode() + b'","headers":{' + headers + b"}}]"


@pytest.mark.parametrize(("made", "status"), [case[1:] for case in JSON], ids=[case[0] for case in JSON])
def test_SEC_3_json_that_only_costs_is_refused(server: Server, made: Callable[[], bytes], status: int) -> None:
    meanwhile = Meanwhile(server)
    body = made()
    with meanwhile.counting():
        assert post(server, "/v2/batch", {}, body) == status
    assert meanwhile.answers >= 1


def test_SEC_3_schedules_and_filters_let_others_be_served(server: Server) -> None:
    """Each of them ten times: what they cost does not add up to silence."""
    meanwhile = Meanwhile(server)
    names = "&".join(f"label={n}" for n in range(1200))
    bearer = {"Authorization": f"Bearer {server.token('read')}"}
    with meanwhile.counting():
        for expression in (NEVER, SELDOM) * 10:
            headers = {"Upstash-Cron": f"CRON_TZ=America/New_York {expression}"}
            assert post(server, f"/v2/schedules/{URL}", headers, b"") == (422 if expression == NEVER else 200)
        with RawConnection(server.port) as connection:
            for path in ("dlq", "events", "logs") * 10:
                connection.send(request("GET", f"/v2/{path}?{names}", bearer))
                assert connection.answer().status == 200
    assert meanwhile.answers >= 20


# --------------------------------------------------------------------------------- what parsers cost


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called by `work`, which may refuse its text."""
    calls = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        with suppress(InvalidMessage, InvalidSetting):
            work()
    finally:
        sys.setprofile(before)
    return calls


FIELDS = [
    st.sampled_from(["*", "0", "59", "58,59", "*/58", "*/7"]),
    st.sampled_from(["*", "0", "59", "58,59", "*/59"]),
    st.sampled_from(["*", "23", "22,23", "*/23", "2"]),
    st.sampled_from(["29", "*/29", "30", "*/30", "L", "LW", "28-29/1", "*", "31"]),
    st.sampled_from(["2", "2,4", "*/11", "1", "*", "3"]),
    st.sampled_from(["*", "*/7", "SUN#5", "1L", "MON#5", "*/6", "SUN#2"]),
]


@given(
    st.tuples(*FIELDS).map(" ".join), st.sampled_from(["UTC", "America/New_York", "Africa/Casablanca", "Asia/Tehran"])
)
def test_SEC_3_a_cron_expression_costs_no_more_than_so_many_calls(expression: str, zone: str) -> None:
    """Once it took 87,000."""
    assert calls_of(lambda: cron(expression, zone)) < 12_000


@pytest.mark.parametrize("expression", [NEVER, SELDOM, "58,59 59 * 30 2 MON#5", "0 * */23 31 2 MON#5"])
def test_SEC_3_the_worst_of_them(expression: str) -> None:
    assert calls_of(lambda: cron(expression, "America/New_York")) < 12_000


def test_SEC_3_the_next_slot_is_the_same_however_far_it_is() -> None:
    """A slot that is many turns of the clock away is found by its wall clock."""
    slot = next_after(Cron("*/30 * 29 2 */7", "America/New_York"), EPOCH)
    assert slot.isoformat() == "1976-02-29T05:00:00+00:00"
    slot = next_after(Cron("*/30 0 * 2 MON#5", "Australia/Sydney"), EPOCH)
    assert slot.isoformat() == "1988-02-28T13:00:00+00:00"


def test_SEC_3_the_other_parsers_have_bounds_too() -> None:
    assert calls_of(lambda: parse(LONG_DELAY)) < 8_000
    assert calls_of(lambda: parse("1" * 1_000_000)) < 100
    assert calls_of(lambda: address("https%3a%2f%2f" + "%41" * 1_000_000)) < 100
    assert calls_of(lambda: collect_fields((str(n), "x") for n in range(1_000_000))) < 8_000

"""SEC-9: a receiver cannot starve a worker: what comes before, around and after an answer is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from tests.destinations.http.conftest import KEYS, outgoing, send, settings
from tests.destinations.http.receiving import Received, Receiver, Reply, answer, raw, receiving
from tests.support.crew import Crew, until
from tests.support.requesting import Requesting
from tests.support.world import World
from todoku.core.http_request import SCHEMES
from todoku.core.outcome import Done, Outcome, Retry
from todoku.destinations.aiohttp_protocol import MAX_ANNOUNCED, MAX_HEAD_BYTES
from todoku.destinations.http_sender import Requests

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HINT = b"HTTP/1.1 103 Early Hints\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
UNENDING = 3600.0
"""Seconds: no deadline ends what a bound must end."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


def reason(outcome: Outcome) -> str:
    assert isinstance(outcome, Retry), outcome
    return outcome.reason


def test_SEC_9_an_answer_may_be_announced_ten_times(receiver: Receiver) -> None:
    receiver.reply = raw(HINT * MAX_ANNOUNCED + OK)
    assert send(outgoing(receiver.url)) == [Done()]
    receiver.reply = raw(HINT * (MAX_ANNOUNCED + 1) + OK)
    (outcome,) = send(outgoing(receiver.url))
    assert reason(outcome) == "HTTP_BAD_ANSWER"


HOSTILE: list[tuple[str, Reply]] = [
    ("1xx without end", raw(b"", again=HINT * 2000)),
    ("1xx with long headers", raw(b"", again=b"HTTP/1.1 100 C\r\nX: " + b"a" * 8000 + b"\r\n\r\n")),
    (
        "a head of long lines",
        raw(b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: %b\r\n" % (n, b"a" * 8000) for n in range(20))),
    ),
    ("headers without end", raw(b"HTTP/1.1 200 OK\r\n", again=b"X: 1\r\n" * 1000)),
    ("a status line without end", raw(b"HTTP/1.1 200 ", again=b"a" * 10_000)),
    ("a name without end", raw(b"HTTP/1.1 200 OK\r\n", again=b"a" * 10_000)),
    ("an extension of a chunk without end", raw(CHUNKED + b"1;", again=b"a" * 100_000)),
    ("trailers without end", raw(CHUNKED + b"1\r\na\r\n0\r\n", again=b"X: 1\r\n" * 1000)),
    ("a trailer without end", raw(CHUNKED + b"1\r\na\r\n0\r\nX: ", again=b"a" * 10_000)),
]


@pytest.mark.parametrize("reply", [reply for _, reply in HOSTILE], ids=[name for name, _ in HOSTILE])
def test_SEC_9_what_has_no_end_is_cut_off_by_its_size(receiver: Receiver, reply: Reply) -> None:
    """By no deadline. And the other requests of the same loop are answered while it lasts."""

    async def replies(request: Received, writer: asyncio.StreamWriter) -> None:
        await (reply if request.target == "/hostile" else answer(200))(request, writer)

    receiver.reply = replies

    async def run() -> tuple[Outcome, list[Outcome]]:
        requests = Requests(settings(http_timeout_sec=UNENDING), lambda: KEYS)
        try:
            hostile = asyncio.create_task(requests.send([outgoing(f"{receiver.url}/hostile", timeout=UNENDING)]))
            others = [(await requests.send([outgoing(f"{receiver.url}/{n}")]))[0] for n in range(20)]
            return (await hostile)[0], others
        finally:
            await requests.aclose()

    outcome, others = asyncio.run(run())
    assert reason(outcome) == "HTTP_BAD_ANSWER"
    assert others == [Done()] * 20
    until(lambda: receiver.closed >= 1, what="the end of the connection")


def test_SEC_9_a_head_may_be_as_large_as_the_bound(receiver: Receiver) -> None:
    lines = b"".join(b"X-%d: %b\r\n" % (n, b"a" * 8000) for n in range(MAX_HEAD_BYTES // 8192))
    receiver.reply = raw(b"HTTP/1.1 200 OK\r\n" + lines + b"Content-Length: 200000\r\n\r\n" + b"x" * 200_000)
    assert send(outgoing(receiver.url)) == [Done()]


def test_SEC_9_a_body_in_small_chunks_is_a_body(receiver: Receiver) -> None:
    receiver.reply = raw(CHUNKED + b"1;a=b\r\nx\r\n" * 64_000 + b"0\r\nX-Trailer: 1\r\n\r\n")
    assert send(outgoing(receiver.url)) == [Done()]


def test_SEC_9_bytes_without_a_request_are_not_read(receiver: Receiver) -> None:
    """Behind an answer, on a connection that is kept for the next request."""
    written = 0

    async def replies(_request: Received, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        while True:
            await asyncio.sleep(0.01)
            writer.write(HINT * 2000)
            written += len(HINT) * 2000
            await writer.drain()

    receiver.reply = replies

    async def run() -> Outcome:
        requests = Requests(settings(), lambda: KEYS)
        try:
            (outcome,) = await requests.send([outgoing(receiver.url)])
            while not receiver.closed:  # noqa: ASYNC110 - it is another thread that counts
                await asyncio.sleep(0.01)
            return outcome
        finally:
            await requests.aclose()

    assert asyncio.run(run()) == Done()
    assert written < 4 << 20


def test_SEC_9_a_worker_delivers_to_others_meanwhile(
    world: World, crew: Crew, receiver: Receiver, request: pytest.FixtureRequest
) -> None:
    """The whole line, on each store: 1xx for ever is one failed attempt, and everything else arrives."""

    async def replies(asked: Received, writer: asyncio.StreamWriter) -> None:
        await (raw(b"", again=HINT * 2000) if asked.target == "/hostile" else answer(200))(asked, writer)

    receiver.reply = replies
    http = Requesting(world)
    hostile = http.post(f"{receiver.url}/hostile", retries=0)
    for number in range(30):
        http.post(f"{receiver.url}/{number}")
    sender = Requests(settings(http_timeout_sec=UNENDING), lambda: KEYS)
    for name in SCHEMES:
        crew.sends(sender, name=name, queue="http", batch=1, at_once=8)
    crew.drain()
    (dead,) = world.deliveries()
    assert (dead.message_id, dead.reason) == (hostile, "HTTP_BAD_ANSWER")
    assert len({asked.target for asked in receiver.received}) == 31

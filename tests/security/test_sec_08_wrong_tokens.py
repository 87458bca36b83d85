"""SEC-8: however many wrong tokens are tried, right ones pass, also from the same address; failures are counted."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator

import pytest

import todoku
from tests.support.serving import Server
from tests.support.world import World
from todoku.api.auth import AuthFailures
from todoku.core.errors import InvalidSetting
from todoku.core.proxies import proxies
from todoku.core.settings import read_settings
from todoku.engine.http.api_tokens import UNKNOWN, TokenChecker
from todoku.engine.observability.log import LOGGER
from todoku.engine.observability.metrics import Metrics

PATH = "/api/v1/queues"


@pytest.fixture
def box(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[todoku.App]:
    monkeypatch.setenv("TODOKU_TRUSTED_PROXIES", "127.0.0.1")
    box = todoku.App(world.url)
    yield box
    box.close()


async def status(server: Server, token: str, *, caller: str | None = None) -> int:
    """What a request with this token is answered with, on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = [f"GET {PATH} HTTP/1.1", "Host: a", "Connection: close", f"Authorization: Bearer {token}"]
    headers += [] if caller is None else [f"X-Forwarded-For: {caller}"]
    writer.write("\r\n".join([*headers, "", ""]).encode())
    found = int((await reader.read()).split(b" ", 2)[1])
    writer.close()
    return found


def test_right_tokens_pass_among_any_number_of_wrong_ones(server: Server) -> None:
    """The right ones were never used before, so they are not in the cache."""
    right = [server.token("read", name=f"right {n}") for n in range(5)]

    async def flood() -> tuple[list[int], list[int]]:
        limit = asyncio.Semaphore(50)

        async def one(token: str) -> int:
            async with limit:
                return await status(server, token)

        wrong = [one(f"todoku_{n:08x}_wrong") for n in range(400)]
        mixed = [*wrong[:200], *(one(token) for token in right), *wrong[200:]]
        found = await asyncio.gather(*mixed)
        return list(found[:200] + found[205:]), list(found[200:205])

    wrong, passed = asyncio.run(flood())
    assert passed == [200] * 5
    counted = Counter(wrong)
    assert set(counted) == {401, 429}
    assert counted[401] >= 20
    assert counted[429] >= 100
    assert [asyncio.run(status(server, token)) for token in (*right, server.token("read"))] == [200] * 6


def test_wrong_tokens_do_not_push_right_ones_out_of_memory(box: todoku.App, server: Server) -> None:
    known = TokenChecker(box.store, box.settings)
    text = server.token("read")
    assert known.check(text) is not None
    for n in range(UNKNOWN + 10):
        known._unknown[str(n)] = True
    assert known.check("wrong") is None
    assert known.recall(text)[0]
    assert known.recall("wrong")[0], "who repeats a wrong token costs no query"
    assert len(known._unknown) == UNKNOWN


def test_a_wrong_token_that_is_repeated_is_looked_up_once(
    box: todoku.App, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    by_hash = box.store.tokens.by_hash

    def counting(hash: str) -> object:
        looked_up.append(hash)
        return by_hash(hash)

    monkeypatch.setattr(box.store.tokens, "by_hash", counting)

    async def many() -> list[int]:
        return await asyncio.gather(*(status(server, "the-same-wrong-token") for _ in range(40)))

    assert set(asyncio.run(many())) == {401, 429}
    assert len(looked_up) <= 4, "those that ask at the same time wait for the first of them"


def test_behind_a_proxy_each_caller_is_counted_by_itself(server: Server) -> None:
    async def tried(name: str, caller: str, number: int) -> Counter[int]:
        return Counter(await asyncio.gather(*(status(server, f"{name}-{n}", caller=caller) for n in range(number))))

    async def all_of_them() -> tuple[Counter[int], ...]:
        return (
            await tried("guess", "198.51.100.7, 203.0.113.9", 60),
            await tried("once", "203.0.113.9, 198.51.100.7", 15),
            await tried("spoofed", "198.51.100.99, 203.0.113.9", 15),
        )

    guesser, other, spoofed = asyncio.run(all_of_them())
    assert guesser[401] >= 20
    assert guesser[429] > 0
    assert other == {401: 15}, "another caller"
    assert spoofed[429] > 0, "what stands in front of the proxy's own entry is the caller's invention"


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("10.0.0.5", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.5", ["6.6.6.6, 192.0.2.1"], "192.0.2.1"),
        ("10.0.0.5", ["6.6.6.6", "192.0.2.1, 10.1.2.3"], "192.0.2.1"),
        ("::ffff:10.0.0.5", ["192.0.2.1:4711"], "192.0.2.1"),
        ("10.0.0.5", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.5", ["unknown"], "10.0.0.5"),
        ("10.0.0.5", [], "10.0.0.5"),
        ("192.0.2.99", ["6.6.6.6"], "192.0.2.99"),
        ("", ["6.6.6.6"], ""),
    ],
)
def test_the_caller_is_the_first_that_no_trusted_proxy_is(peer: str, forwarded: list[str], caller: str) -> None:
    assert proxies(["10.0.0.5", "10.1.0.0/16"]).caller(peer, forwarded) == caller
    assert proxies([]).caller(peer, forwarded) == peer


def test_a_proxy_that_is_none_is_refused_at_start() -> None:
    with pytest.raises(InvalidSetting, match="trusted_proxies"):
        read_settings({"TODOKU_TRUSTED_PROXIES": "10.0.0.0/8,the-proxy"})


def test_failures_are_counted_by_their_answer(box: todoku.App, server: Server) -> None:
    publishing = server.token("publish")
    for token in [*(f"wrong-{n}" for n in range(25)), publishing]:
        asyncio.run(status(server, token))
    server.client().get(PATH)
    lines = box.telemetry.render().decode().splitlines()
    counted = {line.split()[0]: float(line.split()[1]) for line in lines if line.startswith("api_auth_failures_total")}
    assert counted['api_auth_failures_total{status="403"}'] == 1
    assert counted['api_auth_failures_total{status="401"}'] >= 21
    assert sum(counted.values()) == 27


class Heard(logging.Handler):
    """The lines that were logged, in turn."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.put_nowait(record.getMessage())


async def test_failures_are_logged_by_the_batch() -> None:
    """A flood of wrong tokens is not a flood of lines."""
    heard = Heard()
    LOGGER.addHandler(heard)
    try:
        noted = AuthFailures(Metrics(), every=0.0)
        for address, number in (("10.0.0.1", 500), ("10.0.0.2", 3)):
            for n in range(number):
                noted.note(401 if n < 20 else 429, address)
        first = await asyncio.wait_for(heard.lines.get(), 60)
        noted.note(401, "10.0.0.3")
        second = await asyncio.wait_for(heard.lines.get(), 60)
    finally:
        LOGGER.removeHandler(heard)
    for word in ("AUTH_FAILED", "number=503", "addresses=2", "most_from=10.0.0.1", "most_number=500"):
        assert word in first
    assert "number=1" in second
    assert heard.lines.empty()

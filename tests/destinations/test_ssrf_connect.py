"""Whatever a URL, a name server or a receiver says: nothing connects to where it may not (webhooks.md §3).

127.0.0.2 plays the internet here: it is the only address that is allowed. On 127.0.0.1 and ::1 a canary listens, on the
same port, and must never hear of anybody.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.core.test_ssrf import FORBIDDEN
from tests.support.ports import free_port
from todoku.core.destination import Outgoing
from todoku.core.http_request import HTTP, HttpRequest, encode_request
from todoku.core.outcome import Abort, Done, Outcome, Retry
from todoku.core.settings import Settings
from todoku.core.signature import SigningKeys
from todoku.destinations.http_sender import Requests

KEYS = SigningKeys(current="sig_" + "c" * 28, next="sig_" + "n" * 28)
INTERNET, HERE = "127.0.0.2", "127.0.0.1"
REFUSED = "SSRF_REFUSED"


class Canary:
    """Counts connections on 127.0.0.1 and ::1."""

    def __init__(self, port: int) -> None:
        self.connections = 0
        self._listening = [_listening(socket.AF_INET, HERE, port)]
        if socket.has_ipv6:
            with suppress(OSError):  # a machine without IPv6
                self._listening.append(_listening(socket.AF_INET6, "::1", port))
        self.families = {each.family for each in self._listening}
        for each in self._listening:
            threading.Thread(target=self._count, args=(each,), daemon=True).start()

    def _count(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            self.connections += 1
            connection.close()

    def close(self) -> None:
        for each in self._listening:
            each.shutdown(socket.SHUT_RDWR)
            each.close()


def _listening(family: int, address: str, port: int) -> socket.socket:
    made = socket.socket(family)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.listen(64)
    return made


class Internet(ThreadingHTTPServer):
    """A receiver on the internet: answers 200, or `answer`, and keeps the Host of each request."""

    daemon_threads = True

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.answer: tuple[int, dict[str, str]] = (200, {})
        super().__init__((INTERNET, free_port(INTERNET, HERE)), _Answering)


class _Answering(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Internet

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.hosts.append(self.headers["host"])
        status, headers = self.server.answer
        self.send_response(status)
        for name, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def internet() -> Iterator[Internet]:
    with Internet() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def canary(internet: Internet) -> Iterator[Canary]:
    canary = Canary(internet.server_port)
    yield canary
    canary.close()
    assert canary.connections == 0, "something connected to this machine"


def test_the_canary_hears_what_connects(internet: Internet) -> None:
    """Otherwise every test below would be worth nothing."""
    canary = Canary(internet.server_port)
    for family, address in ((socket.AF_INET, HERE), (socket.AF_INET6, "::1")):
        if family in canary.families:
            with socket.create_connection((address, internet.server_port)) as connection:
                assert connection.recv(1) == b""
    assert canary.connections == len(canary.families)
    canary.close()


class Names:
    """A name server that answers as it is told, and counts the questions. Addresses are what they are."""

    def __init__(self, answers: Callable[[int], Sequence[str]]) -> None:
        self.asked = 0
        self._answers = answers
        self._real = socket.getaddrinfo

    def __call__(self, host: str, port: int, *args: Any, **named: Any) -> list[Any]:
        if not host.endswith(".test"):
            return self._real(host, port, *args, **named)
        found = self._answers(self.asked)
        self.asked += 1
        return [one for address in found for one in self._real(address, port, type=socket.SOCK_STREAM)]


def names(monkeypatch: pytest.MonkeyPatch, answers: Callable[[int], Sequence[str]]) -> Names:
    server = Names(answers)
    monkeypatch.setattr(socket, "getaddrinfo", server)
    return server


async def sent(url: str, *, allow: tuple[str, ...] = (INTERNET,), sender: Requests | None = None) -> Outcome:
    """What becomes of one attempt to send to this very URL, by a sender that knows nothing yet."""
    ours = sender is None
    sender = sender or Requests(Settings(http_allow=allow, http_timeout_sec=20.0), lambda: KEYS)
    message = Outgoing(
        message_id="m1", idempotency_key="m1", topic="http.request", key=None, payload=b"x", content_type="text/plain",
        headers={HTTP: encode_request(HttpRequest(url=url))}, attempt=1, created_at=0.0,
    )  # fmt: skip
    try:
        (outcome,) = await sender.send([message])
    finally:
        if ours:
            await sender.aclose()
    return outcome


def reason(outcome: Outcome) -> str | None:
    return outcome.reason if isinstance(outcome, Abort) else None


# ------------------------------------------------------------------------------------------------ addresses


async def test_no_address_of_the_table_is_connected_to(internet: Internet, canary: Canary) -> None:
    sender = Requests(Settings(), lambda: KEYS)
    for address in FORBIDDEN:
        host = f"[{address}]" if ":" in address else address
        assert reason(await sent(f"http://{host}:{internet.server_port}/", sender=sender)) == REFUSED, address
    await sender.aclose()


@pytest.mark.parametrize(
    "host",
    [
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "0",
        "localhost",
        "LOCALHOST",
    ],
)
async def test_nor_is_a_spelling_that_only_the_system_reads(internet: Internet, canary: Canary, host: str) -> None:
    """Such a URL is refused when it is published; here it got into the database all the same."""
    outcome = await sent(f"http://{host}:{internet.server_port}/")
    assert reason(outcome) == REFUSED


async def test_the_way_to_the_internet_is_open(internet: Internet, canary: Canary) -> None:
    assert isinstance(await sent(f"http://{INTERNET}:{internet.server_port}/"), Done)
    assert internet.hosts == [f"{INTERNET}:{internet.server_port}"]


# ------------------------------------------------------------------------------------------------ names


@pytest.mark.parametrize("bad", [HERE, "::1", "169.254.169.254", "10.0.0.1", "0.0.0.0", "::ffff:127.0.0.1", "fe80::1"])
@pytest.mark.parametrize("place", ["alone", "first", "last"])
async def test_a_name_with_one_forbidden_address_leads_nowhere(
    internet: Internet, canary: Canary, monkeypatch: pytest.MonkeyPatch, bad: str, place: str
) -> None:
    answer = {"alone": [bad], "first": [bad, INTERNET], "last": [INTERNET, bad]}[place]
    names(monkeypatch, lambda _: answer)
    assert reason(await sent(f"http://evil.test:{internet.server_port}/")) == REFUSED
    assert internet.hosts == []


async def test_a_name_that_changes_its_answer_is_connected_to_where_it_was_looked_at(
    internet: Internet, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rebinding: good when it is checked, this machine from then on. There is one look-up, and no other."""
    asked = names(monkeypatch, lambda number: [INTERNET] if number == 0 else [HERE])
    assert isinstance(await sent(f"http://evil.test:{internet.server_port}/"), Done)
    assert asked.asked == 1
    assert internet.hosts == [f"evil.test:{internet.server_port}"], (
        "the name is asked for, at the address that was judged"
    )


async def test_a_name_that_changes_its_answer_all_the_time_never_leads_here(
    internet: Internet, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = itertools.cycle([[INTERNET], [HERE], [INTERNET, HERE], ["::1"]])
    names(monkeypatch, lambda _: next(turns))
    outcomes = [await sent(f"http://evil.test:{internet.server_port}/") for _ in range(24)]
    assert [type(one) for one in outcomes] == [Done, Abort, Abort, Abort] * 6
    assert {reason(one) for one in outcomes} == {None, REFUSED}


async def test_a_connection_that_is_kept_is_not_lent_to_another_name(
    internet: Internet, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name is allowed although it is private, and its connection is kept; another at the same address is not."""
    names(monkeypatch, lambda _: [INTERNET])
    sender = Requests(Settings(http_allow=("good.test",)), lambda: KEYS)
    url = f"http://{{}}:{internet.server_port}/"
    assert isinstance(await sent(url.format("good.test"), sender=sender), Done)
    assert reason(await sent(url.format("evil.test"), sender=sender)) == REFUSED
    assert reason(await sent(url.format(INTERNET), sender=sender)) == REFUSED
    assert isinstance(await sent(url.format("good.test"), sender=sender), Done)
    await sender.aclose()
    assert len(internet.hosts) == 2


async def test_metadata_is_closed_to_allowed_names_too(
    internet: Internet, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    for bad in ("169.254.169.254", "::ffff:169.254.169.254", "fd00:ec2::254", "0.0.0.0"):
        names(monkeypatch, lambda _, bad=bad: [bad])
        outcome = await sent(f"http://good.test:{internet.server_port}/", allow=("good.test", "0.0.0.0/0", "::/0"))
        assert reason(outcome) == REFUSED, bad


# ------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
async def test_a_redirect_is_not_followed(internet: Internet, canary: Canary, status: int) -> None:
    """3xx is a failure, wherever it leads."""
    here = f"http://{HERE}:{internet.server_port}/"
    for place in (here, f"//{HERE}:{internet.server_port}/", "/again", f"http://localhost:{internet.server_port}/"):
        internet.answer = (status, {"Location": place, "Refresh": f"0; url={here}", "Alt-Svc": f'h2="{HERE}:1"'})
        outcome = await sent(f"http://{INTERNET}:{internet.server_port}/")
        assert isinstance(outcome, Retry | Abort)
    assert len(internet.hosts) == 4, "one request for each attempt"


# ------------------------------------------------------------------------------------------------ surroundings


async def test_no_proxy_of_the_environment_is_used(
    internet: Internet, canary: Canary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one, the proxy would connect, and nobody would judge where to."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.setenv(name, f"http://{HERE}:{internet.server_port}")
        monkeypatch.setenv(name.lower(), f"http://{HERE}:{internet.server_port}")
    assert isinstance(await sent(f"http://{INTERNET}:{internet.server_port}/"), Done)
    assert len(internet.hosts) == 1

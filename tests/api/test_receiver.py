"""The scripted receiver, as a real server: each path answers what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import pytest

from todoku.api.receiver import Receiver
from todoku.api.request_frame import RequestFrame
from todoku.core.scope import KEYS
from todoku.core.signature import upstash_signature
from todoku.daemon.http_thread import HttpThread, listen, listening_url


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with listen("127.0.0.1", 0) as listening:
        server = HttpThread(lambda: RequestFrame(Receiver((KEYS.current, KEYS.next))), listening)
        server.start()
        with httpx.Client(base_url=listening_url(listening), trust_env=False, timeout=30) as client:
            yield client
        server.stop()


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("status", [200, 201, 204, 302, 400, 404, 410, 429, 500, 503, 599])
def test_a_path_that_is_a_status_answers_it(client: httpx.Client, method: str, status: int) -> None:
    answer = client.request(method, f"/{status}", content=b"" if method in ("GET", "DELETE") else b"x")
    assert answer.status_code == status
    assert "upstash-nonretryable-error" not in answer.headers


def test_404_says_exactly_what_the_official_tests_compare(client: httpx.Client) -> None:
    assert client.post("/404").text == "404 Not Found"


def test_489_says_not_to_try_again(client: httpx.Client) -> None:
    answer = client.post("/489")
    assert (answer.status_code, answer.headers["upstash-nonretryable-error"]) == (489, "true")


def test_it_waits_before_it_answers(client: httpx.Client) -> None:
    began = time.monotonic()
    assert client.post("/slow?ms=150").status_code == 200
    assert client.post("/503?sleep=150").status_code == 503
    assert time.monotonic() - began >= 0.3
    with pytest.raises(httpx.ReadTimeout):
        client.post("/hang", timeout=httpx.Timeout(60, read=0.3))


def test_flaky_fails_so_often_for_each_message(client: httpx.Client) -> None:
    for message in ("m1", "m2"):
        headers = {"Upstash-Message-Id": message}
        answers = [client.post("/flaky?times=2", headers=headers).status_code for _ in range(4)]
        assert answers == [500, 500, 200, 200]


def test_busy_says_when_to_come_back(client: httpx.Client) -> None:
    answer = client.post("/busy?after=7")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")


def test_redirect_leads_elsewhere(client: httpx.Client) -> None:
    answer = client.post("/redirect")
    assert (answer.status_code, answer.headers["location"]) == (302, "/200")


def test_echo_says_what_came(client: httpx.Client) -> None:
    told = client.put("/echo", content="届く".encode(), headers={"x-my-own": "1"}).json()
    assert (told["method"], told["body"], told["headers"]["X-My-Own"]) == ("PUT", "届く", "1")


def test_received_tells_what_came_and_whether_it_was_signed(client: httpx.Client) -> None:
    def sent(body: bytes, key: str) -> None:
        token = upstash_signature("https://any.example/", b"right", key=key, now=time.time(), jti="1")
        client.post("/200?a=b", content=body, headers={"Upstash-Signature": token, "Upstash-Retried": "2"})

    sent(b"right", KEYS.current)
    sent(b"right", KEYS.next)
    sent(b"right", "sig_" + "x" * 28)
    sent(b"wrong", KEYS.current)
    told = client.get("/received").json()[-4:]
    assert [one["signed"] for one in told] == [True, True, False, False]
    assert {(one["method"], one["path"], one["retried"], one["size"]) for one in told} == {("POST", "/200?a=b", "2", 5)}


@pytest.mark.parametrize("path", ["/nothing", "/100", "/600", "/99999", "/٢٠٠"])
def test_what_is_not_scripted_is_not_there(client: httpx.Client, path: str) -> None:
    assert client.post(path).status_code == 404
    assert "/flaky" in client.get("/").text


@pytest.mark.parametrize(
    "path", ["/slow?ms=x", "/slow?ms=-1", "/200?sleep=9999999", "/flaky?times=1e3", "/busy?after=٣"]
)
def test_a_number_that_is_none_is_refused(client: httpx.Client, path: str) -> None:
    assert client.post(path).status_code == 400

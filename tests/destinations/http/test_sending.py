"""What a receiver is sent (webhooks.md §2.4), and that it can tell who sent it."""

from __future__ import annotations

import base64
import hashlib
import json
import os

import jwt
import pytest
from qstash import Receiver as Official
from standardwebhooks import Webhook

from tests.destinations.http.conftest import KEYS, MESSAGE, outgoing, send
from tests.destinations.http.receiving import Receiver, answer, receiving
from todoku.core.outcome import Abort, Done
from todoku.core.signature import webhook_secret

TRACE = {
    "traceparent": "00-11111111111111111111111111111111-2222222222222222-01",
    "sentry-trace": "11111111111111111111111111111111-2222222222222222-1",
    "baggage": "sentry-release=1",
    "x-correlation-id": "req-1",
    "x-event-id": "evt_1",
    "other": "private",
}


def test_a_request_arrives_as_it_was_published(receiver: Receiver) -> None:
    """§2.4: the body unchanged, the URL byte for byte, forwarded headers, and ours."""
    body = bytes(range(256))
    headers = {"Content-Type": "text/x-odd; charset=latin-1", "Authorization": "Bearer s", "X-Own": "1"}
    message = outgoing(
        f"{receiver.url}/a%2Fb//c/../d?x=%20&y=a+b", body, method="PUT", headers=headers, attempt=3, trace=TRACE,
        group="team", schedule="nightly", caller_ip="203.0.113.9",
    )  # fmt: skip
    assert send(message) == [Done()]
    (request,) = receiver.received
    assert (request.method, request.target, request.body) == ("PUT", "/a%2Fb//c/../d?x=%20&y=a+b", body)
    wanted = headers | {
        "Host": f"127.0.0.1:{receiver.port}",
        "User-Agent": "todoku",
        "Accept-Encoding": "identity",
        "Upstash-Message-Id": MESSAGE,
        "Upstash-Retried": "2",
        "Upstash-Topic-Name": "team",
        "Upstash-Schedule-Id": "nightly",
        "Upstash-Caller-Ip": "203.0.113.9",
        "X-Request-Id": "req-1",
        "X-Event-Id": "evt_1",
        "traceparent": TRACE["traceparent"],
        "sentry-trace": TRACE["sentry-trace"],
        "baggage": TRACE["baggage"],
        "webhook-id": MESSAGE,
    }
    assert {name: request.value(name) for name in wanted} == wanted
    assert not request.values("other")
    assert not request.values("todoku-http")


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff\x00 not text"])
def test_a_receiver_with_the_official_client_believes_it(receiver: Receiver, body: bytes) -> None:
    """S4: `Upstash-Signature`, verified by the client's own code, for exactly this URL and body."""
    url = f"{receiver.url}/hook?a=b"
    send(outgoing(url, body))
    token = receiver.received[0].value("Upstash-Signature")
    claims = jwt.decode(token, KEYS.current, algorithms=["HS256"], issuer="Upstash")
    assert claims["sub"] == url
    assert claims["body"].rstrip("=") == base64.urlsafe_b64encode(hashlib.sha256(body).digest()).decode().rstrip("=")
    if body.isascii():
        Official(KEYS.current, KEYS.next).verify(signature=token, body=body.decode(), url=url)
        Official("sig_other", KEYS.current).verify(signature=token, body=body.decode(), url=url)


def test_a_receiver_with_standard_webhooks_believes_it_with_either_key(receiver: Receiver) -> None:
    send(outgoing(f"{receiver.url}/", b'{"a": 1}'))
    (request,) = receiver.received
    for key in (KEYS.current, KEYS.next):
        assert Webhook(webhook_secret(key)).verify(request.body, dict(request.headers)) == {"a": 1}


def test_each_attempt_is_signed_anew(receiver: Receiver) -> None:
    """Another token for each, so that none of them is older than its attempt."""
    send(outgoing(receiver.url), outgoing(receiver.url, attempt=2))
    tokens = [request.value("Upstash-Signature") for request in receiver.received]
    jtis = {jwt.decode(token, KEYS.current, algorithms=["HS256"])["jti"] for token in tokens}
    assert len(jtis) == 2
    assert [request.value("Upstash-Retried") for request in receiver.received] == ["0", "1"]


@pytest.mark.parametrize(
    "name", ["Host", "Content-Length", "Transfer-Encoding", "Connection", "Upstash-Signature", "Webhook-Id", "Proxy-X"]
)
def test_nobody_forwards_what_belongs_to_the_connection_or_to_us(receiver: Receiver, name: str) -> None:
    """§3: even if such a header was stored, the receiver sees ours only."""
    send(outgoing(receiver.url, b"abc", headers={name: "forged"}))
    (request,) = receiver.received
    assert "forged" not in dict(request.headers).values()
    assert request.body == b"abc"


@pytest.mark.parametrize("value", ["a\r\nX-Injected: 1", "a\nb", "a\0b"])
def test_a_header_with_a_line_break_sends_nothing(receiver: Receiver, value: str) -> None:
    """§3: refused when published; and if it was stored all the same, nothing goes out."""
    (outcome,) = send(outgoing(receiver.url, headers={"X-Own": value}))
    assert isinstance(outcome, Abort)
    assert outcome.reason == "BAD_REQUEST"
    assert not receiver.received


def test_connections_are_used_again_and_cookies_are_not(receiver: Receiver) -> None:
    receiver.reply = answer(200, b"ok", set_cookie="a=b; Path=/")
    assert send(*[outgoing(receiver.url)] * 5) == [Done()] * 5
    assert receiver.connections == 1
    assert not any(request.values("Cookie") for request in receiver.received)


def test_a_proxy_of_the_environment_is_not_asked(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """§3: a proxy would resolve the name for us, where nobody judges the address."""
    with receiving() as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setitem(os.environ, name, proxy.url)
        assert send(outgoing(receiver.url)) == [Done()]
        assert not proxy.connections


def test_a_rewritten_origin_is_asked_as_if_it_were_itself(receiver: Receiver) -> None:
    """For development without the internet: only the connection goes elsewhere."""
    url = "https://shop.example/hook?x=1"
    rewrite = (f"https://shop.example={receiver.url}",)
    assert send(outgoing(url), http_loopback=False, http_rewrite=rewrite) == [Done()]
    (request,) = receiver.received
    assert (request.value("Host"), request.target) == ("shop.example", "/hook?x=1")
    assert json.loads(_payload(request.value("Upstash-Signature")))["sub"] == url
    (refused,) = send(outgoing(receiver.url), http_loopback=False, http_rewrite=rewrite)
    assert isinstance(refused, Abort)
    assert refused.reason == "SSRF_REFUSED"


def _payload(token: str) -> bytes:
    part = token.split(".")[1]
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))

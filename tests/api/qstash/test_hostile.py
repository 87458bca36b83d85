"""Hostile and malformed requests: each is refused with a problem that names what is wrong, and nothing is stored."""

from __future__ import annotations

import json
import socket
from datetime import UTC, datetime

import httpx
import pytest

from tests.api.qstash.conftest import TOKEN, Server
from tests.support.serving import PLAIN
from todoku.engine.http import api_tokens
from todoku.store.audit import Signed


def said(server: Server, head: bytes, body: bytes = b"", *, hang_up: bool = True) -> tuple[int, bytes]:
    """Send bytes as they are; (status, everything that came back)."""
    with socket.create_connection(("127.0.0.1", server.daemon.port), timeout=30) as connection:
        connection.sendall(head + body)
        if hang_up:
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        while not _is_whole(answer):
            part = connection.recv(65536)
            if not part:
                break
            answer += part
    return int(answer.split(b" ", 2)[1]) if answer else 0, answer


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(end) and len(body) >= int(length[0] if length else 0)


def stored(server: Server) -> list[object]:
    """What was published to the place where nothing ever is."""
    query = {"url": server.to("/never"), "state": "CREATED"}
    return list(server.raw.get("/v2/events", params=query).json()["events"])


# --------------------------------------------------------------------------------------------------- who


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong-token-0123456789"}, {"Authorization": f"Basic {TOKEN}"},
                {"Authorization": "Bearer"}, {"Authorization": f"Bearer {TOKEN}x"}],
)  # fmt: skip
@pytest.mark.parametrize(
    "request_line", ["POST /v2/publish/https://example.com", "GET /v2/keys", "DELETE /v2/messages"]
)
def test_nobody_without_a_known_token(server: Server, headers: dict[str, str], request_line: str) -> None:
    method, path = request_line.split()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60, verify=PLAIN) as anybody:
        answer = anybody.request(method, path, headers=headers)
    # After many wrong ones the address is told to wait: as good as a refusal, and just as little is done.
    assert answer.status_code in (401, 429)
    assert answer.json()["error"] == answer.json()["detail"]
    assert answer.headers["content-type"] == "application/problem+json"


SCOPES = {
    "publish": {"POST /v2/publish/https://example.com/": 200, "GET /v2/dlq": 403, "DELETE /v2/messages": 403,
                "POST /v2/queues": 403, "GET /v2/keys": 403},
    "read": {"POST /v2/publish/https://example.com/": 403, "POST /v2/batch": 403, "GET /v2/dlq": 200,
             "DELETE /v2/messages": 403, "POST /v2/dlq/retry?count=1": 403, "GET /v2/keys": 403},
    "operate": {"POST /v2/publish/https://example.com/": 403, "GET /v2/events": 200, "GET /v2/keys": 403,
                "DELETE /v2/messages?label=nobody-has-it": 200, "POST /v2/keys/rotate": 403},
}  # fmt: skip


@pytest.mark.parametrize("scope", SCOPES)
def test_a_token_may_do_what_its_scope_says(server: Server, scope: str, name: str) -> None:
    _, text = api_tokens.create(server.box.store, Signed("a test", "to see"), name=name, scopes=[scope])
    with httpx.Client(
        base_url=server.url,
        headers={"Authorization": f"Bearer {text}"},
        trust_env=False,
        timeout=60,
        verify=PLAIN,
    ) as client:
        for line, status in SCOPES[scope].items():
            method, path = line.split()
            answer = client.request(method, path, headers={"Upstash-Delay": "1h", "Upstash-Label": "scopes"})
            assert (line, answer.status_code) == (line, status), answer.text
            if status == 403:
                assert scope in answer.json()["error"]


# -------------------------------------------------------------------------------------------------- what


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("Upstash-Delay", "soon"), ("Upstash-Delay", "-1s"), ("Upstash-Delay", "9999d"), ("Upstash-Timeout", "0s"),
        ("Upstash-Retries", "-1"), ("Upstash-Retries", "many"), ("Upstash-Not-Before", "99999999999999999999"),
        ("Upstash-Retry-Delay", "__import__('os').system('id')"), ("Upstash-Retry-Delay", "pow(" * 200),
        ("Upstash-Method", "CONNECT"), ("Upstash-Callback", "file:///etc/passwd"),
        ("Upstash-Failure-Callback", "http://user:pw@example.com"), ("Upstash-Flow-Control-Value", "rate=1"),
        ("Upstash-Forward-Host", "elsewhere"), ("Upstash-Forward-Transfer-Encoding", "chunked"),
        ("Upstash-Redact-Fields", "all"), ("Upstash-Content-Based-Deduplication", "perhaps"),
    ],
)  # fmt: skip
def test_a_bad_header_is_named_and_nothing_is_stored(
    raw: httpx.Client, server: Server, header: str, value: str
) -> None:
    answer = raw.post(f"/v2/publish/{server.to('/never')}", headers={header: value}, content=b"x")
    assert answer.status_code == 422
    assert header.lower() in answer.json()["error"].lower()
    assert not stored(server)


def test_one_bad_message_refuses_its_batch(raw: httpx.Client, server: Server) -> None:
    good = {"destination": server.to("/never"), "headers": {}, "body": "x"}
    for bad, says in [
        (good | {"headers": {"upstash-delay": "soon"}}, "message 1 of the batch: Upstash-Delay"),
        (good | {"headers": {"upstash-forward-x": "a\r\nHost: b"}}, "message 1 of the batch: the header"),
        (good | {"destination": "nowhere at all"}, "message 1 of the batch: destination"),
        (good | {"queue": "a/b"}, "message 1 of the batch: queue"),
        (good | {"headers": {"upstash-retries": 3}}, "body"),
        (good | {"body": {"an": "object"}}, "body"),
        ({"headers": {}}, "destination"),
        ("text", "body"),
    ]:
        answer = raw.post("/v2/batch", json=[good, bad])
        assert (answer.status_code, says in answer.json()["error"]) == (422, True), answer.text
    for body in (b"", b"{", b"\xff", b"[" * 100_000):
        assert raw.post("/v2/batch", content=body).status_code in (400, 422)
    assert raw.post("/v2/batch", json=[]).json() == []
    assert raw.post("/v2/batch", json=[good] * 1001).status_code == 422
    assert not stored(server)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v2/queues", {"queueName": 7}), ("POST", "/v2/queues", {"queueName": "q", "parallelism": 0}),
        ("POST", "/v2/queues", {"queueName": "q", "parallelism": "many"}), ("POST", "/v2/queues", {"queueName": "a b"}),
        ("POST", "/v2/queues", {}), ("POST", "/v2/queues", []), ("POST", "/v2/topics/g/endpoints", {"endpoints": []}),
        ("POST", "/v2/topics/g/endpoints", {"endpoints": [{"name": "no url"}]}),
        ("POST", "/v2/topics/g/endpoints", {"endpoints": [{"url": "ftp://x"}]}),
        ("POST", "/v2/topics/a b/endpoints", {"endpoints": [{"url": "https://example.com"}]}),
        ("DELETE", "/v2/topics/g/endpoints", {"endpoints": [{"name": "a\0b"}]}),
        ("GET", "/v2/flowControl?search=%00", None), ("GET", "/v2/dlq?label=a%00", None),
        ("DELETE", "/v2/topics/g/endpoints", {"endpoints": []}), ("PATCH", "/v2/topics/g", {"headers": {"a": 1}}),
        ("PATCH", "/v2/topics/g", {"headers": {"a": "b\r\nc: d"}}),
        ("GET", "/v2/dlq?count=0", None), ("GET", "/v2/dlq?cursor=x", None), ("GET", "/v2/dlq?responseStatus=x", None),
        ("GET", "/v2/events?state=NEVER", None), ("GET", "/v2/events?cursor=1.2", None),
        ("GET", "/v2/events?fromDate=99999999999999999", None),
        ("POST", "/v2/schedules/https://example.com", None),
        ("POST", "/v2/flowControl/k/pin?parallelism=0", None), ("POST", "/v2/flowControl/k/unpin?rate=perhaps", None),
    ],
)  # fmt: skip
def test_wrong_types_and_values_are_named(raw: httpx.Client, method: str, path: str, body: object) -> None:
    answer = raw.request(method, path, **({} if body is None else {"json": body}))  # type: ignore[arg-type]
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"]


@pytest.mark.parametrize("cron", ["61 * * * *", "* * * *", "CRON_TZ=Nowhere/X * * * * *", "0 0 30 2 *", "x" * 300])
def test_a_bad_cron_is_named(raw: httpx.Client, cron: str) -> None:
    answer = raw.post("/v2/schedules/https://example.com", headers={"Upstash-Cron": cron})
    assert answer.status_code == 422
    assert "Upstash-Cron" in answer.json()["error"]


def test_unknown_paths_and_methods(raw: httpx.Client) -> None:
    assert raw.get("/v2").status_code == 404
    assert raw.get("/v2/nothing").status_code == 404
    answer = raw.put("/v2/messages/x")
    assert answer.status_code == 405
    assert "DELETE" in answer.headers["allow"]
    assert answer.json()["error"]


# ----------------------------------------------------------------------------------------------- the wire


def _head(server: Server, more: str, *, method: str = "POST", path: str = "") -> bytes:
    path = path or f"/v2/publish/{server.to('/never')}"
    return f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n{more}\r\n".encode("latin-1")


def test_huge_heads_are_refused(server: Server) -> None:
    one = "Upstash-Forward-X: " + "a" * 200_000 + "\r\n"
    many = "".join(f"Upstash-Forward-X{n}: a\r\n" for n in range(5000))
    for more in (one, many):
        status, answer = said(server, _head(server, more), hang_up=False)
        assert status == 431
        assert b'"error"' in answer
    assert said(server, _head(server, "", path="/v2/publish/https://x/" + "a" * 40_000))[0] in (414, 431)
    assert not stored(server)


def test_many_headers_within_the_bounds_of_http_are_refused_by_name(raw: httpx.Client, server: Server) -> None:
    headers = {f"Upstash-Forward-X{n}": "a" for n in range(150)}
    answer = raw.post(f"/v2/publish/{server.to('/never')}", headers=headers)
    assert answer.status_code == 422
    assert "headers" in answer.json()["error"]


@pytest.mark.parametrize("line", ["Upstash-Forward-X: a\rb", "Upstash-Forward-X: a\0b", "Upstash Forward X: a", ": a",
                                  "Upstash-Forward-X: a\n\n\x01: b", "X\r\n\tfolded: a"])  # fmt: skip
def test_line_breaks_and_nul_in_headers_never_pass(server: Server, line: str) -> None:
    status, _ = said(server, _head(server, f"{line}\r\nContent-Length: 0\r\n"))
    assert status in (0, 400, 422)
    assert not stored(server)


def test_a_body_too_large_is_refused_before_and_while_it_is_read(raw: httpx.Client, server: Server) -> None:
    status, answer = said(server, _head(server, "Content-Length: 10000000000\r\n"), hang_up=False)
    assert status == 413
    assert b"larger than" in answer
    endless = (b"x" * 65536 for _ in range(40))  # 2.5 MiB, and nobody says how much it will be
    with httpx.Client(base_url=server.url, headers=raw.headers, trust_env=False, timeout=60, verify=PLAIN) as client:
        answer_ = client.post(f"/v2/publish/{server.to('/never')}", content=endless)
    assert answer_.status_code == 413
    assert not stored(server)


def test_a_packed_body_is_refused(raw: httpx.Client, server: Server) -> None:
    """A gzip bomb is never unpacked."""
    answer = raw.post(f"/v2/publish/{server.to('/never')}", headers={"Content-Encoding": "gzip"}, content=b"\x1f\x8b")
    assert answer.status_code == 415


def test_half_a_body_publishes_nothing(server: Server) -> None:
    status, _ = said(server, _head(server, "Content-Length: 100\r\n"), b"only this")
    assert status in (0, 400)
    assert not stored(server)


def test_two_lengths_are_no_request(server: Server) -> None:
    """Request smuggling: whoever is in front of us may believe the other one."""
    for more in ("Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n"):
        assert said(server, _head(server, more), b"0\r\n\r\n")[0] == 400


def test_what_is_refused_tells_its_request_id(raw: httpx.Client) -> None:
    answer = raw.get("/v2/messages/x", headers={"X-Request-Id": "mine-1"})
    assert (answer.status_code, answer.headers["x-request-id"], answer.json()["request_id"]) == (
        404,
        "mine-1",
        "mine-1",
    )


def test_secrets_are_not_shown_again(raw: httpx.Client, server: Server, path: str) -> None:
    """What is forwarded as Authorization arrives, and is nowhere to be read."""
    secret = f"Bearer secret-{datetime.now(UTC).timestamp()}"
    headers = {"Upstash-Forward-Authorization": secret, "Upstash-Callback": server.to(f"{path}/done"),
               "Upstash-Callback-Forward-Authorization": secret}  # fmt: skip
    id = raw.post(f"/v2/publish/{server.to(path)}", headers=headers).json()["messageId"]
    assert server.receiver.one(path).headers["authorization"] == secret
    assert server.receiver.one(f"{path}/done").headers["authorization"] == secret
    shown = [raw.get(f"/v2/messages/{id}").json(), raw.get("/v2/events", params={"messageId": id}).json()]
    assert secret not in json.dumps(shown)
    assert shown[0]["header"]["Authorization"][0].startswith("REDACTED:")

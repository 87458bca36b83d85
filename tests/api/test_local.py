"""A server whose credentials everybody knows answers this machine's own programs and pages, and nobody else's pages."""

from __future__ import annotations

import httpx
import pytest
from starlette.responses import PlainTextResponse

from todoku.api.local_requests import LocalOnly
from todoku.api.request_frame import RequestFrame
from todoku.core.scope import KEYS, TOKEN, Secret, is_public
from todoku.core.signature import SigningKeys

OTHER = SigningKeys(current="sig_" + "a" * 28, next="sig_" + "b" * 28)


async def status(headers: list[tuple[str, str]]) -> int:
    app = RequestFrame(LocalOnly(PlainTextResponse("here")))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        request = client.build_request("POST", "/v2/publish/x")
        if any(name == "host" for name, _ in headers):
            del request.headers["host"]
        request.headers = httpx.Headers([*request.headers.raw, *((n.encode(), v.encode()) for n, v in headers)])
        return (await client.send(request)).status_code


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([], id="a program"),
        pytest.param([("host", "localhost:8080")], id="by its name"),
        pytest.param([("host", "127.0.0.1")], id="by its address"),
        pytest.param([("host", "[::1]:8080")], id="by its other address"),
        pytest.param([("host", "app.localhost")], id="by a name below"),
        pytest.param([("origin", "http://localhost:3000")], id="a page of this machine"),
        pytest.param([("sec-fetch-site", "same-origin")], id="our own page"),
    ],
)
async def test_this_machine_is_answered(headers: list[tuple[str, str]]) -> None:
    assert await status(headers) == 200


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param([("origin", "https://evil.example")], id="a page from elsewhere"),
        pytest.param([("origin", "null")], id="a page that hides where it is from"),
        pytest.param([("origin", "http://localhost.evil.example")], id="one that looks like ours"),
        pytest.param([("origin", "http://[")], id="one that cannot be read"),
        pytest.param([("sec-fetch-site", "cross-site")], id="a form or an image"),
        pytest.param([("host", "evil.example")], id="a name that was made to point here"),
        pytest.param([("host", "evil.example:8080")], id="with the port"),
        pytest.param([("host", "127.0.0.1.evil.example")], id="that begins like ours"),
        pytest.param([("host", "192.168.0.7")], id="another address"),
        pytest.param([("host", "localhost"), ("host", "evil.example")], id="two of them"),
        pytest.param([("host", "")], id="none"),
    ],
)
async def test_no_other_machines_page_is(headers: list[tuple[str, str]]) -> None:
    assert await status(headers) == 403


@pytest.mark.parametrize(
    ("token", "keys", "public"),
    [
        (None, None, False),
        (Secret("x" * 32), OTHER, False),
        (Secret(TOKEN), OTHER, True),
        (None, KEYS, True),
        (None, SigningKeys(current=OTHER.current, next=KEYS.next), True),
        (None, SigningKeys(current=KEYS.next, next=OTHER.next), True),
    ],
)
def test_one_public_credential_makes_the_server_public(
    token: Secret | None, keys: SigningKeys | None, public: bool
) -> None:
    assert is_public(token, keys) is public

"""Headers of requests: one spelling of names, nothing in values that would end a line, and what nobody may forward."""

from __future__ import annotations

import pytest
from hypothesis import given

from tests.core.making import any_text, quick
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import (
    MAX_HEADERS,
    MAX_VALUE,
    canonical,
    check_header_value,
    check_headers,
    decode_header_value,
    is_forwardable,
)


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("test-header", "Test-Header"), ("TEST-HEADER", "Test-Header"), ("content-type", "Content-Type"),
        ("x-api-key", "X-Api-Key"), ("etag", "Etag"), ("WWW-authenticate", "Www-Authenticate"), ("a", "A"),
        ("x_under.score", "X_under.score"), ("x--y", "X--Y"), ("-x", "-X"), ("1st", "1st"),
    ],
)  # fmt: skip
def test_a_name_has_one_spelling_that_of_go(given_: str, expected: str) -> None:
    assert canonical(given_) == expected
    assert canonical(expected) == expected


@pytest.mark.parametrize(
    "name",
    ["", " ", "a b", "a:b", "a\r\nb", "a\nb", "a\x00", "ä", "a,b", "(a)", "a/b", 'a"', "a@b", "[a]", "a=b", "a" * 257],
)
def test_a_name_that_is_no_token_is_refused(name: str) -> None:
    with pytest.raises(InvalidMessage, match="header"):
        canonical(name)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\x00b", "\x0b", "a\x7f", "a\x1b[0m", "\ud800"])
def test_a_value_that_would_end_its_line_is_refused_by_name(value: str) -> None:
    with pytest.raises(InvalidMessage, match="X-Name"):
        check_header_value("X-Name", value)


def test_a_value_loses_the_blanks_around_it_and_nothing_else() -> None:
    assert check_header_value("X", "  a \t b\t ") == "a \t b"
    assert check_header_value("X", "日本 é") == "日本 é"
    assert check_header_value("X", "") == ""


def test_headers_are_checked_together() -> None:
    assert check_headers([("x-a", "1"), ("X-A", "2"), ("b", " 3 ")]) == {"X-A": "1, 2", "B": "3"}
    assert check_headers({"x-a": "1"}) == {"X-A": "1"}
    with pytest.raises(InvalidMessage, match="too many"):
        check_headers({f"x-{number}": "" for number in range(MAX_HEADERS + 1)})
    with pytest.raises(InvalidMessage, match="X-A"):
        check_headers({"x-a": "a" * (MAX_VALUE + 1)})


@pytest.mark.parametrize(
    "name",
    [
        "Host", "host", "Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "TE", "Trailer", "Upgrade",
        "Expect", "Proxy-Authorization", "proxy-connection", "Upstash-Signature", "upstash-message-id",
        "Upstash-Retried",
        "Webhook-Signature", "webhook-id", "webhook-timestamp", "Accept-Encoding",
    ],
)  # fmt: skip
def test_the_connections_headers_and_ours_are_not_forwarded(name: str) -> None:
    assert not is_forwardable(name)


@pytest.mark.parametrize(
    "name", ["Authorization", "Content-Type", "X-Custom", "Cookie", "Hosting", "X-Upstash-Signature"]
)
def test_all_others_are(name: str) -> None:
    assert is_forwardable(name)


@pytest.mark.parametrize("raw", [b"plain", "日本".encode(), b"caf\xe9", b"\xff\x00", b""])
def test_a_value_off_the_wire_keeps_every_byte(raw: bytes) -> None:
    text = decode_header_value(raw)
    assert raw in (text.encode(), text.encode("latin-1", "replace"))


@quick
@given(any_text, any_text)
def test_no_text_passes_that_could_be_two_lines(name: str, value: str) -> None:
    try:
        found = check_headers({name: value})
    except InvalidMessage:
        return
    line = "".join(f"{name}: {value}" for name, value in found.items())
    assert not set(line) & {"\r", "\n", "\0"}

"""Where a request is to go, as it stands in a path (S4-47; traps of the wire API)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from todoku.core.address import NAME, Group, Url, address, own_query
from todoku.core.errors import InvalidMessage


@pytest.mark.parametrize(
    ("raw", "query", "url"),
    [
        ("https://example.com/hook", "", "https://example.com/hook"),
        ("https://example.com", "", "https://example.com"),
        ("https://example.com//a//b/", "", "https://example.com//a//b/"),
        ("https://example.com/hook", "of=7&x", "https://example.com/hook?of=7&x"),
        ("https:/example.com/hook", "", "https://example.com/hook"),
        ("HTTPS://Example.com/Hook", "", "https://example.com/Hook"),
        ("https%3A%2F%2Fexample.com%2Fhook%3Fof%3D7", "", "https://example.com/hook?of=7"),
        ("https%3a%2f%2fexample.com", "x=1", "https://example.com?x=1"),
        ("http://127.0.0.1:8080/a%20b", "", "http://127.0.0.1:8080/a%20b"),
        ("https://example.com/a%2Fb", "", "https://example.com/a%2Fb"),
    ],
)
def test_a_url_stands_in_the_path_as_it_is(raw: str, query: str, url: str) -> None:
    assert address(raw, query) == Url(url)


@pytest.mark.parametrize(
    "secret", ["qstash_token=abc", "QSTASH_TOKEN=abc", "qstash%5Ftoken=abc", "upstash-delay=10s", "Upstash-Retries=0"]
)
def test_neither_the_token_nor_an_option_is_sent_on(secret: str) -> None:
    assert address("https://example.com/hook", f"a=1&{secret}&b=2") == Url("https://example.com/hook?a=1&b=2")
    assert own_query(secret) == ""


@pytest.mark.parametrize("name", ["my-group", "group_1", "a.b", "example.com", "V1StGXR8_Z5jdHi6B-myT"])
def test_what_has_no_scheme_is_a_url_group(name: str) -> None:
    assert address(name, "a=1") == Group(name)


@pytest.mark.parametrize(
    "raw",
    ["", "/", "ftp://example.com", "javascript:alert(1)", "example.com/hook", "api/llm", "https://", "https:///x",
     "a b", "https://user:secret@example.com/", "https://example.com/a\r\nHost: b", "file:///etc/passwd", "x" * 201],
)  # fmt: skip
def test_anything_else_is_refused_and_named(raw: str) -> None:
    with pytest.raises(InvalidMessage, match="destination"):
        address(raw)


def test_a_password_in_a_url_is_not_repeated() -> None:
    with pytest.raises(InvalidMessage) as refused:
        address("https://user:s3cret@example.com/")
    assert "s3cret" not in str(refused.value)


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_makes_it_fall_over(raw: str, query: str) -> None:
    try:
        found = address(raw, query)
    except InvalidMessage:
        return
    if isinstance(found, Url):
        assert found.url.startswith(("http://", "https://"))
        assert found.url.isascii()
        assert not any(character in found.url for character in "\r\n\0 ")
    else:
        assert NAME.fullmatch(found.name)

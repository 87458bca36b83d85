"""Scopes, tokens, signing keys, redaction and ids of dead letters."""

from __future__ import annotations

import pytest

from todoku.core.errors import InvalidAct, InvalidSetting
from todoku.core.http_request import HttpRequest, dead_id, parse_dead_id
from todoku.core.identity import base62
from todoku.core.redaction import redact_body, redact_request, redact_value
from todoku.core.scope import Secret, allows, scopes, token
from todoku.core.settings import read_settings
from todoku.core.signature import SigningKeys, signing_keys


def test_the_name_of_a_dead_letter_is_read_as_it_is_written() -> None:
    assert parse_dead_id(dead_id(7, 2)) == (7, 2)
    for text in ("", "7", "7-", "-1", "0-1", "7-2-3", "x-1", "9" * 30 + "-1", "7-2\n"):
        assert parse_dead_id(text) is None, text


def test_what_is_hidden_can_be_compared_and_nothing_else() -> None:
    request = HttpRequest(url="https://x.example/", headers={"X-A": "1", "X-B": "1", "X-C": "2"}, redact=("header",))
    headers = redact_request(request).headers
    assert headers["X-A"] == headers["X-B"] == redact_value(b"1")
    assert headers["X-C"] != headers["X-A"]
    one = HttpRequest(url="https://x.example/", headers={"X-A": "1", "X-B": "1"}, redact=("header[x-a]",))
    assert redact_request(one).headers == {"X-A": redact_value(b"1"), "X-B": "1"}
    assert redact_body(one, b"body") == b"body"
    assert redact_body(HttpRequest(url="https://x.example/", redact=("body",)), b"") == redact_value(b"").encode()


@pytest.mark.parametrize(
    ("given", "wanted", "allowed"),
    [
        (("admin",), "publish", True),
        (("admin",), "admin", True),
        (("operate",), "read", True),
        (("operate",), "publish", False),
        (("read",), "operate", False),
        (("publish",), "read", False),
        (("publish", "read"), "read", True),
        ((), "read", False),
        (("root",), "read", False),
    ],
)
def test_a_scope_contains_what_it_says_and_no_more(given: tuple[str, ...], wanted: str, allowed: bool) -> None:
    assert allows(given, wanted) is allowed  # type: ignore[arg-type]


def test_scopes_come_in_one_order_each_once_or_are_refused() -> None:
    assert scopes(["admin", "publish", "admin"]) == ("publish", "admin")
    with pytest.raises(InvalidAct):
        scopes(["publish", 7])


def test_secrets_of_the_settings_are_in_no_repr_and_no_error() -> None:
    settings = read_settings(
        {"TODOKU_TOKEN": "0123456789abcdef", "TODOKU_SIGNING_KEYS": "sig_aaaaaaaaaaaaaaaa, sig_bbbbbbbbbbbbbbbb"}
    )
    assert settings.token == Secret("0123456789abcdef")
    assert settings.signing_keys == SigningKeys(current="sig_aaaaaaaaaaaaaaaa", next="sig_bbbbbbbbbbbbbbbb")
    assert "0123456789abcdef" not in repr(settings)
    assert "sig_" not in repr(settings)


KEY = "a" * 16


@pytest.mark.parametrize("text", ["zzz", KEY, f"{KEY},", f"{KEY},b", f"{KEY},{KEY}", f"{KEY},{KEY},{KEY}", "é" * 20])
def test_signing_keys_that_cannot_be_are_refused_without_quoting_them(text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        signing_keys(text)
    assert text not in str(refused.value)
    assert "TODOKU_SIGNING_KEYS" in str(refused.value)


@pytest.mark.parametrize("text", ["short", "with space in the middle", "x" * 513, "ä" * 20, "tab\tinside-of-a-token"])
def test_a_token_that_cannot_be_one_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        token(text)
    assert text not in str(refused.value)
    assert "TODOKU_TOKEN" in str(refused.value)


def test_letters_of_chance_are_as_many_for_as_many_bytes_and_differ_for_others() -> None:
    assert {len(base62(bytes([n]) * 21)) for n in range(256)} == {29}
    assert len({base62(bytes([n, m])) for n in range(256) for m in range(256)}) == 65_536

"""Masking: what nobody may read over somebody's shoulder."""

from __future__ import annotations

import pytest

from todoku.core.redaction import MASKED, mask

FIELDS = frozenset(MASKED)


@pytest.mark.parametrize(
    "name",
    ["password", "Password", "user_password", "userPassword", "PASSWORD", "Access-Token", "accessToken", "tokens",
     "X-Api-Key", "apiKey", "APIKey", "Authorization", "email", "emailAddress", "Set-Cookie", "clientSecret"],
)  # fmt: skip
def test_a_telling_name_hides_its_value(name: str) -> None:
    assert mask({name: "sesame"}, FIELDS) == {name: "***"}


@pytest.mark.parametrize("name", ["discard", "classname", "compass", "user", "keynote", "id", "", "secretary", "届く"])
def test_a_name_that_only_looks_like_one_does_not(name: str) -> None:
    assert mask({name: "sesame"}, FIELDS) == {name: "sesame"}


def test_it_looks_at_every_depth_and_leaves_the_rest_alone() -> None:
    value = {"a": [{"b": {"token": {"c": 1}}, "n": 1.5}, None, True], "token": None, "list": ("x", {"email": "y"})}
    assert mask(value, FIELDS) == {
        "a": [{"b": {"token": "***"}, "n": 1.5}, None, True], "token": None, "list": ["x", {"email": "***"}],
    }  # fmt: skip
    assert value["token"] is None
    assert mask("token", FIELDS) == "token"
    assert mask({"token": 1}, frozenset()) == {"token": 1}
    assert mask({"pin code": 1, "PinCode": 2, "pin": 3}, frozenset({"pin_code"})) == {
        "pin code": "***", "PinCode": "***", "pin": 3,
    }  # fmt: skip

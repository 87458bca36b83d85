"""Roles from the claims of an OpenID provider, and the settings around them."""

from __future__ import annotations

import pytest

from todoku.core.errors import InvalidSetting
from todoku.core.oidc import ClientSecret, RoleRule, name_of_claims, role_of_claims, role_rules
from todoku.core.role import highest_role, role_of_scopes
from todoku.core.settings import read_settings

RULES = role_rules(
    [
        "groups=ops:operator",
        "realm_access.roles=boss:admin",
        "https://example.com/team=blue:viewer",
        "email=a@b.c:viewer",
    ]
)


@pytest.mark.parametrize(
    ("claims", "role"),
    [
        ({}, None),
        ({"groups": ["ops"]}, "operator"),
        ({"groups": "ops"}, "operator"),
        ({"groups": "opsx"}, None),
        ({"groups": ["dev"], "realm_access": {"roles": ["boss"]}}, "admin"),
        ({"groups": ["ops"], "realm_access": {"roles": ["boss"]}}, "admin"),
        ({"realm_access": "boss"}, None),
        ({"realm_access": None}, None),
        ({"https://example.com/team": "blue"}, "viewer"),
        ({"email": "a@b.c", "email_verified": True}, "viewer"),
        ({"email": "a@b.c", "email_verified": "true"}, None),
        ({"email": "a@b.c"}, None),
        ({"groups": {"ops": 1}}, None),
    ],
)
def test_the_highest_role_of_a_rule_that_fits(claims: dict[str, object], role: str | None) -> None:
    assert role_of_claims(RULES, claims) == role


def test_without_rules_nobody_has_a_role() -> None:
    assert role_of_claims((), {"groups": ["admin"], "sub": "1"}) is None


@pytest.mark.parametrize("rule", ["groups", "groups=ops", "groups=ops:owner", "=ops:admin", "groups=:admin", "g=o:"])
def test_a_rule_that_cannot_be_read_is_named(rule: str) -> None:
    with pytest.raises(InvalidSetting, match="oidc_roles"):
        role_rules([rule])


def test_a_value_may_have_a_colon() -> None:
    assert role_rules(["groups=urn:team:ops:admin"]) == (RoleRule("groups", "urn:team:ops", "admin"),)


def test_the_name_is_the_claim_else_the_subject_and_can_be_printed() -> None:
    assert name_of_claims("email", {"sub": "7", "email": "a@b.c", "email_verified": True}) == "a@b.c"
    assert name_of_claims("email", {"sub": "7", "email": "a@b.c"}) == "7"
    assert name_of_claims("name", {"sub": "7", "name": "A\nda\u202e"}) == "Ada"
    assert name_of_claims("name", {"sub": "7", "name": ["x"]}) == "7"
    assert len(name_of_claims("name", {"sub": "7", "name": "x" * 1000})) == 255


def settings(**given: str) -> dict[str, str]:
    return {f"TODOKU_{name.upper()}": value for name, value in given.items()}


def test_the_settings_of_a_provider() -> None:
    read = read_settings(
        settings(
            oidc_issuer="https://id.example.com", oidc_client_id="todoku", oidc_client_secret="hush",
            oidc_roles="groups=ops:operator, groups=boss:admin", oidc_scopes="openid,groups", web_read_only="yes",
        )
    )  # fmt: skip
    assert read.oidc_roles == ("groups=ops:operator", "groups=boss:admin")
    assert read.oidc_scopes == ("openid", "groups")
    assert read.oidc_client_secret == ClientSecret("hush")
    assert read.web_read_only
    assert "hush" not in repr(read)


@pytest.mark.parametrize(
    "given",
    [
        {"oidc_issuer": "http://id.example.com", "oidc_client_id": "x"},
        {"oidc_issuer": "https://id.example.com"},
        {"oidc_issuer": "id.example.com", "oidc_client_id": "x"},
        {"oidc_roles": "nonsense"},
        {"web_idle_sec": "0"},
        {"web_session_sec": "-1"},
        {"web_read_only": "perhaps"},
    ],
)
def test_settings_that_cannot_be_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting):
        read_settings(settings(**given))


def test_roles_and_scopes() -> None:
    assert role_of_scopes(["publish"]) is None
    assert role_of_scopes(["publish", "read"]) == "viewer"
    assert role_of_scopes(["operate"]) == "operator"
    assert role_of_scopes(["admin"]) == "admin"
    assert highest_role([]) is None

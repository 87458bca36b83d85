"""Sign-in through an OpenID provider: its settings, and the role that the claims about a person give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from todoku.core.errors import InvalidAct, InvalidSetting
from todoku.core.role import Role, highest_role, role

_HINT: Final = "claim=value:role, for example groups=todoku-admins:admin,realm_access.roles=staff:viewer"
_LONGEST_NAME: Final = 255


class ClientSecret:
    """The client secret that todoku sends to the provider. No repr and no log shows it."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Returns the text, for the request to the provider."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClientSecret) and self._text == other._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "<ClientSecret>"


class RoleRule(msgspec.Struct, frozen=True):
    """A person whose `claim` is `value`, or a list that contains it, has the role."""

    claim: str
    value: str
    role: Role


def client_secret(text: object) -> ClientSecret | None:
    """Parses the setting `oidc_client_secret`; None: it is not set (a public client, which PKCE protects)."""
    if text is None or isinstance(text, ClientSecret):
        return text
    found = str(text).strip()
    return ClientSecret(found) if found else None


def role_rules(given: Iterable[str]) -> tuple[RoleRule, ...]:
    """Parses the setting `oidc_roles`; raises InvalidSetting."""
    return tuple(map(_rule, given))


def _rule(text: str) -> RoleRule:
    claim, equals, rest = text.partition("=")
    value, colon, named = rest.rpartition(":")
    if not (equals and colon and claim.strip() and value.strip()):
        raise InvalidSetting(f"oidc_roles cannot have {text!r}", hint=_HINT)
    try:
        return RoleRule(claim.strip(), value.strip(), role(named.strip()))
    except InvalidAct as error:
        raise InvalidSetting(f"oidc_roles cannot have {text!r}: {error}", hint=_HINT) from None


def role_of_claims(rules: Iterable[RoleRule], claims: Mapping[str, object]) -> Role | None:
    """Returns the highest role that a rule gives; None: no rule knows the person.

    The claim `email` counts only if the provider has verified it: anybody may claim another person's address.
    """
    return highest_role(rule.role for rule in rules if _matches(rule, claims))


def _matches(rule: RoleRule, claims: Mapping[str, object]) -> bool:
    if rule.claim == "email" and claims.get("email_verified") is not True:
        return False
    found = claims[rule.claim] if rule.claim in claims else _at_path(rule.claim, claims)
    return rule.value in found if isinstance(found, list | tuple) else found == rule.value


def _at_path(path: str, claims: object) -> object:
    for part in path.split("."):
        claims = claims.get(part) if isinstance(claims, Mapping) else None
    return claims


def name_of_claims(claim: str, claims: Mapping[str, object]) -> str:
    """Returns the name of a person for the page and the audit: that claim, or the provider's subject without it."""
    found = claims.get(claim)
    if claim == "email" and claims.get("email_verified") is not True:
        found = None
    text = found if isinstance(found, str) and found.strip() else str(claims.get("sub", ""))
    return "".join(letter for letter in text if letter.isprintable()).strip()[:_LONGEST_NAME]


def check_issuer(issuer: str | None, client_id: str | None) -> None:
    """Raises InvalidSetting unless the provider is reached by HTTPS, or is on this machine, and has a client id."""
    if issuer is None:
        return
    parts = urlsplit(issuer)
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and _is_here(parts.hostname))):
        raise InvalidSetting("oidc_issuer must be an https:// URL", hint="https://accounts.example.com")
    if not client_id:
        raise InvalidSetting("oidc_issuer is set without oidc_client_id", hint="set TODOKU_OIDC_CLIENT_ID")


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False

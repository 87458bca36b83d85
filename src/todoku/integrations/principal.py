"""Who asks: an answer that is kept for a repeated request belongs to the caller of the first one alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any, Final

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.engine.observability.log import Log

Scope = MutableMapping[str, Any]
Principal = Callable[[Scope], str]
"""The caller of a request, as a text that is the same for all requests of a caller. Empty: unknown."""

_CREDENTIALS: Final = frozenset({
    "api-key", "authorization", "private-token", "proxy-authorization", "x-access-token", "x-api-key",
    "x-auth-token", "x-gitlab-token", "x-goog-api-key", "x-vault-token",
})  # fmt: skip
"""Headers by which a caller is known. Not all that are secret: a token against forgery is another on each page."""

_VOUCHED: Final = re.compile(
    r"(?:.+-)?client-?cert(?:-.+)?|(?:x-)?ssl-client-.+|x-amzn-mtls-clientcert.*|(?:x-)?remote-user"
    r"|x-forwarded-(?:user|email)|x-auth-request-(?:user|email)|.+-authenticated-user(?:-.+)?|x-amzn-oidc-identity"
)
"""Headers by which a proxy says who it let in, by a certificate or else."""


def by_credentials(scope: Scope) -> str:
    """By everything in a request that says who sends it: `Authorization` and its kin, cookies, a client's certificate.

    A caller that changes one of them (a cookie that counts visits) is another caller, and does a repeated request
    again. Where that can happen, say by what callers are known: `by_cookie("session")`, `by_authorization`, or a
    function of your own.
    """
    found = sorted({*_named(scope), *_certificates(scope)})
    match found:
        case []:
            return ""
        case [("authorization", value)]:
            return value  # as it was before there were others, so that what is stored is found
        case _:
            return "\n" + msgspec.json.encode(found).decode()  # no header has a line break in it


def by_authorization(scope: Scope) -> str:
    """By the header `Authorization` alone; without one, everybody is one and the same."""
    return "\n".join(value for name, value in _headers(scope) if name == "authorization")


def by_cookie(*names: str) -> Principal:
    """By the cookies of these names alone; without them, everybody is one and the same."""
    if not names or not all(names):
        raise InvalidSetting("by_cookie needs the name of a cookie", hint='by_cookie("session")')

    def principal(scope: Scope) -> str:
        found = sorted(pair for pair in _cookies(scope) if pair[0] in names)
        return msgspec.json.encode(found).decode() if found else ""

    return principal


def stated(principal: Principal | None, where: str) -> Principal:
    """The principal that an endpoint states. If it states none, a log line at start says so."""
    if principal is not None:
        return principal
    todo = "callers without credentials are all one; state principal=by_credentials, by_cookie(…) or your own"
    Log(endpoint=where).warning("PRINCIPAL_UNKNOWN", todo=todo)
    return by_credentials


def asker(scope: Scope, principal: Principal) -> str:
    """Who asks, as it is stored: a hash, so that no credential is."""
    found = principal(scope)
    if not isinstance(found, str):
        raise InvalidSetting(f"principal gave {type(found).__name__}", hint='a text; "" if anybody may have the answer')
    return hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()


def _named(scope: Scope) -> Iterator[tuple[str, str]]:
    for name, value in _headers(scope):
        if name in _CREDENTIALS or _VOUCHED.fullmatch(name):
            yield name, value
    for name, value in _cookies(scope):
        yield f"cookie {name}", value


def _headers(scope: Scope) -> Iterator[tuple[str, str]]:
    for raw, given in scope["headers"]:
        if value := given.decode("latin-1").strip():
            yield raw.decode("latin-1").lower().replace("_", "-"), value


def _cookies(scope: Scope) -> Iterator[tuple[str, str]]:
    """Each cookie by itself: browsers send them in any order, and in one header or several."""
    for name, value in _headers(scope):
        if name == "cookie":
            for part in value.split(";"):
                key, _, held = part.strip().partition("=")
                yield key, held


def _certificates(scope: Scope) -> Iterator[tuple[str, str]]:
    """The client's certificate, where the server tells of it (the TLS extension of ASGI)."""
    tls = (scope.get("extensions") or {}).get("tls") or {}
    for certificate in tls.get("client_cert_chain") or ():
        yield "certificate", str(certificate)
    if name := tls.get("client_cert_name"):
        yield "certificate name", str(name)

"""Identifies the caller of a request: a stored response is sent again only to the caller of the first request."""

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
"""Returns a text that is the same for all requests of a caller. Empty: the caller is unknown."""

_CREDENTIALS: Final = frozenset({
    "api-key", "authorization", "private-token", "proxy-authorization", "x-access-token", "x-api-key",
    "x-auth-token", "x-gitlab-token", "x-goog-api-key", "x-vault-token",
})  # fmt: skip
"""Headers that identify a caller. Not every secret header does: a CSRF token differs on each page."""

_SET_BY_PROXY: Final = re.compile(
    r"(?:.+-)?client-?cert(?:-.+)?|(?:x-)?ssl-client-.+|x-amzn-mtls-clientcert.*|(?:x-)?remote-user"
    r"|x-forwarded-(?:user|email)|x-auth-request-(?:user|email)|.+-authenticated-user(?:-.+)?|x-amzn-oidc-identity"
)
"""Headers in which a proxy passes on the caller that it authenticated, by certificate or otherwise."""


def by_credentials(scope: Scope) -> str:
    """Identifies callers by all credentials of a request: `Authorization` and similar headers, cookies, certificates.

    If one of them changes between two requests (such as a cookie that counts visits), they count as two callers, and
    a repeated request is processed again. If that can happen, choose `by_cookie("session")`, `by_authorization` or
    your own function.
    """
    found = sorted({*_credentials(scope), *_certificates(scope)})
    match found:
        case []:
            return ""
        case [("authorization", value)]:
            return value  # the form before other credentials were read, so that stored responses are found
        case _:
            return "\n" + msgspec.json.encode(found).decode()  # a header has no line break, so it cannot equal this


def by_authorization(scope: Scope) -> str:
    """Identifies callers only by the header `Authorization`; all requests without one are the same caller."""
    return "\n".join(value for name, value in _headers(scope) if name == "authorization")


def by_cookie(*names: str) -> Principal:
    """Identifies callers only by the cookies of these names; all requests without them are the same caller."""
    if not names or not all(names):
        raise InvalidSetting("by_cookie needs the name of a cookie", hint='write by_cookie("session")')

    def principal(scope: Scope) -> str:
        found = sorted(pair for pair in _cookies(scope) if pair[0] in names)
        return msgspec.json.encode(found).decode() if found else ""

    return principal


def principal_or_default(principal: Principal | None, where: str) -> Principal:
    """Returns `principal`, or `by_credentials` with a warning in the log if there is none."""
    if principal is not None:
        return principal
    todo = "callers without credentials count as one; set principal=by_credentials, by_cookie(…) or your own"
    Log(endpoint=where).warning("PRINCIPAL_UNKNOWN", todo=todo)
    return by_credentials


def caller_hash(scope: Scope, principal: Principal) -> str:
    """The caller as it is stored: a hash, so that no credential is stored."""
    found = principal(scope)
    if not isinstance(found, str):
        raise InvalidSetting(
            f"principal returned {type(found).__name__}", hint='return a string; "" if any caller may get the response'
        )
    return hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()


def _credentials(scope: Scope) -> Iterator[tuple[str, str]]:
    for name, value in _headers(scope):
        if name in _CREDENTIALS or _SET_BY_PROXY.fullmatch(name):
            yield name, value
    for name, value in _cookies(scope):
        yield f"cookie {name}", value


def _headers(scope: Scope) -> Iterator[tuple[str, str]]:
    for raw, given in scope["headers"]:
        if value := given.decode("latin-1").strip():
            yield raw.decode("latin-1").lower().replace("_", "-"), value


def _cookies(scope: Scope) -> Iterator[tuple[str, str]]:
    """Yields each cookie: browsers send them in any order, in one header or several."""
    for name, value in _headers(scope):
        if name == "cookie":
            for part in value.split(";"):
                key, _, content = part.strip().partition("=")
                yield key, content


def _certificates(scope: Scope) -> Iterator[tuple[str, str]]:
    """Yields the client's certificates, if the server passes them on (the TLS extension of ASGI)."""
    tls = (scope.get("extensions") or {}).get("tls") or {}
    for certificate in tls.get("client_cert_chain") or ():
        yield "certificate", str(certificate)
    if name := tls.get("client_cert_name"):
        yield "certificate name", str(name)

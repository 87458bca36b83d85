"""`Idempotency-Key` for any ASGI application, after the IETF draft: a repeated request gets the first response.

The response is stored before it is sent, so a client that lost it can repeat the request. While the first request
runs, another one with its key gets 409. A server error is not stored and frees the key: the client may try again.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, MutableMapping, Sequence
from typing import Any, Final

import msgspec

from todoku.app import App
from todoku.core.errors import IdempotencyConflict, InProgress, InvalidMessage, InvalidSetting
from todoku.core.identity import digest, digest_bytes
from todoku.engine.observability.log import Log

# ------------------------------------------------------------
# Identifies the caller of a request: a stored response is sent again only to the caller of the first request.

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


Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

LARGEST: Final = 1 << 20

_NOT_STORED: Final = frozenset({b"set-cookie", b"set-cookie2"})
"""A session cookie belongs to one login: a stored response must not log another request in."""


class Reply(msgspec.Struct, frozen=True):
    """A whole HTTP response."""

    status: int
    headers: tuple[Header, ...]
    body: bytes

    def as_stored(self) -> dict[str, object]:
        """The response for the ledger: every byte, except cookies that it sets."""
        headers_to_store = ((name, value) for name, value in self.headers if name.lower() not in _NOT_STORED)
        headers = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in headers_to_store]
        return {"headers": headers, "body": base64.b64encode(self.body).decode()}


class _ServerError(Exception):
    """The response is a server error: it is sent, and the key is freed."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class _ClientGone(Exception):
    """The client disconnected before it had sent the whole request."""


class IdempotencyMiddleware:
    """Wraps an ASGI application: `app.add_middleware(IdempotencyMiddleware, box=box)`.

    It handles requests with one of `methods` under one of the prefixes `paths`. `required`: a request without the
    header is refused (400); if False, it passes through. `principal` identifies the caller; no other caller gets the
    response (`by_credentials`, the default; `by_authorization`, `by_cookie("session")`, or a function of the ASGI
    scope). `conflict`: the status for a key that was used with another request, 422 or 409. `hold`: seconds after
    which the key of a request whose process died is free. A body of more than `largest` bytes is refused (413), and a
    larger response is not stored.
    """

    def __init__(
        self,
        app: Application,
        box: App,
        *,
        methods: Collection[str] = ("POST", "PATCH"),
        paths: Sequence[str] = ("/",),
        required: bool = True,
        principal: Principal | None = None,
        conflict: int = 422,
        hold: float = 60.0,
        largest: int = LARGEST,
    ) -> None:
        if conflict not in (409, 422):
            raise InvalidSetting(f"conflict cannot be {conflict!r}", hint="use 409 or 422")
        self._app = app
        self._box = box
        self._methods = frozenset(method.upper() for method in methods)
        self._paths = tuple(paths)
        self._required = required
        self._principal = principal_or_default(principal, ", ".join(self._paths))
        self._conflict = conflict
        self._hold = hold
        self._largest = largest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one ASGI connection."""
        if scope["type"] != "http" or scope["method"] not in self._methods or not scope["path"].startswith(self._paths):
            await self._app(scope, receive, send)
            return
        key = _key(scope)
        if key is None and not self._required:
            await self._app(scope, receive, send)
            return
        try:
            reply = await self._respond(scope, receive, key)
        except _ClientGone:
            return  # an incomplete request is not processed, and there is no client to respond to
        await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
        await send({"type": "http.response.body", "body": reply.body})

    async def _respond(self, scope: Scope, receive: Receive, key: str | None) -> Reply:
        if not key:
            return problem(400, "Idempotency-Key is missing", "Send a unique key with this request.")
        body = await _body(receive, self._largest)
        if body is None:
            return problem(413, "The body is too large", f"At most {self._largest} bytes are allowed.")
        try:
            return await self._once(scope, body, key)
        except InvalidMessage as error:
            return problem(400, "Idempotency-Key cannot be used", str(error))
        except InProgress:
            text = "The first request with this key is still running. Try again in a moment."
            return problem(409, "A request is outstanding for this Idempotency-Key", text, (b"retry-after", b"1"))
        except IdempotencyConflict:
            text = "This key was used with another request. Use a new key."
            return problem(self._conflict, "Idempotency-Key is already used", text)
        except _ServerError as end:
            return end.reply

    async def _once(self, scope: Scope, body: bytes, key: str) -> Reply:
        caller_scope, request = f"http:{caller_hash(scope, self._principal)}", request_fields(scope, body)
        async with self._box.ledger.once(key, scope=caller_scope, tx=None, body=request, hold=self._hold) as answer:
            if not answer.first:
                return _stored_reply(answer.status or 200, answer.response)
            reply = await self._call_app(scope, body)
            if reply.status >= 500:
                raise _ServerError(reply)
            stored = reply if len(reply.body) <= self._largest else _too_large_reply()
            answer.store(stored.as_stored(), stored.status)
            return reply

    async def _call_app(self, scope: Scope, body: bytes) -> Reply:
        """Calls the application and collects its response."""
        is_body_sent = False
        start: Event = {"status": 500, "headers": []}
        parts: list[bytes] = []

        async def receive() -> Event:
            nonlocal is_body_sent
            if is_body_sent:
                return {"type": "http.disconnect"}
            is_body_sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(event: Event) -> None:
            if event["type"] == "http.response.start":
                start.update(event)
            elif event["type"] == "http.response.body":
                parts.append(event.get("body", b""))

        await self._app(scope, receive, send)
        headers = tuple((bytes(name), bytes(value)) for name, value in start["headers"])
        return Reply(start["status"], headers, b"".join(parts))


def request_fields(scope: Scope, body: bytes) -> dict[str, str]:
    """The fields in which two requests must be equal: method, path, query and the digest of the body."""
    fields = {"method": scope["method"], "path": scope["path"], "query": _text(scope["query_string"])}
    return fields | {"body": _body_digest(scope, body)}


def problem(status: int, title: str, detail: str, *headers: Header) -> Reply:
    """An error as problem details (RFC 9457)."""
    body = msgspec.json.encode({"type": "about:blank", "title": title, "status": status, "detail": detail})
    length = (b"content-length", str(len(body)).encode())
    return Reply(status, ((b"content-type", b"application/problem+json"), length, *headers), body)


def _stored_reply(status: int, stored: Any) -> Reply:
    headers = ((name.encode("latin-1"), value.encode("latin-1")) for name, value in stored["headers"])
    # An older todoku also stored cookies.
    sent_headers = tuple((name, value) for name, value in headers if name.lower() not in _NOT_STORED)
    return Reply(status, sent_headers, base64.b64decode(stored["body"]))


def _too_large_reply() -> Reply:
    text = "Its response was too large to be stored, and cannot be sent again."
    return problem(409, "This request was already processed", text)


def _key(scope: Scope) -> str | None:
    """The value of the header: by the draft a quoted string, but many clients send it without quotes."""
    value = _header(scope, b"idempotency-key")
    if value is not None and len(value) >= 2 and value[0] == value[-1] == '"':
        return value[1:-1]
    return value


def _header(scope: Scope, name: bytes) -> str | None:
    for key, value in scope["headers"]:
        if key.lower() == name:
            return _text(value).strip()
    return None


def _text(value: bytes) -> str:
    return value.decode("latin-1")


async def _body(receive: Receive, largest: int) -> bytes | None:
    """The body of the request. None: it is too large."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise _ClientGone
        part = event.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > largest:
            return None
        more = event.get("more_body", False)
    return b"".join(parts)


def _body_digest(scope: Scope, body: bytes) -> str:
    """The digest of the body. JSON is compared by value, any other body by its bytes."""
    if "json" in (_header(scope, b"content-type") or ""):
        try:
            return digest(msgspec.json.decode(body))
        except (msgspec.DecodeError, RecursionError):
            return digest_bytes(body)
    return digest_bytes(body)

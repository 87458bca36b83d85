"""Webhooks of workflow runs over HTTP: URLs that a run creates, hands to others, and waits to be requested.

The SDK makes the URL and its secret part itself, by `Math.random`, which can be predicted by whoever has seen enough of
its numbers, such as ids of runs. So todoku puts a token of its own in the place of the secret part, and stores the
token's digest only.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import CONNECTION_HEADERS, MAX_HEADERS
from todoku.core.msgspec_warmup import warm_up

CREATE: Final = "CreateWebhook"
"""The type of a step that creates a webhook."""

METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")
"""The methods that a webhook takes. Not HEAD and OPTIONS, by which programs ask before they send."""

MOST_KEPT: Final = 100
"""Events and requests that are kept for a run until it waits for them, if the sender has nothing but a URL."""

TOKEN_BYTES: Final = 32
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_HIDDEN: Final = "…"


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a webhook, as it was received."""

    method: str
    path: str
    """With the query, not decoded."""
    headers: Sequence[tuple[bytes, bytes]]
    body: bytes


class _Received(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a webhook, as the SDK reads it."""

    method: str
    proto: str
    host: str
    url: str
    header: dict[str, list[str]]
    body: bytes


class _Created(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a run learns about a webhook: the JSON text in `out` of its step."""

    webhook_url: str
    event_id: str


warm_up(_Created)


def webhook_token(random: bytes) -> str:
    """Returns the secret part of a webhook's URL, from `TOKEN_BYTES` random bytes."""
    return f"evt_{base64.urlsafe_b64encode(random).decode().rstrip('=')}"


def webhook_digest(token: str) -> str:
    """Returns the digest by which the webhook of a token is stored."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def webhook_event(digest: str) -> str:
    """Returns the event that a run waits for until its webhook is requested. No client can send it: it has a space."""
    return f"webhook {digest}"


def created_webhook(run_id: str, body: bytes, token: str) -> tuple[bytes, str]:
    """Returns the JSON of a step that creates a webhook, with this token in its URL, and the origin of the URL.

    InvalidMessage: the SDK has sent something else than a URL of this run.
    """
    try:
        step = msgspec.json.decode(body)  # an object: `parse_step` has read it
        made = msgspec.json.decode(step.get("out") or "", type=_Created)
        url = urlsplit(made.webhook_url)
        is_own = url.scheme in ("http", "https") and bool(url.hostname) and url.username is None and url.port != 0
    except (msgspec.DecodeError, TypeError, ValueError) as error:
        raise _no_webhook(str(error)) from None
    before = made.webhook_url.removesuffix(f"/{run_id}/{made.event_id}")
    if not is_own or before == made.webhook_url or url.query or url.fragment:
        raise _no_webhook("its URL is not one of this run")
    new = _Created(webhook_url=f"{before}/{run_id}/{token}", event_id=token)
    return msgspec.json.encode({**step, "out": msgspec.json.encode(new).decode()}), f"{url.scheme}://{url.netloc}"


def _no_webhook(why: str) -> InvalidMessage:
    return InvalidMessage(f"the step creates no webhook: {why}", hint="only the SDK of the workflow creates webhooks")


def hide_webhook(step: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a step that has created a webhook as it may be shown: whoever knows the URL may request it."""
    try:
        made = msgspec.json.decode(step.get("out") or "", type=_Created)
    except (msgspec.DecodeError, TypeError):
        return {**step, "out": _HIDDEN}
    shown = _Created(webhook_url=made.webhook_url.replace(made.event_id, _HIDDEN), event_id=_HIDDEN)
    return {**step, "out": msgspec.json.encode(shown).decode()}


def received_event(origin: str, request: WebhookRequest) -> bytes:
    """Returns the data of the event that a request to a webhook is for the run that waits.

    The SDK builds a `Request` of it, in every call after this, and fails if that is not possible. So the origin is that
    of the URL which the SDK has made, not the `Host` that the sender chose, and no character of a header is above 255.
    """
    headers: dict[str, list[str]] = {}
    for raw, value in request.headers:
        name = raw.decode("latin-1").lower()
        if _NAME.fullmatch(name) and name not in CONNECTION_HEADERS and not name.startswith("proxy-"):
            headers.setdefault(name, []).append(value.decode("latin-1"))
    if len(headers) > MAX_HEADERS:
        raise InvalidMessage(f"{len(headers)} headers are too many", hint=f"{MAX_HEADERS} are allowed")
    proto, _, host = origin.partition("://")
    received = _Received(
        method=request.method, proto=proto, host=host, url=request.path, header=headers, body=request.body
    )
    return msgspec.json.encode(received)

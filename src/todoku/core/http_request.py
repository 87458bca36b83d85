"""An HTTP request on its way: where to, how, and what is to happen afterwards. It travels in a header of its message.

The body is the message's payload, byte for byte as it was given; everything else is here.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import urlsplit

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.msgspec_warmup import learned
from todoku.core.sealed import RequestKind

HTTP: Final = "todoku-http"
"""The header of a message that is an HTTP request."""

SECRETS: Final = "todoku-secrets"
"""The header of a message with the values of the request's secret headers, as `core.sealed.sealed_text` writes them."""

TOPIC: Final = "http.request"
CALLBACK_TOPIC: Final = "http.callback"
QUEUE: Final = "http"
"""The queue of requests that are in no queue of their own."""

RETRIES: Final = 3

TRACE: Final = frozenset({"traceparent", "tracestate", "baggage", "sentry-trace"})
"""Headers of a message that say which trace it belongs to: what follows from it belongs to the same."""


class Flow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A flow key and what it allows, all workers together: so many at once, `rate` of them a `period` (seconds)."""

    key: str
    parallelism: int | None = None
    rate: int | None = None
    period: float = 1.0


class Callback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Who is told how a request ended, and how that telling is sent."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    timeout: float | None = None
    retries: int = RETRIES
    retry_delay: str | None = None
    delay: float = 0.0
    sealed: str | None = None
    """The values of its secret headers, sealed for the request's message, this URL and method. Empty in `headers`."""


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is sent, and what is known about it. `headers` are the receiver's, names in canonical form."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    timeout: float | None = None
    """Seconds for one attempt, from the look-up of the name to the last byte of the answer; None: the setting."""
    retries: int = RETRIES
    retry_delay: str | None = None
    """An expression in milliseconds (core.expression); None: `DEFAULT_DELAY`."""
    callback: Callback | None = None
    failure_callback: Callback | None = None
    flow: Flow | None = None
    queue: str | None = None
    group: str | None = None
    endpoint: str | None = None
    schedule: str | None = None
    labels: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    caller_ip: str | None = None
    source: str | None = None
    """The message whose end this request tells of: it is a callback."""
    kind: RequestKind = "request"
    """Whether it is a callback, and of which end. Those of 0.1 do not say so; `source` does."""


learned(HttpRequest)


def origin(url: str) -> str:
    """The destination of a URL: scheme, host and port. Breakers, limits and bulkheads are by it."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, 443 if parts.scheme == "https" else 80) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


SCHEMES: Final = ("http://", "https://")
"""The names under which a worker serves every host."""


def served_as(destination: str) -> str:
    """The name under which workers serve a destination: of a host its scheme, which stands for every host; else its
    own. The queries say the same: `served`."""
    scheme, separator, _ = destination.partition("://")
    return scheme + separator


def queue_name(request: HttpRequest) -> str:
    """The queue its delivery is in: its own, its flow key's, or the one of all others."""
    if request.queue is not None:
        return f"http:{request.queue}"
    if request.flow is not None:
        return f"flow:{request.flow.key}"
    return QUEUE


def dead_id(delivery_id: int, replay_count: int) -> str:
    """What a dead letter is called over HTTP: sent again and dead again, it is another one."""
    return f"{delivery_id}-{replay_count}"


def dead_ref(text: str) -> tuple[int, int] | None:
    """(delivery, replay) of the name of a dead letter; None: it is none."""
    found = re.fullmatch(r"([1-9][0-9]{0,17})-([0-9]{1,9})", text)
    return None if found is None else (int(found[1]), int(found[2]))


def carried(request: HttpRequest) -> str:
    """The value of the header `HTTP`."""
    return msgspec.json.encode(request).decode()


def request_of(headers: str | None) -> HttpRequest | None:
    """The request a message carries, by its headers as they are stored; None: it is not one."""
    if headers is None or HTTP not in headers:
        return None
    found = msgspec.json.decode(headers, type=dict[str, str]).get(HTTP)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found, type=HttpRequest)
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"the header {HTTP} cannot be read: {error}", hint="only todoku writes it") from None

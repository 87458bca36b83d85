"""An HTTP request that todoku delivers: its URL, options and callbacks. It is stored in a header of its message.

The body of the request is the payload of the message, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.msgspec_warmup import warm_up
from todoku.core.sealed import RequestKind

# ------------------------------------------------------------
# Headers of HTTP requests: their canonical names, valid values, which hold secrets, and which may be forwarded.

MAX_HEADERS: Final = 100
MAX_NAME: Final = 256
MAX_VALUE: Final = 16 << 10

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_SPACE: Final = " \t"

CONNECTION_HEADERS: Final = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade", "via",
})  # fmt: skip
"""Headers that describe one connection and not the message; the HTTP client sets them."""

_RESERVED_PREFIXES: Final = ("proxy-", "upstash-", "webhook-")
"""Headers of proxies, and those that receivers trust because only todoku sets them: signatures, ids, counts."""

_SECRET_WORDS: Final = frozenset({
    "apikey", "authorization", "cookie", "cookie2", "credential", "credentials", "jwt", "passwd", "password", "secret",
    "token",
})  # fmt: skip
"""A header is a secret if this is the last word of its name: `Authorization`, `Set-Cookie`, `X-Vault-Token`."""

_NOT_SECRET: Final = frozenset({"idempotency-key", "x-idempotency-key"})
"""Headers that end in -key and are no secrets: they identify an event, and so help to tell dead letters apart."""


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether the value of this header is a secret: it is forwarded, never shown, and encrypted with a master key.

    This is the only place that decides it. A header whose name ends in -key is a secret, too. Case is ignored, and an
    underscore counts as a dash, as for many servers.
    """
    plain = name.strip().lower().replace("_", "-")
    before, dash, last = plain.rpartition("-")
    return plain not in _NOT_SECRET and (last in _SECRET_WORDS or (last == "key" and bool(dash and before)))


def canonical(name: str) -> str:
    """Returns the name of a header as Go spells it, `Test-Header` for `test-header`; raises InvalidMessage."""
    if not _TOKEN.fullmatch(name) or len(name) > MAX_NAME:
        hint = f"letters, digits and !#$%&'*+-.^_`|~, at most {MAX_NAME}"
        raise InvalidMessage(f"a header cannot be called {name[:64]!r}", hint=hint)
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def check_header_value(name: str, value: str) -> str:
    """Returns the value without surrounding spaces; raises InvalidMessage if it contains control characters."""
    value = value.strip(_SPACE)
    if found := _FORBIDDEN.search(value):
        raise InvalidMessage(
            f"the header {name} contains {found[0]!r}", hint="remove line breaks and control characters"
        )
    if len(value) > MAX_VALUE:
        raise InvalidMessage(f"the header {name} has {len(value)} characters", hint=f"{MAX_VALUE} are allowed")
    return value


def check_headers(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns headers with canonical names and checked values. The values of a repeated name are joined by commas."""
    found: dict[str, str] = {}
    for given, value in headers.items() if isinstance(headers, Mapping) else headers:
        name = canonical(given)
        clean = check_header_value(name, value)
        found[name] = f"{found[name]}, {clean}" if name in found else clean
    if len(found) > MAX_HEADERS:
        raise InvalidMessage(f"{len(found)} headers are too many", hint=f"{MAX_HEADERS} are allowed")
    return found


def is_forwardable(name: str) -> bool:
    """Whether a publisher may set this header of the request to the receiver."""
    name = name.lower()
    return name not in CONNECTION_HEADERS and not name.startswith(_RESERVED_PREFIXES)


def is_run_header(name: str) -> bool:
    """Whether a publisher may set this header, too, if the request belongs to a workflow run."""
    name = name.lower()
    return name.startswith("upstash-workflow-") or name == "upstash-label"


def decode_header_value(raw: bytes) -> str:
    """Decodes a received value as UTF-8, which todoku sends, or as Latin-1, which loses no byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")


HTTP: Final = "todoku-http"
"""The message header that contains the request as JSON."""

SECRETS: Final = "todoku-secrets"
"""The message header that contains the request's secret headers, sealed, as `core.sealed.sealed_text` writes them."""

TOPIC: Final = "http.request"
CALLBACK_TOPIC: Final = "http.callback"
QUEUE: Final = "http"
"""The queue of requests that name neither a queue nor a flow key."""

RETRIES: Final = 3

TRACE: Final = frozenset({"traceparent", "tracestate", "baggage", "sentry-trace"})
"""Message headers of a trace."""

CORRELATION: Final = ("x-correlation-id", "correlation_id")
"""Message headers with a correlation id, in lower case; the first that is there counts."""

INHERITED: Final = TRACE | {*CORRELATION}
"""Message headers that callbacks and messages to hooks inherit from the message that ended."""


class FlowControl(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A flow key and its limits over all workers: `parallelism` at once, and `rate` per `period` (seconds)."""

    key: str
    parallelism: int | None = None
    rate: int | None = None
    period: float = 1.0


class RunPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The workflow run that a request belongs to, and its part in it.

    `step`: it calls the URL of the run; its body is read from the steps of the run when it is sent. `call`: it requests
    a third party, and `result` hands over the answer. `failure`: it reports that the run has failed.
    """

    id: str
    created_at: int
    """Unix milliseconds."""
    part: Literal["step", "call", "result", "failure"] = "step"


class Callback(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The request that reports how another request ended."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    timeout: float | None = None
    retries: int = RETRIES
    retry_delay: str | None = None
    delay: float = 0.0
    sealed: str | None = None
    """The secret headers, sealed for the request's message, this URL and method. In `headers` their values are ""."""
    run: RunPart | None = None


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to a receiver. `headers` are sent to the receiver; their names are canonical."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    timeout: float | None = None
    """Seconds for one attempt, from the DNS lookup to the last byte of the response; None: the setting applies."""
    retries: int = RETRIES
    retry_delay: str | None = None
    """An expression in milliseconds (`core.retry_expression`); None: `DEFAULT_DELAY`."""
    callback: Callback | None = None
    failure_callback: Callback | None = None
    flow: FlowControl | None = None
    queue: str | None = None
    group: str | None = None
    endpoint: str | None = None
    schedule: str | None = None
    labels: tuple[str, ...] = ()
    redact: tuple[str, ...] = ()
    caller_ip: str | None = None
    source: str | None = None
    """The id of the message whose end this request reports; only callbacks have it."""
    kind: RequestKind = "request"
    """Callbacks stored by todoku 0.1 have the default here; only `source` marks them."""
    run: RunPart | None = None


warm_up(HttpRequest)


def origin(url: str) -> str:
    """Returns the destination of a URL: scheme, host and port. Breakers, limits and bulkheads are per destination."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    port = "" if parts.port in (None, 443 if parts.scheme == "https" else 80) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


SCHEMES: Final = ("http://", "https://")
"""A worker that serves these names serves every host."""


def served_as(destination: str) -> str:
    """Returns the name under which workers serve a destination: the scheme of a URL, which stands for every host, or
    the destination itself. The SQL of `served` does the same."""
    scheme, separator, _ = destination.partition("://")
    return scheme + separator


def queue_name(request: HttpRequest) -> str:
    """Returns the queue of the request's delivery: the named one, that of its flow key, or `QUEUE`."""
    if request.queue is not None:
        return f"http:{request.queue}"
    if request.flow is not None:
        return f"flow:{request.flow.key}"
    return QUEUE


def dead_id(delivery_id: int, replay_count: int) -> str:
    """Returns the id of a dead letter in the HTTP API. A delivery that dies again after a replay gets another id."""
    return f"{delivery_id}-{replay_count}"


def parse_dead_id(text: str) -> tuple[int, int] | None:
    """Parses the id of a dead letter into (delivery id, replay count); None: it is not such an id."""
    found = re.fullmatch(r"([1-9][0-9]{0,17})-([0-9]{1,9})", text)
    return None if found is None else (int(found[1]), int(found[2]))


def encode_request(request: HttpRequest) -> str:
    """Returns the value of the header `HTTP`."""
    return msgspec.json.encode(request).decode()


def request_of(headers: str | None) -> HttpRequest | None:
    """Returns the request in the stored headers of a message; None: the message is not an HTTP request."""
    if headers is None or HTTP not in headers:
        return None
    found = msgspec.json.decode(headers, type=dict[str, str]).get(HTTP)
    if found is None:
        return None
    try:
        return msgspec.json.decode(found, type=HttpRequest)
    except msgspec.DecodeError as error:
        raise InvalidMessage(f"the header {HTTP} cannot be read: {error}", hint="only todoku writes it") from None

"""Shared by both HTTP destinations: sending a request, and classifying the response."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from todoku.core.destination import Outgoing
from todoku.core.duration import retry_after
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.failure import NON_RETRYABLE_HEADER, Answering, Reasons, classify, classify_status
from todoku.core.http_request import TRACE
from todoku.core.outcome import Outcome, Retry
from todoku.core.settings import Settings

if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp
import asyncio

import msgspec

from todoku.core.address_guard import Guard, check_url
from todoku.core.outcome import KEPT_BODY_BYTES, Response, trim_response
from todoku.destinations.time_limits import TimeLimits

if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp
    from todoku.destinations.http_exchange import Exchange
import random
from collections.abc import Callable, Sequence
from functools import lru_cache

from todoku.core.backoff import DEFAULT_DELAY, JITTER_SHARE, Expression, evaluate, parse
from todoku.core.http_request import HTTP, HttpRequest, RunPart, is_forwardable, is_run_header
from todoku.core.outcome import DONE, Abort, Done
from todoku.core.signature import SigningKeys, upstash_signature, webhook_headers, webhook_secret

ALWAYS: Final = {"Accept": "*/*", "User-Agent": "todoku"}
"""Default headers of every request."""


def is_installed() -> bool:
    """Whether aiohttp, which is an extra, is installed."""
    return find_spec("aiohttp") is not None


class Sender:
    """Sends HTTP requests and turns responses and errors into outcomes."""

    def __init__(self, settings: Settings, look_up: LookUp | None = None) -> None:
        if not is_installed():
            raise InvalidSetting("HTTP needs aiohttp, which is not installed", hint='pip install "todoku[server]"')
        self._reasons: Reasons | None = None
        self._look_up = look_up
        self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Takes over the settings of the App."""
        self._settings = settings
        self._poster = Poster(settings, self._look_up)
        self._answering = Answering(retry_4xx=settings.http_retry_4xx, final_4xx=settings.http_nonretryable_4xx)

    async def aclose(self) -> None:
        """Closes the connections of this event loop. The next send opens others."""
        await self._poster.aclose()

    async def sent(self, post: OutgoingPost) -> Outcome:
        """Sends a request and returns the outcome. A Retry has a delay only if the receiver asked for one."""
        try:
            answer = await self._poster.post(post)
        except Exception as error:  # noqa: BLE001 - every exception of the client becomes an outcome
            return self._classify(error, post)
        if 200 <= answer.kept.status < 300:
            return classify_status(answer.kept.status, response=answer.kept)
        return classify_status(
            answer.kept.status,
            retry_after=retry_after(answer.headers, time.time()),
            final=_is_final(answer.headers),
            answering=self._answering,
            response=answer.kept,
        )

    def seconds(self, timeout: float | None) -> float:
        """Returns the time limit of one attempt, from the DNS lookup to the last byte of the response."""
        return min(timeout or self._settings.http_timeout_sec, self._settings.max_processing_sec)

    def _classify(self, error: Exception, post: OutgoingPost) -> Outcome:
        if self._reasons is None:
            self._reasons = _client_reasons()
        if isinstance(error, TimeoutError):
            host = urlsplit(post.url).hostname
            return Retry(reason="HTTP_TIMEOUT", detail=f"no complete response of {host} within {post.timeout:g} s")
        # aiohttp wraps the guard's exception in its own.
        return classify(_innermost(error), reasons=self._reasons)


def _innermost(error: Exception) -> Exception:
    from todoku.destinations.guarded_connector import Forbidden  # noqa: PLC0415 - an extra

    inner = getattr(error, "os_error", None)
    return inner if isinstance(inner, Forbidden) else error


def _client_reasons() -> Reasons:
    """Returns the reasons for the exceptions of aiohttp and of the guard."""
    import aiohttp  # noqa: PLC0415 - an extra

    from todoku.destinations.guarded_connector import Forbidden  # noqa: PLC0415 - the same

    return {
        Forbidden: ("SSRF_REFUSED", False),
        aiohttp.ClientConnectorDNSError: ("HTTP_DNS", True),
        aiohttp.ClientSSLError: ("HTTP_TLS", True),
        ssl.SSLError: ("HTTP_TLS", True),
        aiohttp.ClientConnectionError: ("NETWORK", True),
        OSError: ("NETWORK", True),
        aiohttp.ClientResponseError: ("HTTP_BAD_ANSWER", True),
        aiohttp.ClientPayloadError: ("HTTP_BAD_ANSWER", True),
        aiohttp.InvalidURL: ("BAD_REQUEST", False),
        InvalidMessage: ("BAD_REQUEST", False),
        ValueError: ("BAD_REQUEST", False),
    }


def _is_final(headers: Mapping[str, str]) -> bool:
    header = NON_RETRYABLE_HEADER.lower()
    return any(name.lower() == header and value.lower() == "true" for name, value in headers.items())


_TRACE_HEADERS: Final = {
    "x-request-id": "X-Request-Id",
    "x-correlation-id": "X-Correlation-Id",
    "x-event-id": "X-Event-Id",
    **{name: name for name in TRACE},
}


def trace_headers(message: Outgoing) -> dict[str, str]:
    """Returns the message's headers that continue its trace and its request ids at the receiver."""
    found = {
        _TRACE_HEADERS[name.lower()]: value for name, value in message.headers.items() if name.lower() in _TRACE_HEADERS
    }
    if "X-Correlation-Id" in found:
        found.setdefault("X-Request-Id", found["X-Correlation-Id"])
    return found


# ------------------------------------------------------------
# One HTTP request: sent within its deadline, and what came back.

READ_BYTES: Final = 64 << 10
"""So much of an answer's body is read. What it goes on to say is cut off, with its connection."""

THIRD_PARTY_BYTES: Final = 1 << 20
"""So much of the answer of a third party that a workflow run has called is read and handed over."""


class OutgoingPost(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent, complete."""

    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    only_status: bool = False
    """Of a success nobody wants to know more."""
    kept: int = KEPT_BODY_BYTES
    """So much of a success is kept."""


class ReceiverAnswer(msgspec.Struct, frozen=True):
    """What came back: all headers, for who decides by them, and what is kept of it."""

    headers: dict[str, str]
    kept: Response


class Poster:
    """Sends posts. Pooled connections an event loop, made when it is first needed."""

    def __init__(self, settings: Settings, look_up: LookUp | None = None) -> None:
        self._look_up = look_up
        self._guard = Guard(settings.http_allow, settings.http_loopback)
        self._rewrites = rewrites(settings.http_rewrite)
        self._own = Guard(settings.http_allow, loopback=True)
        self._open: dict[tuple[asyncio.AbstractEventLoop, bool], tuple[Exchange, TimeLimits]] = {}
        """By event loop, and whether the URLs are rewritten ones."""

    async def post(self, post: OutgoingPost) -> ReceiverAnswer:
        """What the receiver answered. TimeoutError, or whatever aiohttp raises: it did not."""
        rewritten = self._rewritten(post) if self._rewrites else None
        to, headers = (post.url, post.headers) if rewritten is None else rewritten
        exchange, limits = self._connections(asyncio.get_running_loop(), rewritten is not None)
        with limits.within(post.timeout):
            asked = await exchange.ask(post.method, to, headers, post.body, most=max(READ_BYTES, post.kept))
        succeeded = 200 <= asked.status < 300
        if post.only_status and succeeded:
            return ReceiverAnswer({}, Response(asked.status))
        kept = post.kept if succeeded else KEPT_BODY_BYTES
        return ReceiverAnswer(
            dict(asked.headers), trim_response(asked.status, asked.headers.items(), asked.body, most=kept)
        )

    async def aclose(self) -> None:
        """End the connections of this event loop."""
        loop = asyncio.get_running_loop()
        for rewritten in (False, True):
            if (found := self._open.pop((loop, rewritten), None)) is not None:
                await found[0].aclose()

    def _connections(self, loop: asyncio.AbstractEventLoop, rewritten: bool) -> tuple[Exchange, TimeLimits]:
        found = self._open.get((loop, rewritten))
        if found is None:
            from todoku.destinations.http_exchange import open_exchange  # noqa: PLC0415 - aiohttp is an extra

            found = open_exchange(self._own if rewritten else self._guard, self._look_up), TimeLimits()
            self._open[loop, rewritten] = found
        return found

    def _rewritten(self, post: OutgoingPost) -> tuple[str, Mapping[str, str]] | None:
        """For development: what is for one origin goes to another, which is asked as if it were the first.

        None: it is for none of these origins.
        """
        for given, instead in self._rewrites.items():
            if post.url == given or post.url.startswith((f"{given}/", f"{given}?")):
                host = given.partition("://")[2]
                return instead + post.url[len(given) :], {**post.headers, "Host": host}
        return None


def rewrites(given: tuple[str, ...]) -> dict[str, str]:
    """The setting http_rewrite: from which origin to which."""
    found = {}
    for entry in given:
        origin, equals, instead = entry.partition("=")
        if not equals:
            raise InvalidSetting(f"http_rewrite cannot be {entry!r}", hint="https://host=http://127.0.0.1:9001")
        found[_origin(origin)] = _origin(instead)
    return found


def _origin(text: str) -> str:
    return check_url(text.strip(), what="http_rewrite").rstrip("/")


# ------------------------------------------------------------
# The destination of messages that are HTTP requests themselves, to any host.

_KEYS_TTL: Final = 5.0
"""Seconds for which the signing keys are cached, because fetching them may query the database."""

Keys = Callable[[], SigningKeys]
"""Returns the current signing keys. May block."""

RunBody = Callable[[RunPart, Outgoing], bytes | None]
"""Returns the body of a request that belongs to a workflow run. May block. None: it is not to be sent any more, because
the run has ended."""


class Requests(Sender):
    """Sends each message's request as its publisher specified it, with new signatures for each attempt."""

    name = "https://"
    batch = 1

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        *,
        run_body: RunBody | None = None,
        chance: Callable[[], float] = random.random,
        look_up: LookUp | None = None,
    ) -> None:
        super().__init__(settings, look_up)
        self._chance = chance
        self._keys = keys
        self._run_body = run_body
        self._cached_keys: SigningKeys | None = None
        self._cached_until = 0.0

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Sends each message as one request."""
        return [await self._send_one(message) for message in batch]

    async def _send_one(self, message: Outgoing) -> Outcome:
        try:
            request = msgspec.json.decode(message.headers.get(HTTP, ""), type=HttpRequest)
        except msgspec.DecodeError as error:
            return Abort("BAD_REQUEST", f"the header {HTTP} cannot be read: {error}")
        if request.run is not None and self._run_body is not None:
            body = await asyncio.to_thread(self._run_body, request.run, message)
            if body is None:
                return DONE
            message = msgspec.structs.replace(message, payload=body)
        keys, now = await self._signing_keys(), time.time()
        post = OutgoingPost(
            url=request.url, method=request.method, body=message.payload,
            headers=headers_of(request, message, keys, now),
            timeout=self.seconds(request.timeout), only_status=request.callback is None,
            kept=KEPT_BODY_BYTES if request.run is None else THIRD_PARTY_BYTES,
        )  # fmt: skip
        outcome = await self.sent(post)
        if isinstance(outcome, Done):
            return outcome if request.callback is not None else DONE
        if isinstance(outcome, Retry) and outcome.after is None:
            return Retry(self._delay(request, message.attempt), outcome.reason, outcome.detail, outcome.response)
        return outcome

    def _delay(self, request: HttpRequest, attempt: int) -> float:
        """Returns the seconds until the next attempt: by the request's expression or the default, plus jitter."""
        wait = evaluate(_expression(request.retry_delay), attempt - 1) / 1000
        return wait * (1 + JITTER_SHARE * self._chance())

    async def _signing_keys(self) -> SigningKeys:
        if self._cached_keys is None or time.monotonic() >= self._cached_until:
            self._cached_keys = await asyncio.to_thread(self._keys)
            self._cached_until = time.monotonic() + _KEYS_TTL
        return self._cached_keys


_forwardable = lru_cache(maxsize=1024)(is_forwardable)


@lru_cache(maxsize=1024)
def _expression(text: str | None) -> Expression:
    return DEFAULT_DELAY if text is None else parse(text)


def headers_of(request: HttpRequest, message: Outgoing, keys: SigningKeys, now: float) -> dict[str, str]:
    """Returns all headers of one attempt. Those of todoku override the publisher's."""
    found = {
        "Content-Type": message.content_type,
        **ALWAYS,
        **{
            name: value
            for name, value in request.headers.items()
            if _forwardable(name) or (request.run is not None and is_run_header(name))
        },
        **trace_headers(message),
        "Accept-Encoding": "identity",
        "Upstash-Message-Id": message.message_id,
        "Upstash-Retried": str(message.attempt - 1),
    }
    if request.group is not None:
        found["Upstash-Topic-Name"] = request.group
    if request.schedule is not None:
        found["Upstash-Schedule-Id"] = request.schedule
    if request.caller_ip is not None:
        found["Upstash-Caller-Ip"] = request.caller_ip
    jti = f"jwt_{random.getrandbits(128):032x}"
    found["Upstash-Signature"] = upstash_signature(request.url, message.payload, key=keys.current, now=now, jti=jti)
    found |= webhook_headers(message.message_id, message.payload, secrets=_secrets(keys), now=now)
    return found


@lru_cache(maxsize=16)
def _secrets(keys: SigningKeys) -> tuple[str, str]:
    """Returns the secrets of Standard Webhooks. A receiver that knows either key accepts the signature."""
    return webhook_secret(keys.current), webhook_secret(keys.next)

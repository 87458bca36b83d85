"""Shared by both HTTP destinations: sending a request, and classifying the response."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from todoku.core.destination import Outgoing
from todoku.core.duration import retry_after
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.failure import NON_RETRYABLE_HEADER, Answering, Reasons, classify, classify_status
from todoku.core.http_request import TRACE
from todoku.core.outcome import Outcome, Retry
from todoku.core.settings import Settings
from todoku.destinations.http_post import OutgoingPost, Poster

if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp

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
            return Retry(reason="HTTP_TIMEOUT", detail=f"no complete response within {post.timeout:g} s")
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

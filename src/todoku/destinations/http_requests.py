"""The destination of messages that are HTTP requests themselves, to any host."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from todoku.core.backoff import JITTER_SHARE
from todoku.core.destination import Outgoing
from todoku.core.http_headers import is_forwardable
from todoku.core.http_request import HTTP, HttpRequest
from todoku.core.outcome import DONE, Abort, Done, Outcome, Retry
from todoku.core.retry_expression import DEFAULT_DELAY, Expression, evaluate, parse
from todoku.core.settings import Settings
from todoku.core.signature import upstash_signature, webhook_headers, webhook_secret
from todoku.core.signing_keys import SigningKeys
from todoku.destinations.http_post import OutgoingPost
from todoku.destinations.http_sender import ALWAYS, Sender, trace_headers

if TYPE_CHECKING:
    from todoku.destinations.guarded_connector import LookUp

_KEYS_TTL: Final = 5.0
"""Seconds for which the signing keys are cached, because fetching them may query the database."""

Keys = Callable[[], SigningKeys]
"""Returns the current signing keys. May block."""


class Requests(Sender):
    """Sends each message's request as its publisher specified it, with new signatures for each attempt."""

    name = "https://"
    batch = 1

    def __init__(
        self,
        settings: Settings,
        keys: Keys,
        *,
        chance: Callable[[], float] = random.random,
        look_up: LookUp | None = None,
    ) -> None:
        super().__init__(settings, look_up)
        self._chance = chance
        self._keys = keys
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
        keys, now = await self._signing_keys(), time.time()
        post = OutgoingPost(
            url=request.url, method=request.method, body=message.payload,
            headers=headers_of(request, message, keys, now),
            timeout=self.seconds(request.timeout), only_status=request.callback is None,
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
        **{name: value for name, value in request.headers.items() if _forwardable(name)},
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

"""The HTTP destination of an App's own events: `box.route("order.*", to=todoku.http("https://…"))`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from urllib.parse import quote, urlsplit

from todoku.core.address_guard import check_url
from todoku.core.backoff import Backoff
from todoku.core.cloudevents import DEFAULT_SOURCE, attributes, check_source
from todoku.core.destination import Attempts, FillSecrets, Outgoing
from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError, classify
from todoku.core.http_request import check_headers
from todoku.core.outcome import DONE, Done, Duration, Outcome, seconds
from todoku.core.secret_text import names_secret
from todoku.core.settings import Settings
from todoku.core.signature import webhook_headers, webhook_key
from todoku.destinations.http_sender import ALWAYS, OutgoingPost, Sender, trace_headers
from todoku.destinations.secret_options import SecretOptions


class Endpoint(Sender):
    """Sends messages to one URL: the payload unchanged, CloudEvents in headers, signed as Standard Webhooks."""

    batch = 1

    def __init__(
        self, url: str, *, name: str, method: str, headers: Mapping[str, str], timeout: float | None,
        secrets: tuple[str, ...], source: str, attempts: Attempts,
    ) -> None:  # fmt: skip
        super().__init__(Settings())
        self.name = name
        self.attempts = attempts
        self._url = url
        self._method = method
        self._headers = headers
        self._timeout = timeout
        self._signed_with = secrets
        self._secrets = SecretOptions()
        self._names_secrets = any(map(names_secret, (*headers.values(), *secrets)))
        self._source = source

    def for_route(self, *, headers: Mapping[str, str] | None, timeout: Duration | None) -> Endpoint:
        """Returns a copy with these headers beside its own, and this time limit; None: its own."""
        return Endpoint(
            self._url, name=self.name, method=self._method, headers={**self._headers, **check_headers(headers or {})},
            timeout=self._timeout if timeout is None else seconds(timeout, what="timeout"), secrets=self._signed_with,
            source=self._source, attempts=self.attempts,
        )  # fmt: skip

    @property
    def at_once(self) -> int:
        """The most concurrent requests of one worker."""
        return self._settings.http_per_host

    def use_secrets(self, fill: FillSecrets) -> None:
        """Takes what reads the secrets that its headers and `secret` name."""
        self._secrets.use(fill)

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Sends each message as one request."""
        return [await self._send_one(message) for message in batch]

    async def _send_one(self, message: Outgoing) -> Outcome:
        own, signed_with = self._headers, self._signed_with
        if self._names_secrets:
            try:
                own, signed_with = await self._secrets.filled((own, signed_with))
            except DeliveryError as error:
                return classify(error)
        headers = {
            "Content-Type": message.content_type,
            **ALWAYS,
            **own,
            **trace_headers(message),
            **{f"ce-{name}": _ascii(value) for name, value in attributes(message, source=self._source).items()},
            "Accept-Encoding": "identity",
        }
        if signed_with:
            headers |= webhook_headers(message.message_id, message.payload, secrets=signed_with, now=time.time())
        post = OutgoingPost(
            url=self._url, method=self._method, headers=headers, body=message.payload,
            timeout=self.seconds(self._timeout), only_status=True,
        )  # fmt: skip
        outcome = await self.sent(post)
        return DONE if isinstance(outcome, Done) else outcome


def _ascii(value: str) -> str:
    """Percent-encodes all but printable ASCII, as the HTTP binding of CloudEvents requires."""
    plain = value.isascii() and value.isprintable() and not {*'"%'} & {*value}
    return value if plain else quote(value, safe=" !#$&'()*+,/:;=?@[]")


def http(
    url: str,
    *,
    name: str | None = None,
    method: str = "POST",
    headers: Mapping[str, str] | None = None,
    timeout: Duration | None = None,
    secret: str | Sequence[str] | None = None,
    source: str = DEFAULT_SOURCE,
    max_attempts: int | None = None,
    backoff: Backoff | None = None,
) -> Endpoint:
    """Creates a destination over HTTP: each message is a request to `url`, and is delivered if the response is 2xx.

    `secret`: `whsec_…`, for signatures of Standard Webhooks; during a rotation, several. It and the values of `headers`
    may be `secret://…`. `timeout`: of one attempt, from the DNS lookup to the last byte of the response (default: the
    setting). `max_attempts`, `backoff`: default to the App's. Private addresses are refused unless TODOKU_HTTP_ALLOW
    lists them.
    """
    checked_url = check_url(url, what="url")
    parts = urlsplit(checked_url)
    secrets = () if secret is None else _secrets(secret)
    return Endpoint(
        checked_url,
        name=name or f"http:{parts.netloc}{parts.path}",
        method=_method(method),
        headers=check_headers(headers or {}),
        timeout=None if timeout is None else seconds(timeout, what="timeout"),
        secrets=secrets,
        source=check_source(source),
        attempts=Attempts(max_attempts=max_attempts, backoff=backoff),
    )


def _secrets(given: str | Sequence[str]) -> tuple[str, ...]:
    """Returns the secrets to sign with. An empty list is refused, because everything would be sent unsigned."""
    secrets = (given,) if isinstance(given, str) else tuple(given)
    if not secrets:
        raise InvalidSetting(
            "secret is an empty list", hint="whsec_ and base64; leave it out to send without a signature"
        )
    for each in secrets:
        if not names_secret(each):
            webhook_key(each)
    return secrets


def _method(method: str) -> str:
    if method not in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        raise InvalidSetting(f"method cannot be {method!r}", hint="GET, POST, PUT, PATCH or DELETE")
    return method

"""Where alerts are told: the log, a webhook, mail, Sentry. Each tells or raises; none keeps anything."""

from __future__ import annotations

import http.client
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import TYPE_CHECKING, Any, Final, Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from todoku.core.address_guard import Guard, check_url
from todoku.core.alert import Kind, Name, Telling, action, summary
from todoku.core.alert_settings import Alerting
from todoku.core.errors import CannotStart
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log

_READ: Final = 65_536


def post(url: str, body: bytes, *, settings: Settings, seconds: float, content_type: str = "application/json") -> int:
    """The status of the answer. OSError (a TimeoutError, a refusal of the guard, …): there was none in time."""
    found = urlsplit(check_url(url, what="alert_webhook"))
    host, port = found.hostname or "", found.port or (443 if found.scheme == "https" else 80)
    address = _address(host, port, settings)
    ends = time.monotonic() + seconds
    with _secured(socket.create_connection(address, timeout=seconds), host, found.scheme) as opened:
        late = threading.Timer(max(0.01, ends - time.monotonic()), _end, [opened])  # however slowly it answers
        late.daemon = True
        late.start()
        try:
            status = _asked(found, opened, body, content_type)
        except (http.client.HTTPException, ssl.SSLError, ValueError) as error:
            raise ConnectionError(f"no answer that can be read: {type(error).__name__}") from error
        finally:
            late.cancel()
    if time.monotonic() >= ends:  # what was cut off may look like an answer
        raise TimeoutError(f"no whole answer within {seconds:g} s")
    return status


def _address(host: str, port: int, settings: Settings) -> tuple[str, int]:
    """One address of the host, if none of them is forbidden."""
    guard = Guard(allow=settings.http_allow, loopback=settings.http_loopback)
    found = [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if (why := guard.refuses(address, host)) is not None:
            raise ConnectionRefusedError(f"{host} must not be sent to: {why}")
    return found[0], port


def _secured(plain: socket.socket, host: str, scheme: str) -> socket.socket:
    """The socket; its handshake, if there is to be one, is made by whoever uses it first."""
    if scheme == "http":
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)


def _asked(url: SplitResult, opened: socket.socket, body: bytes, content_type: str) -> int:
    if isinstance(opened, ssl.SSLSocket):
        opened.do_handshake()
    connection = http.client.HTTPConnection(url.netloc)
    connection.sock = opened
    path = (url.path or "/") + (f"?{url.query}" if url.query else "")
    headers = {"Content-Type": content_type, "User-Agent": "todoku", "Accept-Encoding": "identity"}
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    answer.read(_READ)
    return answer.status


def _end(opened: socket.socket) -> None:
    try:
        socket.socket.shutdown(opened, socket.SHUT_RDWR)  # below TLS, which would want to say goodbye
    except OSError:
        return  # it has ended by itself


if TYPE_CHECKING:
    import sentry_sdk

_PATIENCE: Final = 10.0
"""Seconds a sink may take: a daemon that waits for one tells the others late."""


class News(msgspec.Struct, frozen=True, kw_only=True):
    """An alert as people are told it; a webhook gets it as JSON. `text` is what chat systems show of a webhook."""

    text: str
    alert: Name
    state: Kind
    summary: str
    action: str
    value: float
    threshold: float
    since: datetime
    database: str
    host: str


def news(telling: Telling, database: str) -> News:
    """What to tell. `database`: which one, without its password."""
    known = telling.standing
    said = summary(known.name, known.value)
    title = {"begun": said, "reminder": f"still: {said}", "over": f"over: {known.name}"}[telling.kind]
    return News(
        text=f"todoku: {title} ({database})",
        alert=known.name,
        state=telling.kind,
        summary=said,
        action=action(known.name),
        value=known.value,
        threshold=known.threshold,
        since=datetime.fromtimestamp(round(known.since), UTC),
        database=database,
        host=socket.gethostname(),
    )


class Sink(Protocol):
    """One place where alerts are told."""

    name: str

    def tell(self, news: News) -> None:
        """Tell it, or raise. Blocks for seconds at most."""


def sinks(settings: Settings) -> tuple[Sink, ...]:
    """Those that are set; the log is always told."""
    alerts = settings.alerts
    found: list[Sink] = [InLog()]
    if alerts.webhook is not None:
        found.append(Webhook(alerts.webhook, settings))
    if alerts.mail_to:
        found.append(Mail(alerts))
    if alerts.sentry is not None:
        found.append(InSentry(alerts.sentry))
    return tuple(found)


class InLog:
    """A line for whoever reads logs."""

    name = "log"

    def tell(self, news: News) -> None:
        """As Sink."""
        log = Log(alert=news.alert, state=news.state, value=round(news.value, 6), threshold=news.threshold)
        (log.info if news.state == "over" else log.warning)("ALERT", summary=news.summary, since=news.since)


class Webhook:
    """`News` as JSON, posted by the daemon itself: an alert about what waits must not wait behind it."""

    name = "webhook"

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = url
        self._settings = settings

    def tell(self, news: News) -> None:
        """As Sink. Any answer but a 2xx is none."""
        status = post(self._url, msgspec.json.encode(news), settings=self._settings, seconds=_PATIENCE)
        if not 200 <= status < 300:
            raise ConnectionError(f"the webhook answered {status}")


class Mail:
    """A short mail to everybody in `alert_mail_to`."""

    name = "mail"

    def __init__(self, settings: Alerting) -> None:
        self._to = settings.mail_to
        self._from = settings.mail_from
        self._server = settings.mail_smtp

    def tell(self, news: News) -> None:
        """As Sink."""
        mail = EmailMessage()
        mail["Subject"] = news.text.removesuffix(f" ({news.database})")
        mail["From"], mail["To"] = self._from, ", ".join(self._to)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=self._from.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(_letter(news))
        send_mail(self._server, mail, self._to)


def _letter(news: News) -> str:
    lines = [
        news.summary, "", f"alert      {news.alert} ({news.state})", f"value      {news.value:g}",
        f"threshold  {news.threshold:g}", f"since      {news.since.isoformat()}", f"database   {news.database}",
        f"told by    {news.host}",
    ]  # fmt: skip
    return "\n".join(lines if news.state == "over" else [*lines, "", f"What to do: {news.action}"]) + "\n"


def send_mail(server: str, mail: EmailMessage, to: Sequence[str]) -> None:
    """Hand a mail to `smtp://user:password@host:port` (STARTTLS where it is offered) or `smtps://…`.

    A password is only given over TLS.
    """
    url = urlsplit(server)
    host, secure = url.hostname or "", url.scheme == "smtps"
    context = ssl.create_default_context()
    smtp: smtplib.SMTP = (
        smtplib.SMTP_SSL(host, url.port or 465, timeout=_PATIENCE, context=context)
        if secure
        else smtplib.SMTP(host, url.port or 25, timeout=_PATIENCE)
    )
    with smtp:
        smtp.ehlo_or_helo_if_needed()
        if not secure and smtp.has_extn("starttls"):
            smtp.starttls(context=context)
            secure = True
        if url.username:
            if not secure:
                raise ConnectionError("the mail server offers no TLS, and the password is not for everybody")
            smtp.login(unquote(url.username), unquote(url.password or ""))
        smtp.send_message(mail, to_addrs=list(to))


class InSentry:
    """An event in Sentry, by a client of its own: the application's own Sentry, if there is one, is left alone."""

    name = "sentry"

    def __init__(self, dsn: str) -> None:
        try:
            import sentry_sdk  # noqa: PLC0415 - the extra `sentry`
        except ImportError as error:
            raise CannotStart("alert_sentry needs sentry-sdk", hint='pip install "todoku[sentry]"') from error
        self._scope: sentry_sdk.Scope = sentry_sdk.Scope()
        self._client = sentry_sdk.Client(dsn=dsn, default_integrations=False, auto_enabling_integrations=False)

    def tell(self, news: News) -> None:
        """As Sink. Sentry's client says nothing of what did not arrive."""
        event: dict[str, Any] = {
            "message": news.text,
            "level": "info" if news.state == "over" else "error",
            "logger": "todoku.alerts",
            "fingerprint": ["todoku", news.alert, news.database],
            "tags": {"alert": news.alert, "state": news.state, "database": news.database},
            "extra": {"value": news.value, "threshold": news.threshold, "since": news.since, "action": news.action},
        }
        self._client.capture_event(event, scope=self._scope)  # type: ignore[arg-type]  # its TypedDict is for itself
        self._client.flush(timeout=_PATIENCE)

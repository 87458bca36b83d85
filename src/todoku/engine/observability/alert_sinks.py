"""The sinks of alerts: log, webhook, mail, Sentry. Each sends an alert or raises; none stores anything."""

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
from todoku.core.alert import Alerting, DueAlert, Kind, Name, action, summary
from todoku.core.errors import CannotStart
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log

_READ: Final = 65_536


def post(url: str, body: bytes, *, settings: Settings, seconds: float, content_type: str = "application/json") -> int:
    """Posts a body and returns the status of the answer. OSError (timeout, address refused, …): there was none."""
    found = urlsplit(check_url(url, what="alert_webhook"))
    host, port = found.hostname or "", found.port or (443 if found.scheme == "https" else 80)
    address = _resolve(host, port, settings)
    ends = time.monotonic() + seconds
    with _wrap_tls(socket.create_connection(address, timeout=seconds), host, found.scheme) as opened:
        # Bounds the whole exchange; the socket's own timeout bounds each read only.
        timer = threading.Timer(max(0.01, ends - time.monotonic()), _shut_down, [opened])
        timer.daemon = True
        timer.start()
        try:
            status = _request(found, opened, body, content_type)
        except (http.client.HTTPException, ssl.SSLError, ValueError) as error:
            raise ConnectionError(f"the answer cannot be read: {type(error).__name__}") from error
        finally:
            timer.cancel()
    if time.monotonic() >= ends:  # an answer that was cut off may look complete
        raise TimeoutError(f"no complete answer within {seconds:g} s")
    return status


def _resolve(host: str, port: int, settings: Settings) -> tuple[str, int]:
    """Returns an address of the host. ConnectionRefusedError if any of its addresses is forbidden."""
    guard = Guard(allow=settings.http_allow, loopback=settings.http_loopback)
    found = [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in found:
        if (why := guard.refuses(address, host)) is not None:
            raise ConnectionRefusedError(f"requests to {host} are forbidden: {why}")
    return found[0], port


def _wrap_tls(plain: socket.socket, host: str, scheme: str) -> socket.socket:
    """Wraps the socket in TLS for https. The handshake is left to the caller, so that the deadline covers it."""
    if scheme == "http":
        return plain
    return ssl.create_default_context().wrap_socket(plain, server_hostname=host, do_handshake_on_connect=False)


def _request(url: SplitResult, opened: socket.socket, body: bytes, content_type: str) -> int:
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


def _shut_down(opened: socket.socket) -> None:
    try:
        socket.socket.shutdown(opened, socket.SHUT_RDWR)  # below TLS, whose own shutdown could block
    except OSError:
        return  # already closed


if TYPE_CHECKING:
    import sentry_sdk

_TIMEOUT: Final = 10.0
"""Seconds a sink may take: a slow one delays the others."""


class AlertNotice(msgspec.Struct, frozen=True, kw_only=True):
    """An alert as it is sent; a webhook gets it as JSON. `text` is the field that chat systems show of a webhook."""

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


def build_notice(telling: DueAlert, database: str) -> AlertNotice:
    """Builds the alert to send. `database` is its URL without the password."""
    known = telling.standing
    text = summary(known.name, known.value)
    title = {"begun": text, "reminder": f"still: {text}", "over": f"over: {known.name}"}[telling.kind]
    return AlertNotice(
        text=f"todoku: {title} ({database})",
        alert=known.name,
        state=telling.kind,
        summary=text,
        action=action(known.name),
        value=known.value,
        threshold=known.threshold,
        since=datetime.fromtimestamp(round(known.since), UTC),
        database=database,
        host=socket.gethostname(),
    )


class Sink(Protocol):
    """A receiver of alerts."""

    name: str

    def send(self, notice: AlertNotice) -> None:
        """Sends the alert, or raises. Blocks for some seconds at most."""


def sinks(settings: Settings) -> tuple[Sink, ...]:
    """Returns the configured sinks; the log is always one."""
    alerts = settings.alerts
    found: list[Sink] = [LogSink()]
    if alerts.webhook is not None:
        found.append(Webhook(alerts.webhook, settings))
    if alerts.mail_to:
        found.append(Mail(alerts))
    if alerts.sentry is not None:
        found.append(SentrySink(alerts.sentry))
    return tuple(found)


class LogSink:
    """Writes alerts to the log."""

    name = "log"

    def send(self, notice: AlertNotice) -> None:
        """As Sink."""
        log = Log(alert=notice.alert, state=notice.state, value=round(notice.value, 6), threshold=notice.threshold)
        (log.info if notice.state == "over" else log.warning)("ALERT", summary=notice.summary, since=notice.since)


class Webhook:
    """Posts alerts as JSON, directly and not as a delivery: an alert about a full queue must not wait in it."""

    name = "webhook"

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = url
        self._settings = settings

    def send(self, notice: AlertNotice) -> None:
        """As Sink. Raises for any status but 2xx."""
        status = post(self._url, msgspec.json.encode(notice), settings=self._settings, seconds=_TIMEOUT)
        if not 200 <= status < 300:
            raise ConnectionError(f"the webhook answered {status}")


class Mail:
    """Sends alerts as short mails to `alert_mail_to`."""

    name = "mail"

    def __init__(self, settings: Alerting) -> None:
        self._to = settings.mail_to
        self._from = settings.mail_from
        self._server = settings.mail_smtp

    def send(self, notice: AlertNotice) -> None:
        """As Sink."""
        mail = EmailMessage()
        mail["Subject"] = notice.text.removesuffix(f" ({notice.database})")
        mail["From"], mail["To"] = self._from, ", ".join(self._to)
        mail["Date"], mail["Message-ID"] = formatdate(), make_msgid(domain=self._from.rpartition("@")[2])
        mail["Auto-Submitted"] = "auto-generated"
        mail.set_content(_mail_text(notice))
        send_mail(self._server, mail, self._to)


def _mail_text(notice: AlertNotice) -> str:
    lines = [
        notice.summary, "", f"alert      {notice.alert} ({notice.state})", f"value      {notice.value:g}",
        f"threshold  {notice.threshold:g}", f"since      {notice.since.isoformat()}", f"database   {notice.database}",
        f"sent by    {notice.host}",
    ]  # fmt: skip
    return "\n".join(lines if notice.state == "over" else [*lines, "", f"What to do: {notice.action}"]) + "\n"


def send_mail(server: str, mail: EmailMessage, to: Sequence[str]) -> None:
    """Sends a mail by `smtp://user:password@host:port` (with STARTTLS if offered) or `smtps://…`.

    The password is sent over TLS only.
    """
    url = urlsplit(server)
    host, secure = url.hostname or "", url.scheme == "smtps"
    context = ssl.create_default_context()
    smtp: smtplib.SMTP = (
        smtplib.SMTP_SSL(host, url.port or 465, timeout=_TIMEOUT, context=context)
        if secure
        else smtplib.SMTP(host, url.port or 25, timeout=_TIMEOUT)
    )
    with smtp:
        smtp.ehlo_or_helo_if_needed()
        if not secure and smtp.has_extn("starttls"):
            smtp.starttls(context=context)
            secure = True
        if url.username:
            if not secure:
                raise ConnectionError("the mail server offers no TLS, without which the password is not sent")
            smtp.login(unquote(url.username), unquote(url.password or ""))
        smtp.send_message(mail, to_addrs=list(to))


class SentrySink:
    """Sends alerts to Sentry, with a separate client: the application's Sentry is not affected."""

    name = "sentry"

    def __init__(self, dsn: str) -> None:
        try:
            import sentry_sdk  # noqa: PLC0415 - the extra `sentry`
        except ImportError as error:
            raise CannotStart("alert_sentry needs sentry-sdk", hint='pip install "todoku[sentry]"') from error
        self._scope: sentry_sdk.Scope = sentry_sdk.Scope()
        self._client = sentry_sdk.Client(dsn=dsn, default_integrations=False, auto_enabling_integrations=False)

    def send(self, notice: AlertNotice) -> None:
        """As Sink, except that Sentry's client does not report failures."""
        event: dict[str, Any] = {
            "message": notice.text,
            "level": "info" if notice.state == "over" else "error",
            "logger": "todoku.alerts",
            "fingerprint": ["todoku", notice.alert, notice.database],
            "tags": {"alert": notice.alert, "state": notice.state, "database": notice.database},
            "extra": {
                "value": notice.value,
                "threshold": notice.threshold,
                "since": notice.since,
                "action": notice.action,
            },
        }
        self._client.capture_event(event, scope=self._scope)  # type: ignore[arg-type]  # Sentry's TypedDict is not exported
        self._client.flush(timeout=_TIMEOUT)

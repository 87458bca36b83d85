"""Mail: by SMTP, or, where no server is named, into a directory, so that the example runs alone."""

from __future__ import annotations

import os
import smtplib
import ssl
from email.message import EmailMessage
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, unquote, urlsplit

import todoku
from users_example.files import write_atomically
from users_example.settings import Settings

_SECONDS = 10.0
_PERMANENT = 500


class MailRefused(Exception):
    """The server will never take this mail: trying again would annoy it and help nobody."""


class Mailer(Protocol):
    """Where letters go."""

    def send(self, letter: EmailMessage) -> None:
        """Returns when somebody else is responsible for it. MailRefused: for good; any other error: not now."""


def letter(*, sender: str, to: str, subject: str, text: str, key: str) -> EmailMessage:
    """One mail. `key` is the same on every attempt, so the Message-ID is, and mailboxes can tell a repetition."""
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = to
    mail["Subject"] = " ".join(subject.split()) or "(no subject)"
    mail["Message-ID"] = f"<{key.replace(':', '.')}@{sender.rpartition('@')[2]}>"
    mail["X-Worker"] = str(os.getpid())
    mail.set_content(text)
    return mail


class Smtp:
    """A connection per mail: smtp:// (STARTTLS where it is offered) or smtps://, with user:password@ if need be."""

    def __init__(self, url: str) -> None:
        self._at = _checked(url)

    def send(self, letter: EmailMessage) -> None:
        """As Mailer.send."""
        try:
            with self._connection() as server:
                server.send_message(letter)
        except smtplib.SMTPRecipientsRefused as error:
            code, said = next(iter(error.recipients.values()))
            raise _failed(code, said) from error
        except smtplib.SMTPResponseException as error:
            raise _failed(error.smtp_code, error.smtp_error) from error

    def _connection(self) -> smtplib.SMTP:
        at, tls = self._at, ssl.create_default_context()
        assert at.hostname is not None  # noqa: S101 - checked
        if at.scheme == "smtps":
            server: smtplib.SMTP = smtplib.SMTP_SSL(at.hostname, at.port or 465, timeout=_SECONDS, context=tls)
        else:
            server = smtplib.SMTP(at.hostname, at.port or 25, timeout=_SECONDS)
        server.ehlo_or_helo_if_needed()
        if at.scheme == "smtp" and server.has_extn("starttls"):
            server.starttls(context=tls)
            server.ehlo()
        elif at.scheme == "smtp" and at.username:
            server.close()
            raise todoku.Abort("SMTP_NOT_ENCRYPTED", "the server offers no STARTTLS: the password would be readable")
        if at.username:
            server.login(unquote(at.username), unquote(at.password or ""))
        return server


def _checked(url: str) -> SplitResult:
    at = urlsplit(url)
    try:
        known = at.scheme in ("smtp", "smtps") and bool(at.hostname) and (at.port is None or at.port > 0)
    except ValueError:  # a port that is no number
        known = False
    if not known:
        raise todoku.InvalidSetting("SMTP_URL cannot be read", hint="smtp://user:password@host:587")
    return at


def _failed(code: int, said: bytes | str) -> Exception:
    """4xx: the server asks for another attempt. 5xx: it will say the same again."""
    text = f"{code} {said.decode('utf-8', 'replace') if isinstance(said, bytes) else said}"
    return MailRefused(text) if code >= _PERMANENT else ConnectionError(text)


class Folder:
    """A file per mail, named by its Message-ID: a repetition takes the place of the first."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def send(self, letter: EmailMessage) -> None:
        """As Mailer.send."""
        name = f"{letter['Message-ID'].strip('<>')}.{letter['To']}".replace("/", "_")
        write_atomically(self._path / f"{name}.eml", bytes(letter))


def open_mailer(settings: Settings) -> Mailer:
    """SMTP where SMTP_URL says so, else files in OUTBOX_DIR."""
    return Folder(settings.outbox) if settings.smtp_url is None else Smtp(settings.smtp_url)

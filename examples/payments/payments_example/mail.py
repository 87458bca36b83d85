"""Mail: to the server of SMTP_URL, or, where none is named, into a directory, so that the example runs alone."""

from __future__ import annotations

import smtplib
from email.message import EmailMessage
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import todoku
from payments_example.events import Status
from payments_example.settings import Settings

SUBJECTS: Final[dict[Status, str]] = {
    "succeeded": "Thank you, we have your payment",
    "failed": "Your payment did not go through",
    "refunded": "Your payment was refunded",
}
REMINDER: Final = "Your payment is still open"


def send(settings: Settings, *, to: str, subject: str, intent: str, key: str) -> None:
    """Send one mail. `key` is the same on every attempt: mailboxes can tell a repetition by its Message-ID.

    Abort: the server will never take it. Any other error: not now.
    """
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = settings.mail_from, to, subject
    mail["Message-ID"] = f"<{key.replace(':', '.')}@{settings.mail_from.rpartition('@')[2]}>"
    mail.set_content(f"{subject}.\n\nPayment {intent}\n")
    if settings.smtp_url is None:
        _keep(settings.outbox, mail)
        return
    at = urlsplit(settings.smtp_url)
    try:
        with smtplib.SMTP(at.hostname or "", at.port or 25, timeout=10) as server:
            server.send_message(mail)
    except smtplib.SMTPRecipientsRefused as error:
        code = max(code for code, _ in error.recipients.values())
        if code >= 500:
            raise todoku.Abort("MAILBOX_UNKNOWN") from error
        raise


def _keep(folder: Path, mail: EmailMessage) -> None:
    """A repetition takes the place of the first."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{mail['Message-ID'].strip('<>')}.eml").write_bytes(bytes(mail))

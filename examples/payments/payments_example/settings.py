"""The settings of the example, read once from the environment. todoku reads its own (TODOKU_…)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, cast

import msgspec

import todoku

DEVELOPMENT: Final = "whsec_for_development_only"
"""What signs events where nobody has set a secret: for trying it out, on this machine."""

Mode = Literal["embedded", "queue"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One process's settings; README.md has them as a table."""

    database: str = "sqlite:///payments.db"
    mode: Mode = "embedded"
    stripe_secrets: tuple[str, ...] = (DEVELOPMENT,)
    worker_url: str = "http://127.0.0.1:8340/worker"
    queue_url: str | None = None
    queue_token: str | None = None
    signing_keys: tuple[str, str] = ("", "")
    spool: str = "payments-spool.db"
    admin_token: str | None = None
    smtp_url: str | None = None
    mail_from: str = "payments@payments.example"
    outbox: Path = Path("outbox")
    host: str = "127.0.0.1"
    port: int = 8340
    daemon_url: str | None = None
    """The daemon that counts what this process publishes."""
    first_wait: float = 1.0
    """Seconds before the first retry; then twice that, then four times."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings, or InvalidSetting naming the one that cannot be."""
    usual, given = Settings(), {name: value for name, value in environ.items() if value.strip()}
    port, wait = given.get("PORT", "8340"), given.get("FIRST_WAIT_SEC", "1")
    if not port.isdecimal() or int(port) > 65_535:
        raise todoku.InvalidSetting(f"PORT cannot be {port!r}", hint="0 to 65535")
    if not wait.replace(".", "", 1).isdecimal() or float(wait) <= 0:
        raise todoku.InvalidSetting(f"FIRST_WAIT_SEC cannot be {wait!r}", hint="seconds, more than 0")
    mode = given.get("MODE", usual.mode)
    if mode not in ("embedded", "queue"):
        raise todoku.InvalidSetting(f"MODE cannot be {mode!r}", hint="embedded or queue")
    if mode == "queue" and not {"QSTASH_URL", "QSTASH_TOKEN", "QSTASH_CURRENT_SIGNING_KEY"} <= given.keys():
        raise todoku.InvalidSetting(
            "MODE=queue needs to know its queue", hint="set QSTASH_URL, QSTASH_TOKEN and QSTASH_CURRENT_SIGNING_KEY"
        )
    secrets = tuple(filter(None, (part.strip() for part in given.get("STRIPE_WEBHOOK_SECRET", "").split(","))))
    return Settings(
        database=given.get("TODOKU_DATABASE") or given.get("DATABASE_URL") or usual.database,
        mode=cast("Mode", mode),
        stripe_secrets=secrets or usual.stripe_secrets,
        worker_url=given.get("WORKER_URL", f"http://127.0.0.1:{port}/worker"),
        queue_url=given.get("QSTASH_URL"),
        queue_token=given.get("QSTASH_TOKEN"),
        signing_keys=(given.get("QSTASH_CURRENT_SIGNING_KEY", ""), given.get("QSTASH_NEXT_SIGNING_KEY", "")),
        spool=given.get("SPOOL", usual.spool),
        admin_token=given.get("ADMIN_TOKEN"),
        smtp_url=given.get("SMTP_URL"),
        mail_from=given.get("MAIL_FROM", usual.mail_from),
        outbox=Path(given.get("OUTBOX_DIR", "outbox")),
        host=given.get("HOST", usual.host),
        port=int(port),
        daemon_url=given.get("DAEMON_URL"),
        first_wait=float(wait),
    )

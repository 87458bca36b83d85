"""The settings of the example, read once from the environment. todoku reads its own (WORKER_COUNT, TODOKU_…)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, cast

import msgspec

import todoku

DEFAULT_DATABASE = "sqlite:///workers.db"
Enqueue = Literal["atomic", "best_effort"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One process's settings; README.md has them as a table. Durations are seconds."""

    database: str = DEFAULT_DATABASE
    enqueue: Enqueue = "atomic"
    smtp_url: str | None = None
    mail_from: str = "welcome@users.example"
    outbox: Path = Path("outbox")
    exports: Path = Path("exports")
    user_created: float = 0.5
    data_analysis: float = 2.0
    email_notification: float = 0.3
    stats_every: float = 30.0


def database_url(named: str | None, environ: Mapping[str, str]) -> str:
    """The database somebody named, as a path or a URL; else the environment's; else workers.db in this directory."""
    if named is None:
        return environ.get("TODOKU_DATABASE") or environ.get("DATABASE_URL") or DEFAULT_DATABASE
    return named if "://" in named else f"sqlite:///{named}"


def read_settings(environ: Mapping[str, str], database: str | None = None) -> Settings:
    """The settings, or InvalidSetting naming the one that cannot be."""
    enqueue = environ.get("ENQUEUE", "atomic")
    if enqueue not in ("atomic", "best_effort"):
        raise todoku.InvalidSetting(f"ENQUEUE cannot be {enqueue!r}", hint="atomic or best_effort")
    return Settings(
        database=database_url(database, environ),
        enqueue=cast("Enqueue", enqueue),
        smtp_url=environ.get("SMTP_URL") or None,
        mail_from=environ.get("MAIL_FROM", "welcome@users.example"),
        outbox=Path(environ.get("OUTBOX_DIR", "outbox")),
        exports=Path(environ.get("EXPORT_DIR", "exports")),
        user_created=_number(environ, "USER_CREATED_MS", 500) / 1000,
        data_analysis=_number(environ, "DATA_ANALYSIS_MS", 2000) / 1000,
        email_notification=_number(environ, "EMAIL_NOTIFICATION_MS", 300) / 1000,
        stats_every=max(_number(environ, "STATS_INTERVAL_SEC", 30), 0.01),
    )


def _number(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number < 86_400_000:
        raise todoku.InvalidSetting(f"{name} cannot be {text!r}", hint="a number, 0 or more")
    return number

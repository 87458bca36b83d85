"""The settings of the example, read once from the environment. todoku reads its own (OUTBOX_…, TODOKU_…)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

import todoku

PORT = 8330
KAFKA_TOPIC = "orders"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One process's settings; README.md has them as a table."""

    shop: str
    """The shop's own database: PostgreSQL with `wal_level = logical`."""
    database: str = "sqlite:///capture.db"
    """todoku's database."""
    webhook: str = f"http://127.0.0.1:{PORT}/orders"
    kafka: str | None = None
    """A Kafka server; None: there is none, and the handler and the webhook are the only ones."""
    arrivals: Path = Path()
    """The directory in which the handler and the webhook note what arrives."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings, or InvalidSetting naming the one that cannot be."""
    shop = environ.get("SHOP_DATABASE_URL") or ""
    if not shop.startswith(("postgresql://", "postgres://")):
        hint = "postgresql://user@host/database, of a server with wal_level = logical"
        raise todoku.InvalidSetting("SHOP_DATABASE_URL names no PostgreSQL database", hint=hint)
    return Settings(
        shop=shop,
        database=environ.get("TODOKU_DATABASE") or environ.get("DATABASE_URL") or "sqlite:///capture.db",
        webhook=f"http://127.0.0.1:{read_port(environ, 'PORT', PORT)}/orders",
        kafka=environ.get("KAFKA_SERVERS") or None,
        arrivals=Path(environ.get("ARRIVALS") or "."),
    )


def read_port(environ: Mapping[str, str], name: str, default: int) -> int:
    """A port."""
    text = environ.get(name) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= 65_535:
        raise todoku.InvalidSetting(f"{name} cannot be {text!r}", hint="1 to 65535")
    return int(text)

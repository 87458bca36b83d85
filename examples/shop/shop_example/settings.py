"""The settings of the example, read once from the environment. todoku reads its own (OUTBOX_…, TODOKU_…)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

import msgspec

import todoku

NATS: Final = "nats://127.0.0.1:4222"
BACKOFF: Final = {"OUTBOX_BASE_BACKOFF_SECONDS": "1", "OUTBOX_MAX_BACKOFF_SECONDS": "60"}
"""The seed's `LEAST(60, 2 ^ attempts)` seconds."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One process's settings; README.md has them as a table."""

    database: str = "sqlite:///shop.db"
    points_database: str = "sqlite:///points.db"
    broker: str = NATS
    address: str = "shop"
    port: int = 8330


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings, or InvalidSetting naming the one that cannot be."""
    broker = environ.get("BROKER_URL") or NATS
    if broker.partition("://")[0] not in ("nats", "amqp", "amqps"):
        raise todoku.InvalidSetting("BROKER_URL names no broker of the shop", hint="nats://… or amqp://…")
    port = environ.get("PORT") or "8330"
    if not port.isdecimal() or int(port) > 65_535:
        raise todoku.InvalidSetting(f"PORT cannot be {port!r}", hint="0 to 65535")
    return Settings(
        database=environ.get("TODOKU_DATABASE") or environ.get("DATABASE_URL") or "sqlite:///shop.db",
        points_database=environ.get("POINTS_DATABASE_URL") or "sqlite:///points.db",
        broker=broker,
        address=environ.get("BROKER_ADDRESS") or "shop",
        port=int(port),
    )


def wait_as_the_seed_does(environ: MutableMapping[str, str]) -> None:
    """Retries wait as long as the seed's do, unless somebody has said otherwise."""
    if not any(name in environ for name in ("OUTBOX_BACKOFF_SEC", "TODOKU_BACKOFF_SEC", *BACKOFF)):
        environ.update(BACKOFF)

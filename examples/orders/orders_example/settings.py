"""The settings of the example, read once from the environment. todoku reads its own (OUTBOX_…, TODOKU_…)."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

import msgspec

import todoku

DEFAULT_DATABASE = "sqlite:///orders.db"
DEFAULT_INSTRUMENTS = "7203.T=100,AAPL=1,USDJPY=1000,BTC-USD=0.001"
DEFAULT_CONCURRENCY = 4
"""Of OUTBOX_CONCURRENCY, by the seed. todoku's own default for handlers is another."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One process's settings; README.md has them as a table. Durations are seconds."""

    database: str = DEFAULT_DATABASE
    instruments: Mapping[str, Decimal]
    """The allow-list, and the broker's lot step of each."""
    broker_url: str | None = None
    """Where the broker is; None: a paper one, in the worker itself."""
    broker_token: str = "env:BROKER_TOKEN"  # noqa: S105 - the id of a secret, not the secret
    broker_timeout: float = 2.5
    scenario: str = ""
    orders_per_minute: int = 60


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings, or InvalidSetting naming the one that cannot be."""
    return Settings(
        database=environ.get("TODOKU_DATABASE") or environ.get("DATABASE_URL") or DEFAULT_DATABASE,
        instruments=instruments(environ.get("INSTRUMENTS") or DEFAULT_INSTRUMENTS),
        broker_url=environ.get("BROKER_URL") or None,
        broker_token=environ.get("BROKER_TOKEN_REF") or "env:BROKER_TOKEN",
        broker_timeout=whole(environ, "BROKER_TIMEOUT_MS", 2500) / 1000,
        scenario=environ.get("PAPER_SCENARIO", ""),
        orders_per_minute=whole(environ, "ORDERS_PER_MINUTE", 60),
    )


def instruments(text: str) -> dict[str, Decimal]:
    """`NAME=lot step` of each instrument that may be traded."""
    steps: dict[str, Decimal] = {}
    for part in text.split(","):
        name, _, step = part.strip().partition("=")
        try:
            steps[name] = Decimal(step)
            usable = steps[name].is_finite() and steps[name] > 0
        except InvalidOperation:
            usable = False
        if not usable:
            raise todoku.InvalidSetting(f"INSTRUMENTS cannot have {part!r}", hint="NAME=lot step, as in AAPL=1")
    return steps


def whole(environ: Mapping[str, str], name: str, default: int) -> int:
    """A whole number, 1 or more."""
    text = environ.get(name, "") or str(default)
    if not text.isdecimal() or not 0 < int(text) <= 86_400_000:
        raise todoku.InvalidSetting(f"{name} cannot be {text!r}", hint="a whole number, 1 or more")
    return int(text)

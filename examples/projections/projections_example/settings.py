"""The settings of the example, read once from the environment. todoku reads its own (OUTBOX_…, TODOKU_…)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

import todoku

PORT = 8330
DAEMON_PORT = 8331
SEARCH_PORT = 9200


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """One process's settings; README.md has them as a table."""

    database: str = "sqlite:///projections.db"
    chronicle_database: str | None = None
    """Another database for the chronicle; None: the entries are in the database of the documents."""
    search_url: str | None = None
    """The search server; None: there is none, and the chronicle is the only projection."""
    index: str = "documents"
    """The alias under which readers find the index."""
    any_day: bool = False
    """A new index takes any text as a day of publication, so that no document is refused for it."""


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings, or InvalidSetting naming the one that cannot be."""
    search = environ.get("SEARCH_URL") or None
    if search is not None and search.partition("://")[0] not in ("http", "https"):
        raise todoku.InvalidSetting("SEARCH_URL is no address", hint="http://127.0.0.1:9200")
    return Settings(
        database=environ.get("TODOKU_DATABASE") or environ.get("DATABASE_URL") or "sqlite:///projections.db",
        chronicle_database=environ.get("CHRONICLE_DATABASE_URL") or None,
        search_url=search,
        index=environ.get("SEARCH_INDEX") or "documents",
        any_day=bool(environ.get("SEARCH_ANY_DAY")),
    )


def read_port(environ: Mapping[str, str], name: str, default: int) -> int:
    """A port."""
    text = environ.get(name) or str(default)
    if not text.isdecimal() or not 0 < int(text) <= 65_535:
        raise todoku.InvalidSetting(f"{name} cannot be {text!r}", hint="1 to 65535")
    return int(text)

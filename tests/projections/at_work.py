"""The App of a daemon that tests kill: the documents in a search index, and a chronicle of their events.

Whoever runs it says by the environment where the database and the search server are, and the alias.
"""

from __future__ import annotations

import os
from typing import Any

import todoku
from tests.projections.library import Library

ENTRY = "create table if not exists entry (message text, document text, number integer)"


def write_entry(change: todoku.Change, tx: Any) -> None:
    """One entry for each event."""
    mark = "?" if type(tx).__module__.startswith(("sqlite3", "todoku.store.sqlite")) else "%s"
    values = (change.message_id, change.key, change.sequence)
    tx.execute(f"insert into entry (message, document, number) values ({mark}, {mark}, {mark})", values)


def library(url: str, server: str, alias: str) -> Library:
    """The application with both projections."""
    made = Library(url, server, alias=alias, backoff=todoku.table(0.2))
    made.box.projection(
        "history", topics="document.*", key="id", to=todoku.chronicle(write_entry), backoff=todoku.table(0.2)
    )
    return made


if "TODOKU_TEST_SEARCH" in os.environ:
    box = library(
        os.environ["TODOKU_DATABASE"], os.environ["TODOKU_TEST_SEARCH"], os.environ["TODOKU_TEST_ALIAS"]
    ).box  # fmt: skip

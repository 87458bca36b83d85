"""Everything a process of the example holds: the documents, and the two projections that follow them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import msgspec
from opensearchpy.exceptions import OpenSearchException

import todoku
from projections_example.chronicle import Chronicle, write_entry
from projections_example.documents import Documents
from projections_example.search import SETTINGS, Index, mappings
from projections_example.settings import Settings

LOGGER = logging.getLogger("projections")
TOPICS = "document.*"
SEARCH = "search"
CHRONICLE = "chronicle"


class Found(msgspec.Struct, frozen=True):
    """What a search found, and where: the index, or the slow and certain way through the table."""

    source: Literal["index", "database"]
    documents: list[Any]


class Application:
    """One standard for all projections: the second one is five lines. Make it with `opened`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.box = todoku.App(settings.database, require_tx=True)
        self.documents = Documents(self.box, settings.database)
        self.chronicle = Chronicle(settings.chronicle_database or settings.database)
        self.archive = None if settings.chronicle_database is None else todoku.App(settings.chronicle_database)
        self.box.projection(CHRONICLE, topics=TOPICS, key="id", to=todoku.chronicle(write_entry, into=self.archive))
        self.index = self.search = None
        if settings.search_url is not None:
            self.index = Index(settings.search_url, settings.index)
            server = todoku.opensearch(
                settings.index,
                url=settings.search_url,
                mappings=mappings(any_day=settings.any_day),
                settings=SETTINGS,
            )
            self.search = self.box.projection(SEARCH, topics=TOPICS, key="id", to=server, source=self.documents)

    def prepare(self) -> None:
        """Make what is missing in the databases: todoku's tables, the documents, the entries."""
        if self.archive is not None:
            self.archive.migrate()
        self.documents.prepare()
        self.chronicle.prepare()
        self.box.migrate()

    def find(self, words: str) -> Found:
        """Ask the index, if readers may use it and it answers; else the table."""
        if self.index is not None and self.search is not None and self.search.flag():
            try:
                return Found("index", self.index.find(words))
            except OpenSearchException as error:
                LOGGER.warning("the search server does not answer (%s): asked the table", type(error).__name__)
        return Found("database", [msgspec.to_builtins(document) for document in self.documents.find(words)])

    def close(self) -> None:
        """Give back every connection."""
        if self.index is not None:
            self.index.close()
        self.chronicle.close()
        self.documents.close()
        self.box.close()
        if self.archive is not None:
            self.archive.close()


@contextmanager
def opened(settings: Settings) -> Iterator[Application]:
    """An Application on databases that have everything; closed at the end."""
    application = Application(settings)
    try:
        application.prepare()
        yield application
    finally:
        application.close()

"""The documents: each change and its event are one commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from sqlalchemy import Connection, Engine, Row, String, bindparam, text

import todoku
from projections_example.database import open_engine, run_schema

COLUMNS = "id, revision, title, body, author, published_on"
INSERT = text(
    f"insert into documents ({COLUMNS}) values (:id, 1, :title, :body, :author, :published_on) returning {COLUMNS}"
)
CHANGE = text(
    "update documents set revision = revision + 1, title = :title, body = :body, author = :author,"
    f" published_on = :published_on where id = :id and not cast(deleted as boolean) returning {COLUMNS}"
)
DELETE = text(
    "update documents set revision = revision + 1, deleted = true where id = :id and not cast(deleted as boolean)"
    f" returning {COLUMNS}"
)
THERE = "not cast(deleted as boolean)"
GET = text(f"select {COLUMNS} from documents where id in :ids and {THERE}").bindparams(
    bindparam("ids", expanding=True, type_=String)
)
PAGE = text(f"select {COLUMNS} from documents where id > :after and {THERE} order by id limit :limit")
COUNT = text(f"select count(*) from documents where {THERE}")
FIND = text(
    f"select {COLUMNS} from documents where {THERE} and (title like :like or body like :like) order by id limit 20"
)
LIVES = text("select id, revision, cast(deleted as boolean) from documents order by id")


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """What a caller writes."""

    title: str
    body: str
    author: str
    published_on: str | None = None
    """A day. The table takes any text, the index takes only days: that is how a poison document comes about."""


class Document(msgspec.Struct, frozen=True):
    """A document as the table, the events and the search index have it."""

    id: str
    revision: int
    title: str
    body: str
    author: str
    published_on: str | None


class Documents:
    """The table of documents, and the source that projections are rebuilt from."""

    def __init__(self, box: todoku.App, database: str) -> None:
        self._box = box
        self.engine: Engine = open_engine(database)
        self._reading = open_engine(database, writes=False)

    def prepare(self) -> None:
        """Make the table, where it is missing."""
        run_schema(self.engine, f"documents_{self.engine.dialect.name}")

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()
        self._reading.dispose()

    def create(self, draft: Draft) -> Document:
        """A new document and `document.created`."""
        values = {"id": str(uuid4())} | msgspec.structs.asdict(draft)
        with self.engine.begin() as tx:
            return self._publish(tx, "document.created", tx.execute(INSERT, values).one())

    def change(self, id: str, draft: Draft) -> Document | None:
        """Its next revision and `document.changed`; None: there is no such document."""
        with self.engine.begin() as tx:
            row = tx.execute(CHANGE, {"id": id} | msgspec.structs.asdict(draft)).first()
            return None if row is None else self._publish(tx, "document.changed", row)

    def delete(self, id: str) -> bool:
        """Its last revision and `document.deleted`; False: there is no such document."""
        with self.engine.begin() as tx:
            row = tx.execute(DELETE, {"id": id}).first()
            return row is not None and bool(self._publish(tx, "document.deleted", row))

    def _publish(self, tx: Connection, topic: str, row: Row[Any]) -> Document:
        """The event, in the transaction of its row: both are committed, or neither."""
        document = Document(*row)
        self._box.publish(topic, msgspec.to_builtins(document), key=document.id, tx=tx)
        return document

    def find(self, words: str) -> list[Document]:
        """The slow way to search, which is there while the index is not: a scan of the table."""
        with self._reading.connect() as tx:
            return [Document(*row) for row in tx.execute(FIND, {"like": f"%{words}%"})]

    # ------------------------------------------------------------------ the source of rebuild and verify

    def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """The next documents by id."""
        with self._reading.connect() as tx:
            rows = tx.execute(PAGE, {"after": after or "", "limit": limit})
            return [(row[0], msgspec.to_builtins(Document(*row))) for row in rows]

    def get(self, keys: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """These documents; deleted ones are left out."""
        with self._reading.connect() as tx:
            return {row[0]: msgspec.to_builtins(Document(*row)) for row in tx.execute(GET, {"ids": list(keys)})}

    def count(self) -> int:
        """How many there are."""
        with self._reading.connect() as tx:
            return int(tx.execute(COUNT).scalar_one())

    def lives(self) -> dict[str, tuple[int, bool]]:
        """Every document that ever was: its last revision, and whether it is deleted."""
        with self._reading.connect() as tx:
            return {id: (revision, bool(deleted)) for id, revision, deleted in tx.execute(LIVES)}

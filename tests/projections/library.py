"""An application with documents whose changes are published in the same transaction, and a look at its server."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from uuid import uuid4

import psycopg

import todoku
from tests.daemon.running import PATIENCE, until
from todoku.core.projection import FIELD
from todoku.store.projections import ProjectionRow

MAPPINGS = {"properties": {"id": {"type": "keyword"}, "title": {"type": "text"}, "views": {"type": "integer"}}}
ACT = {"by": "ada", "why": "a test"}

Connect = Callable[[], Any]


def connecting(url: str) -> Connect:
    """What opens a connection of the application's own to its database."""
    if url.startswith("sqlite:///"):
        return lambda: sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)
    return lambda: psycopg.connect(url)


class Table:
    """The documents in the application's database: a source of rebuilds, and the truth."""

    def __init__(self, url: str) -> None:
        self._connect = connecting(url)
        self._mark = "?" if url.startswith("sqlite:///") else "%s"

    def create(self) -> None:
        with closing(self._connect()) as db:
            db.execute("create table if not exists document (id text primary key, title text, views integer)")
            db.commit()

    def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
        return self._read(f"where id > {self._mark} order by id limit {self._mark}", after or "", limit)

    def get(self, keys: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return dict(self._read(f"where id in ({', '.join([self._mark] * len(keys))})", *keys)) if keys else {}

    def count(self) -> int:
        return len(self.all())

    def all(self) -> dict[str, Mapping[str, Any]]:
        return dict(self._read(""))

    def _read(self, where: str, *values: object) -> list[tuple[str, Mapping[str, Any]]]:
        with closing(self._connect()) as db:
            rows = db.execute(f"select id, title, views from document {where}", values).fetchall()
        return [(id, {"id": id, "title": title, "views": views}) for id, title, views in rows]


class Library:
    """The application: it changes documents, and publishes each change in the same transaction."""

    def __init__(self, url: str, server: str, *, alias: str | None = None, **options: Any) -> None:
        self.url, self.server = url, server
        self.alias = alias or f"docs{uuid4().hex[:10]}"
        self.box = todoku.App(url)
        self.table = Table(url)
        self._connect = connecting(url)
        to = options.pop("to", None) or todoku.opensearch(self.alias, url=server, mappings=MAPPINGS)
        self.documents = self.box.projection(
            "documents", topics="document.*", key="id", to=to, source=self.table, **options
        )

    def set_up(self) -> Library:
        self.table.create()
        self.box.migrate()
        return self

    def close(self) -> None:
        self.box.close()

    # ------------------------------------------------------------------------------------------ changes

    def put(self, id: str, title: str = "Hello", views: Any = 0, *, topic: str = "document.changed") -> None:
        """Changes a document and says so, in one transaction."""
        mark = self.table._mark
        stored = views if isinstance(views, int) else -1
        with closing(self._connect()) as db:
            db.execute(f"delete from document where id = {mark}", (id,))
            db.execute(f"insert into document values ({mark}, {mark}, {mark})", (id, title, stored))
            self.box.publish(topic, {"id": id, "title": title, "views": views}, tx=db)
            db.commit()

    def delete(self, id: str) -> None:
        """Deletes a document and says so, in one transaction."""
        with closing(self._connect()) as db:
            db.execute(f"delete from document where id = {self.table._mark}", (id,))
            self.box.publish("document.deleted", {"id": id}, tx=db)
            db.commit()

    def row(self) -> ProjectionRow:
        return self.documents.status().row

    def dead(self) -> list[tuple[str, str]]:
        """(reason, error) of every dead letter."""
        with closing(self._connect()) as db:
            rows = db.execute(
                "select reason, error from todoku_delivery where status = 'aborted' order by id"
            ).fetchall()
        return [(str(reason), str(error)) for reason, error in rows]

    def sql(self, statement: str) -> list[Any]:
        """Does something to the database that todoku does not know of."""
        with closing(self._connect()) as db:
            found = db.execute(statement)
            rows = found.fetchall() if found.description else []
            db.commit()
        return list(rows)

    # ------------------------------------------------------------------------------------ the search server

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """A request to the server, past todoku."""
        return ask(self.server, method, path, body)

    def seen(self, index: str | None = None) -> dict[str, dict[str, Any]]:
        """What readers find: every document behind the alias, without todoku's own field."""
        self.ask("POST", f"/{index or self.alias}/_refresh")
        found = self.ask("POST", f"/{index or self.alias}/_search", {"size": 10_000, "query": {"match_all": {}}})
        hits = {hit["_id"]: hit["_source"] for hit in found["hits"]["hits"]}
        return {id: {name: value for name, value in one.items() if name != FIELD} for id, one in hits.items()}

    def version(self, id: str, index: str | None = None) -> int:
        """The version that an index, the live one unless named, has of a document."""
        live = self.row().of("live")
        assert live is not None
        return int(self.ask("GET", f"/{index or live.name}/_doc/{id}")["_version"])

    def agree(self) -> None:
        """Asserts that readers see exactly what the table has."""
        assert self.seen() == self.table.all()


def ask(server: str, method: str, path: str, body: Any = None) -> Any:
    """A request to a search server; an answer that is no success is an AssertionError with its text."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{server}{path}", data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[:500]}") from error


@contextmanager
def working(box: todoku.App) -> Iterator[None]:
    """A worker in a thread with a loop of its own, until the block ends; then what it raised is raised."""
    worker = box.worker()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            asyncio.run(worker.run())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.drain()
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive(), "the worker does not end"
        if errors:
            raise errors[0]


def until_applied(library: Library) -> None:
    """Waits until every event is applied, or is a dead letter."""
    until(lambda: library.documents.lag().events == 0, "every event is applied")

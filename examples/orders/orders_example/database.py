"""The example's own connections, by SQLAlchemy, to the database that todoku uses too."""

from __future__ import annotations

import hashlib
from contextlib import AbstractContextManager, closing
from importlib.resources import files
from typing import Any

import msgspec
import sqlalchemy
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.orm import Session

from orders_example.order import ORDERS

Tx = Connection | Session
"""An open transaction: what todoku takes as `tx=`."""


class Delivery(msgspec.Struct, frozen=True):
    """Where an order's delivery is, as of a transaction that keeps it there. Done: neither of the two."""

    status: str
    epoch: int
    replay_count: int


class Database:
    """Where the orders are."""

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._postgres = self._engine.dialect.name == "postgresql"

    def begin(self) -> AbstractContextManager[Connection]:
        """A transaction: commits what is done inside, or, if that raises, nothing of it."""
        return self._engine.begin()

    def prepare(self) -> None:
        """Make the views. todoku's own tables must be there."""
        script = files("orders_example").joinpath("schema", f"{self._engine.dialect.name}.sql")
        if self._postgres:
            with self.begin() as tx:
                tx.exec_driver_sql(script.read_text("utf-8"))
        else:
            with closing(self._engine.raw_connection()) as connection:
                connection.driver_connection.executescript(script.read_text("utf-8"))  # type: ignore[union-attr]

    def delivery(self, tx: Tx, id: int) -> Delivery | None:
        """An unfinished delivery or dead letter, which nobody moves on before this transaction ends."""
        lock = " for share" if self._postgres else ""  # on SQLite, whoever is to write is alone
        found = tx.execute(
            text(f"select status, epoch, replay_count from todoku_delivery where id = :id{lock}"), {"id": id}
        ).first()
        return None if found is None else Delivery(*found)

    def succeeded(self, tx: Tx, id: int) -> bool:
        """Whether a delivery is done."""
        found = tx.execute(text("select 1 from outbox_orders where id = :id and status = 'succeeded'"), {"id": id})
        return found.first() is not None

    def waiting(self, tx: Tx, key: str) -> bytes | None:
        """What the ledger answers to a repeat of an order whose end it waits for, as JSON. None: it waits for none.

        By the key's hash, which is what the ledger finds things by.
        """
        found = tx.execute(
            text(
                "select cast(response as text) from todoku_ledger"
                " where scope = :scope and key_hash = :hash and state = 'accepted'"
            ),
            {"scope": f"once:{ORDERS}", "hash": hashlib.sha256(key.encode()).hexdigest()},
        ).first()
        return None if found is None or found[0] is None else str(found[0]).encode()

    def given_result(self, tx: Tx, id: int) -> bytes | None:
        """What a person said came of a delivery, as JSON."""
        found = tx.execute(
            text("select cast(result as text) from todoku_result where delivery_id = :id"), {"id": id}
        ).first()
        return None if found is None else str(found[0]).encode()

    def close(self) -> None:
        """Give back every connection."""
        self._engine.dispose()


def _engine(url: str) -> Engine:
    """The engine for a URL that todoku has accepted already."""
    if not url.startswith("sqlite:"):
        return sqlalchemy.create_engine(f"postgresql+psycopg://{url.partition('://')[2]}", pool_pre_ping=True)
    engine = sqlalchemy.create_engine(url.split("?", 1)[0], connect_args={"timeout": 30})
    event.listen(engine, "connect", _plain)
    event.listen(engine, "begin", _immediately)
    return engine


def _plain(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # the driver begins nothing by itself: we do


def _immediately(connection: Connection) -> None:
    """One that begins by reading and goes on to write could find that somebody else has written."""
    connection.exec_driver_sql("begin immediate")

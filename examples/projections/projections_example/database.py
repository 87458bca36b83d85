"""Connections of the example's own, by SQLAlchemy: the same code on SQLite and PostgreSQL."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event


def open_engine(url: str, *, writes: bool = True) -> Engine:
    """The engine of a URL that todoku has accepted already; one that only reads takes no lock."""
    server = re.match(r"postgres(?:ql)?(?:\+\w+)?://(.*)", url, re.DOTALL)
    if server is not None:
        return create_engine(f"postgresql+psycopg://{server[1]}", pool_pre_ping=True)
    engine = create_engine(url, connect_args={"timeout": 30})
    event.listen(engine, "connect", _begins_nothing_by_itself)
    if not writes:
        return engine
    # A transaction that begins by reading and goes on to write could find that another one has written. So each says at
    # once that it will write, which Python's sqlite3 does not do by itself.
    event.listen(engine, "begin", _begins_to_write)
    return engine


def _begins_nothing_by_itself(connection: Any, _record: object) -> None:
    connection.isolation_level = None


def _begins_to_write(connection: Connection) -> None:
    connection.exec_driver_sql("begin immediate")


def run_schema(engine: Engine, name: str) -> None:
    """Run the statements of a file in `schema/`, in one transaction."""
    text = files("projections_example").joinpath("schema", f"{name}.sql").read_text("utf-8")
    with engine.begin() as tx:
        for statement in re.split(r";\s*$", text, flags=re.MULTILINE):
            if statement.strip():
                tx.exec_driver_sql(statement)

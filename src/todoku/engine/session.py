"""A SQLAlchemy session on todoku's transaction: it writes there, and never commits or rolls it back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import create_engine
from sqlalchemy.pool import StaticPool

S = TypeVar("S")


def session_on(connection: Any, kind: Callable[..., S]) -> S:
    """Creates a session of `kind` (SQLAlchemy's Session or a subclass) in the connection's open transaction.

    Its commit() and rollback() end a savepoint only: the transaction commits with the settle, or not at all.
    """
    connection.lent = True  # ignores the rollback that SQLAlchemy does after inspecting a new server
    dialect = "sqlite" if "sqlite" in type(connection).__module__ else "postgresql+psycopg"
    engine = create_engine(f"{dialect}://", creator=lambda: connection, poolclass=StaticPool, pool_reset_on_return=None)
    bound = engine.connect()
    bound.begin()
    return kind(bind=bound, join_transaction_mode="create_savepoint")

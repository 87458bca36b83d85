"""A small shop as somebody would test it, on each database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

import todoku
from tests.support.world import Backend
from todoku.testing import fresh


@dataclass(frozen=True)
class OrderCreated:
    """An event with something inside."""

    order_id: int
    address: dict[str, str]


class Shop:
    """An App with a few jobs. What they do is written to a file, which a crash does not take away."""

    def __init__(self, box: todoku.App, url: str, folder: Path) -> None:
        self.box = box
        self.url = url
        self._done = folder / "done.txt"
        box.event("order.created", key="order_id")(OrderCreated)

        @box.job(queue="mail", backoff=todoku.table(60), keep_result=True)
        def welcome(user_id: int, hobby: str | None = None) -> str:
            self.note(f"welcome {user_id}")
            return f"mailed {user_id}"

        @box.job(backoff=todoku.table(60), max_attempts=2)
        def flaky() -> None:
            self.note("flaky")
            raise ConnectionError("not yet")

        @box.job(keep_result=True)
        async def double(number: int) -> int:
            return number * 2

        @box.on(OrderCreated, name="points", transactional=True)
        def points(ctx: todoku.Context, event: OrderCreated) -> None:
            mark = "?" if isinstance(ctx.tx, sqlite3.Connection) else "%s"
            ctx.tx.execute(f"insert into points values ({mark})", (event.order_id,))

        box.route("order.*", to="warehouse")
        self.welcome, self.flaky, self.double = welcome, flaky, double

    def note(self, what: str) -> None:
        with self._done.open("a") as file:
            file.write(f"{what}\n")

    @property
    def done(self) -> list[str]:
        return self._done.read_text().splitlines() if self._done.exists() else []

    def connect(self) -> Any:
        """A connection as user code has one."""
        if self.url.startswith("sqlite"):
            return sqlite3.connect(self.url.removeprefix("sqlite:///"))
        return psycopg.connect(self.url)

    def points(self) -> list[int]:
        with closing(self.connect()) as db:
            return [order for (order,) in db.execute("select * from points order by 1").fetchall()]


@pytest.fixture
def shop(backend: Backend, url: str, tmp_path: Path) -> Iterator[Shop]:
    """The shop in a fresh database."""
    with fresh(todoku.App("sqlite:///never-opened.db"), url) as box:
        shop = Shop(box, url, tmp_path)
        with closing(shop.connect()) as db, db:
            db.execute("create table points (order_id integer)")
        yield shop

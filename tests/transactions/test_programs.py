"""Whole programs, as people write them: in processes of their own, some of which die in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.world import World
from tests.transactions.test_drivers import NOTHING, orders, stored

README = """
import sqlite3, sys, todoku
url, path, how = sys.argv[1:]
box = todoku.App(url)
box.route("order.*", to="warehouse")
db = sqlite3.connect(path)
try:
    with db:
        db.execute("insert into shop_order (id, note) values (1, 'mine')")
        message = box.publish("order.created", {"amount": 42}, tx=db, idempotency_key="k")
        if how == "fails":
            raise RuntimeError("the shop is closed")
except RuntimeError:
    print("rolled back")
else:
    print(message.id)
"""

ORM = """
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
import todoku

url, driver, how = sys.argv[1:]
box = todoku.App(url)
box.route("order.**", to="points")
engine = create_engine(url.replace("://", f"+{driver}://", 1))
SessionLocal = sessionmaker(engine)

class Base(DeclarativeBase):
    pass

class Order(Base):
    __tablename__ = "shop_order"
    id: Mapped[int] = mapped_column(primary_key=True)
    note: Mapped[str]

@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: int
    trace: UUID
    occurred_at: datetime

def create_order(id: int) -> UUID:
    with SessionLocal.begin() as db:
        db.add(Order(id=id, note="mine"))
        message = box.publish("order.created", OrderCreated(id, uuid4(), datetime.now(UTC)), tx=db)
        if how == "fails":
            db.add(Order(id=id, note="a second one with the same id"))
    return message.id

try:
    print(create_order(1))
except Exception as error:
    print(type(error).__name__)
engine.dispose()
box.close()
"""

DYING = """
import sqlite3, sys, psycopg, todoku
url, path, how = sys.argv[1:]
box = todoku.App(url)
box.route("order.*", to="warehouse")
db = sqlite3.connect(path) if url.startswith("sqlite") else psycopg.connect(url)
db.execute("insert into shop_order (id, note) values (1, 'mine')")
box.publish("order.created", {"amount": 42}, tx=db, idempotency_key="k")
if how == "after":
    db.commit()
print("here", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def shop(backend: str, url: str) -> Iterator[World]:
    """Each database in turn, with a table of the program's own."""
    world = World(backend, url)  # type: ignore[arg-type]
    world.store.migrate()
    world.sql("create table shop_order (id integer primary key, note text)")
    yield world
    world.close()


def start(program: str, world: World, *arguments: str) -> subprocess.Popen[str]:
    """A process that runs the program."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", program, world.url, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDEVMODE": "1"},
    )


def said(program: str, world: World, *arguments: str) -> str:
    """What the program prints, having ended well."""
    process = start(program, world, *arguments)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return output.strip()


@pytest.fixture
def file(tmp_path: Path) -> str:
    """The path behind `sqlite_url`."""
    return str(tmp_path / "todoku.db")


@pytest.mark.parametrize("backend", ["sqlite"])
def test_the_readmes_program_commits_both_or_neither(shop: World, file: str) -> None:
    """I2: an exception inside `with db:` takes row and message back; run again, it stores both, and only once."""
    assert said(README, shop, file, "fails") == "rolled back"
    assert (orders(shop), stored(shop)) == ([], NOTHING)
    message_id = said(README, shop, file, "works")
    assert [str(row.message_id) for row in shop.deliveries()] == [message_id]
    assert orders(shop) == [(1, "mine")]


def test_the_orm_program_of_the_api_commits_both_or_neither(shop: World) -> None:
    """I2: a flush that fails at the commit, after the publish, takes the message back too."""
    driver = "pysqlite" if shop.backend == "sqlite" else "psycopg"
    assert said(ORM, shop, driver, "fails") == "IntegrityError"
    assert (orders(shop), stored(shop)) == ([], NOTHING)
    message_id = said(ORM, shop, driver, "works")
    assert [str(row.message_id) for row in shop.deliveries()] == [message_id]
    assert orders(shop) == [(1, "mine")]


@pytest.mark.parametrize(("moment", "number"), [("before", 0), ("after", 1)])
def test_a_publisher_that_is_killed_leaves_all_or_nothing(shop: World, file: str, moment: str, number: int) -> None:
    """I2, I1: kill -9 before the commit leaves nothing, not even a used key; after it everything stays."""
    process = start(DYING, shop, file, moment)
    assert process.stdout is not None
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL

    assert len(orders(shop)) == number
    assert stored(shop) == {"message": number, "delivery": number, "ledger": number, "lane": 0}
    assert len(shop.claim(shop.worker())) == number

"""docs/capture.md is true: its program runs as the role that its SQL makes, and prints what the page shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args
from uuid import uuid4

import psycopg
import pytest

import todoku
from tests.architecture.test_docs import BLOCKS, FENCE, ROOT, Block, run
from tests.capture.conftest import drop_slots
from tests.support.postgres import fresh_database
from todoku.core.capture import PASSING, Reason, State

pytestmark = pytest.mark.postgres
PAGE = (ROOT / "docs" / "capture.md").read_text("utf-8")
ROLES = ("todoku_capture", "shop_owner")
SHOWN = "postgresql://todoku_capture@localhost/shop"


def sql_blocks() -> list[str]:
    return [match["code"] for match in FENCE.finditer(PAGE) if match["info"].strip() == "sql"]


class Source:
    """A database whose table belongs to a role, and a role for todoku with the rights that the page grants."""

    def __init__(self, url: str) -> None:
        self.admin = url
        suffix = uuid4().hex[:8]
        self._names = {name: f"{name}_{suffix}" for name in ROLES}
        with psycopg.connect(url) as connection:
            self._names["database shop"] = f'database "{connection.info.dbname}"'
        self.sql(
            "create role shop_owner",
            "create table orders (id integer primary key, amount integer)",
            "alter table orders owner to shop_owner",
            "insert into orders values (1, 42)",
        )

    @property
    def url(self) -> str:
        """As the role for todoku."""
        return self.admin.replace("postgres@", f"{self._names['todoku_capture']}@")

    def sql(self, *statements: str) -> None:
        """Run statements as the page has them, with names of our own: roles belong to the whole server."""
        with psycopg.connect(self.admin, autocommit=True) as connection:
            for statement in statements:
                text = statement
                for shown, name in self._names.items():
                    text = text.replace(shown, name)
                connection.execute(text)

    def forget(self) -> None:
        self.sql(*(f"{what} {role}" for what in ("drop owned by", "drop role") for role in ROLES))


@pytest.fixture
def source(source_dsn: str) -> Iterator[Source]:
    with fresh_database(source_dsn) as url:
        source = Source(url)
        yield source
        drop_slots(source_dsn, url)
        source.forget()


def grants() -> list[str]:
    return [line for line in sql_blocks()[0].splitlines() if line]


def program(source: Source) -> Block:
    block = next(block for block in BLOCKS if block.page == "docs/capture.md" and SHOWN in block.code)
    return Block(block.page, block.line, block.info, block.code.replace(SHOWN, source.url), block.prints)


def test_the_program_runs_with_the_rights_that_the_page_grants(source: Source, tmp_path: Path) -> None:
    source.sql(*grants())
    source.sql("grant insert, update, delete on orders to todoku_capture")  # the page's program also plays the shop
    block = program(source)
    assert run(block, tmp_path) == block.prints


def test_the_owner_may_create_the_publication_instead(source: Source, tmp_path: Path) -> None:
    """Neither the owner's role nor `create` on the database is needed then; without the publication they are."""
    source.sql(*(line for line in grants() if "create on database" not in line and "grant shop_owner" not in line))
    box = todoku.App(f"sqlite:///{tmp_path}/todoku.db")
    box.capture("public.orders", topic="orders.{op}", key="id", database=source.url)
    box.migrate()
    capture = box.captures["main"]
    with pytest.raises(todoku.TodokuError) as refused:
        capture.catch_up(timeout=30)
    assert "publication" in str(refused.value)
    name = capture.status().publication
    source.sql(sql_blocks()[1].replace("todoku_main_30aa9d01", name))
    capture.catch_up(timeout=30)
    assert capture.status().changes == 1
    box.close()


def cells(column: int = 0) -> set[str]:
    """The codes in a column of the page's tables."""
    rows = [line.split("|")[1:] for line in PAGE.splitlines() if line.startswith("| `")]
    return {code for row in rows for code in re.findall(r"`([A-Za-z_]+)`", row[column])}


def test_the_page_has_every_state_and_every_reason() -> None:
    assert set(get_args(State)) <= cells()
    assert set(get_args(Reason)) <= cells()
    assert set(PASSING) <= cells()


def test_the_page_has_every_option() -> None:
    from todoku.capture.captures import CaptureOptions

    assert {"table", "topic", "key", *CaptureOptions.__annotations__} <= cells()

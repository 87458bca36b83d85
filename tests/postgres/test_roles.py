"""Roles that may do less than everything: what each needs, and which error names a right that it lacks (MEND-1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.postgres.conftest import Make, Open
from tests.postgres.shop import live_a_day
from todoku.core.errors import SchemaError, StoreError
from todoku.engine.diagnostics.doctor import examine

pytestmark = pytest.mark.postgres
PAGE = Path(__file__).resolve().parents[2] / "docs" / "postgresql.md"


@pytest.fixture
def role(stock_dsn: str) -> Iterator[str]:
    """A role that may log in, and nothing else."""
    name = f"todoku_{uuid4().hex[:12]}"
    with psycopg.connect(stock_dsn, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login").format(sql.Identifier(name)))
        yield name
        admin.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


def as_role(url: str, role: str) -> str:
    """The same database, as that role."""
    return url.replace("://postgres@", f"://{role}@")


def name_of(url: str) -> str:
    """The database's name."""
    return str(conninfo_to_dict(url)["dbname"])


def change(url: str, *statements: str) -> None:
    """As the superuser."""
    with psycopg.connect(url, autocommit=True) as admin:
        for statement in statements:
            admin.execute(statement)  # type: ignore[arg-type]


def granted(role: str, who: str) -> list[str]:
    """The statements that the page gives for a role of this kind."""
    (block,) = re.findall(rf"```sql {who}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return [line for line in block.replace("todoku_app", role).split(";\n") if line.strip()]


def test_MEND_1_the_owner_of_a_database_needs_nothing_else(role: str, make_database: Make, open_shop: Open) -> None:
    """No superuser: it migrates, works, makes and drops partitions."""
    url = make_database()
    change(url, f"alter database {name_of(url)} owner to {role}",
           f"alter table shop_book owner to {role}")  # fmt: skip
    shop = open_shop(as_role(url, role))
    live_a_day(shop, as_role(url, role))
    assert shop.doctor() == {}


def test_MEND_1_a_worker_needs_only_rights_on_rows(role: str, make_database: Make, open_shop: Open) -> None:
    """Another role migrated and owns the tables. The partitions of the history come and go all the same."""
    url = make_database()
    open_shop(url)
    change(url, f"grant all on shop_book to {role}", *granted(role, "worker"))
    shop = open_shop(as_role(url, role), migrate=False)
    live_a_day(shop, as_role(url, role))
    assert shop.doctor() == {}
    drop_all_of_tomorrow(url)
    shop.box.store.retention.prune(history_ttl=86_400.0)
    with psycopg.connect(url) as admin:
        days = admin.execute("select count(*) from pg_inherits where inhparent = 'todoku_history'::regclass").fetchone()
    assert days == (9,), "the default partition, today's and those of seven days"


def drop_all_of_tomorrow(url: str) -> None:
    days = "select inhrelid::regclass::text from pg_inherits where inhparent = 'todoku_history'::regclass"
    with psycopg.connect(url, autocommit=True) as admin:
        names = sorted(name for (name,) in admin.execute(days).fetchall() if name.rpartition("_")[2].isdigit())
        for name in names[1:]:
            admin.execute(sql.SQL("drop table {}").format(sql.Identifier(name)))


def test_MEND_1_who_owns_nothing_cannot_use_the_functions_for_anything_else(
    role: str, make_database: Make, open_shop: Open
) -> None:
    """They run as their owner, so: not for everybody, and a table of the caller's own of that name is not found."""
    url = make_database()
    open_shop(url)
    with psycopg.connect(as_role(url, role), autocommit=True) as stranger:
        for call in ("todoku_history_ahead(7)", "todoku_history_drop('infinity')"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                stranger.execute(f"select {call}")  # type: ignore[arg-type]
    change(
        url,
        *granted(role, "worker"),
        f"grant temporary on database {name_of(url)} to {role}",
    )
    with psycopg.connect(as_role(url, role), autocommit=True) as worker:
        worker.execute("create temporary table todoku_history_default (finished_at timestamptz)")
        worker.execute("insert into todoku_history_default values ('2020-01-01')")
        worker.execute("select todoku_history_drop('2021-01-01')")
        assert worker.execute("select count(*) from todoku_history_default").fetchone() == (1,)


def test_MEND_1_a_publisher_needs_less(role: str, make_database: Make, open_shop: Open) -> None:
    """A program that publishes and never runs anything: with keys, lanes and gates, through its own connection."""
    url = make_database()
    owner = open_shop(url)
    change(url, *granted(role, "publisher"))
    shop = open_shop(as_role(url, role), migrate=False)
    with psycopg.connect(as_role(url, role)) as caller:
        for _ in range(2):
            shop.box.publish("order.made", {"fails": "never"}, tx=caller, idempotency_key="k")
        shop.box.publish("stock.moved", {"n": 2, "by": ""}, tx=caller, key="k")
        shop.box.publish("mail.sent", b"", tx=caller, key="k")
        caller.commit()
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            caller.execute("delete from todoku_message")
        caller.rollback()
    assert owner.box.drain() == 3


def test_MEND_1_migrate_says_which_right_is_missing(role: str, make_database: Make, open_shop: Open) -> None:
    url = make_database()
    shop = open_shop(as_role(url, role), migrate=False)
    with pytest.raises(
        StoreError, match=r"permission denied for schema public \(this role lacks a privilege: docs/postg"
    ):
        shop.box.migrate()
    assert "todoku migrate" in shop.doctor()["schema"].todo


def test_MEND_1_a_worker_without_rights_is_told_so(role: str, make_database: Make, open_shop: Open) -> None:
    url = make_database()
    open_shop(url)
    shop = open_shop(as_role(url, role), migrate=False)
    with pytest.raises(StoreError, match=r"permission denied for .* \(this role lacks a privilege"):
        shop.box.drain()
    assert "lacks a privilege" in next(iter(shop.doctor().values())).todo


# ------------------------------------------------------------------------------------------- the search path


def test_MEND_1_a_search_path_that_leads_nowhere(make_database: Make, open_shop: Open) -> None:
    """`migrate` and `doctor` say so; with a schema of its own everything works."""
    url = make_database(search_path="nowhere")
    shop = open_shop(url, migrate=False)
    with pytest.raises(SchemaError, match="search_path of this role names no schema that exists: set `schema`"):
        shop.box.migrate()
    assert "names no schema that exists" in shop.doctor()["search path"].text
    named = open_shop(url, schema="jobs")
    named.box.publish("order.made", {"fails": "never"}, tx=None)
    assert named.box.drain() == 1
    assert named.doctor() == {}


def test_MEND_1_another_table_of_that_name_comes_first(make_database: Make, open_shop: Open) -> None:
    """A foreign todoku_message in a schema that the search path names first: an error, not a message in there; and
    `doctor` says in which schemas there are such tables."""
    url = make_database()
    open_shop(url)
    change(url, "create schema shop", "create table shop.todoku_message (id integer)",
           f"alter database {name_of(url)} set search_path = shop, public")  # fmt: skip
    shop = open_shop(url, migrate=False)
    with pytest.raises(SchemaError, match="set `schema` to the schema of its tables"):
        shop.box.publish("order.made", {"fails": "never"}, tx=None)
    named = open_shop(url, schema="public", migrate=False)
    named.box.publish("order.made", {"fails": "never"}, tx=None)
    assert named.box.drain() == 1
    assert named.doctor() == {}


def test_MEND_1_two_installations_are_told_apart_by_doctor(make_database: Make, open_shop: Open) -> None:
    url = make_database()
    shop = open_shop(url)
    open_shop(url, schema="other")
    found = [each for each in examine(shop.box.store, shop.box.settings) if "search path" in each.text]
    assert [(each.level, each.text) for each in found] == [
        ("warn", "there are tables of todoku in the schemas other, public; the search path decides")
    ]

"""R15: what would break the application, or lose changes, is refused before anything is created at the source."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

import todoku
from tests.capture.conftest import OpenShop, server_home
from tests.capture.shop import ORDERS, Shop
from tests.support import postgres
from tests.support.postgres import fresh_database, started_dsn
from todoku.core.errors import CaptureError, InvalidSetting

pytestmark = pytest.mark.postgres


def refused(shop: Shop, reason: str, *, hint: str) -> None:
    """The capture is stopped for this reason, says what to do, and has made nothing at the source."""
    with pytest.raises(CaptureError) as raised:
        shop.catch_up()
    assert raised.value.reason == reason, raised.value
    assert hint in str(raised.value)
    row = shop.row
    assert (row.state, row.reason, row.lsn) == ("stopped", reason, 0)
    assert row.why is not None
    assert hint in row.why
    assert shop.sql("select from pg_publication") == []
    assert shop.sql("select from pg_replication_slots where database = current_database()") == []


def test_R15_a_table_without_replica_identity(shop: Shop) -> None:
    shop.sql("create table orders (id int)")
    shop.capture()
    refused(shop, "NO_IDENTITY", hint="replica identity full")
    shop.sql("insert into orders values (1)", "update orders set id = 2")  # the application is as well as before


def test_R15_replica_identity_nothing(shop: Shop) -> None:
    shop.sql(ORDERS, "alter table orders replica identity nothing")
    shop.capture()
    refused(shop, "NO_IDENTITY", hint="replica identity full")


def test_R15_a_key_outside_of_the_replica_identity(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture(key="what")
    refused(shop, "NO_IDENTITY", hint="key='id'")


def test_R15_a_partition_without_replica_identity(shop: Shop) -> None:
    shop.sql(
        "create table orders (id int primary key) partition by list (id)",
        "create table orders_1 partition of orders for values in (1)",
        "alter table orders_1 replica identity nothing",
    )
    shop.capture()
    refused(shop, "NO_IDENTITY", hint="orders_1")


def test_R15_no_unique_index_to_read_pages_by(shop: Shop) -> None:
    shop.sql("create table orders (id int)", "alter table orders replica identity full")
    shop.capture()
    refused(shop, "NO_IDENTITY", hint="snapshot=False")


def test_a_table_without_a_unique_index_is_captured_without_a_snapshot(shop: Shop) -> None:
    shop.sql(
        "create table orders (id int)", "alter table orders replica identity full", "insert into orders values (1)"
    )
    shop.capture(snapshot=False)
    shop.catch_up()
    shop.sql("insert into orders values (2)", "delete from orders where id = 1")
    shop.catch_up()
    assert [topic for topic, _, _ in shop.messages()] == ["orders.insert", "orders.delete"]


def test_R15_no_such_column(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture(key="number")
    refused(shop, "NO_IDENTITY", hint="one of id, what, amount")


@pytest.mark.parametrize(
    ("statement", "hint"),
    [
        ("select 1", "create it"),
        ("create view orders as select 1 as id", "capture the tables"),
        ("create unlogged table orders (id int primary key)", "set logged"),
    ],
)
def test_R15_what_is_no_table(statement: str, hint: str, shop: Shop) -> None:
    shop.sql(statement)
    shop.capture()
    refused(shop, "NO_TABLE", hint=hint)


@pytest.fixture
def role(source_dsn: str) -> Iterator[str]:
    """A role without any right."""
    name = f"reader_{uuid4().hex[:8]}"
    with psycopg.connect(source_dsn, autocommit=True) as admin:
        admin.execute(f"create role {name} login")  # type: ignore[arg-type]
        try:
            yield name
        finally:
            admin.execute(f"drop role {name}")  # type: ignore[arg-type]


def as_role(url: str, role: str) -> str:
    return url.replace("postgres@", f"{role}@", 1)


def test_R15_a_role_without_rights_gets_one_after_the_other(
    open_shop: OpenShop, source_url: str, role: str, request: pytest.FixtureRequest
) -> None:
    shop = open_shop(source=as_role(source_url, role))
    admin = open_shop(f"sqlite:///{request.getfixturevalue('tmp_path')}/other.db")
    admin.sql(ORDERS, "insert into orders values (1)")
    shop.capture()
    request.addfinalizer(lambda: admin.sql(f"drop owned by {role} cascade"))

    refused(shop, "NO_RIGHTS", hint="replication")
    admin.sql(f"alter role {role} replication")
    refused(shop, "NO_RIGHTS", hint="grant select")
    admin.sql(f"grant select on orders to {role}")
    refused(shop, "NO_RIGHTS", hint="grant create on this database")
    ((name,),) = admin.sql("select current_database()")
    admin.sql(f"grant create on database {name} to {role}")
    refused(shop, "NO_RIGHTS", hint="belongs to postgres")
    # Nothing more is granted: the owner makes the publication.
    admin.sql(f"create publication {shop.row.publication} for table orders with (publish_via_partition_root = true)")
    shop.catch_up()

    assert [topic for topic, _, _ in shop.messages()] == ["orders.snapshot"]


def test_a_role_that_sees_only_some_rows_is_refused(
    open_shop: OpenShop, source_url: str, role: str, request: pytest.FixtureRequest
) -> None:
    """Row-level security would let a snapshot pass over rows silently."""
    shop = open_shop(source=as_role(source_url, role))
    admin = open_shop(f"sqlite:///{request.getfixturevalue('tmp_path')}/other.db")
    admin.sql(ORDERS, "insert into orders values (1), (2)", "alter table orders enable row level security",
              "create policy first_only on orders using (id = 1)", f"grant select on orders to {role}",
              f"alter role {role} replication")  # fmt: skip
    request.addfinalizer(lambda: admin.sql(f"drop owned by {role} cascade"))
    shop.capture()
    name = shop.box.captures["main"].declare().publication
    admin.sql(f"create publication {name} for table orders with (publish_via_partition_root = true)")
    with pytest.raises(CaptureError, match="row-level security"):
        shop.catch_up()
    assert (shop.row.state, shop.row.reason) == ("stopped", "NO_RIGHTS")
    assert shop.messages() == []
    admin.sql(f"alter role {role} bypassrls")
    shop.catch_up()
    assert len(shop.messages()) == 2


def test_a_publication_that_leaves_something_out_is_refused(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    name = shop.box.captures["main"].declare().publication
    shop.sql(f"create publication {name} for table orders with (publish = 'insert')")
    with pytest.raises(CaptureError, match="leaves some operations"):
        shop.catch_up()
    shop.sql(f"drop publication {name}", f"create publication {name} for table orders where (id > 5)"
             " with (publish_via_partition_root = true)")  # fmt: skip
    with pytest.raises(CaptureError, match="only some rows"):
        shop.catch_up()
    assert (shop.row.state, shop.row.reason) == ("stopped", "PUBLICATION_CHANGED")


@pytest.fixture(scope="session")
def small_dsn() -> str:
    """A server without logical decoding."""
    return started_dsn(server_home("capture-replica"), f"{postgres.FOR_TESTS} -c wal_level=replica")


def test_wal_level_too_low(open_shop: OpenShop, small_dsn: str) -> None:
    with fresh_database(small_dsn) as url:
        shop = open_shop(source=url)
        shop.sql(ORDERS)
        shop.capture()
        refused(shop, "WAL_LEVEL", hint="alter system set wal_level = logical")


def test_a_source_in_sqlite_is_refused_with_what_to_do_instead(sqlite_url: str, source_url: str) -> None:
    box = todoku.App(sqlite_url)
    with pytest.raises(InvalidSetting, match=r"box.publish\(…, tx=…\)"):
        box.capture("orders", topic="orders.{op}", key="id")
    other = todoku.App(source_url)
    with pytest.raises(InvalidSetting, match="no log of rows"):
        other.capture("orders", topic="orders.{op}", key="id", database=sqlite_url)
    assert len(other.captures) == 0
    box.close()
    other.close()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "orders {op}"}, "topic of public.orders"),
        ({"key": ()}, "key of orders"),
        ({"drop_slot_above": -1}, "drop_slot_above"),
        ({"name": ""}, "cannot be called"),
    ],
)
def test_a_wrong_declaration_is_refused_at_once(options: dict[str, object], message: str, shop: Shop) -> None:
    with pytest.raises(InvalidSetting, match=message):
        shop.capture(**options)


def test_a_table_is_declared_once_and_a_capture_has_one_database(shop: Shop, source_dsn: str) -> None:
    shop.capture()
    with pytest.raises(InvalidSetting, match="captured twice"):
        shop.capture("public.orders")
    with pytest.raises(InvalidSetting, match="two databases"):
        shop.capture("customers", database=source_dsn)
    shop.capture("customers", database=source_dsn, name="other")
    assert [capture.name for capture in shop.box.captures] == ["main", "other"]

"""How a database stores and compares texts (MEND-1)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

import psycopg
import pytest
from psycopg import sql

from tests.postgres.conftest import Make, Open, version
from tests.postgres.shop import TEXT, live_a_day
from tests.support.postgres import DEBIAN, fresh_database
from todoku import App
from todoku.core.errors import SchemaError

pytestmark = pytest.mark.postgres

ICU = {"ja-JP": "ja-JP", "natural numbers": "en-u-kn-true", "no accents": "und-u-ks-level1"}


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_MEND_1_another_encoding_is_refused_in_one_sentence(
    encoding: str, make_database: Make, open_shop: Open
) -> None:
    shop = open_shop(make_database(how=f"encoding '{encoding}' locale 'C'"), migrate=False)
    sentence = f"this database has the encoding {encoding}, and todoku needs UTF8"
    with pytest.raises(SchemaError, match=sentence):
        shop.box.migrate()
    assert shop.doctor()["encoding"].text == sentence


@pytest.mark.skipif(version() != DEBIAN, reason="PyPI's PostgreSQL is built without ICU: `make system-packages`")
@pytest.mark.parametrize("locale", ICU.values(), ids=ICU)
def test_MEND_1_collations_of_ICU(locale: str, make_database: Make, open_shop: Open) -> None:
    """They order texts in their own way, also where texts that are not the same count as equal in a list."""
    url = make_database(how=f"encoding 'UTF8' locale_provider icu icu_locale '{locale}' locale 'C'")
    shop = open_shop(url)
    live_a_day(shop, url)
    assert shop.doctor() == {}
    alike = ["e", "é", "E", "1", "01", "１", "か", "カ", "ｶ", "が"]
    stored = [
        shop.box.publish("order.made", {"fails": "never", "text": text}, tx=None, idempotency_key=text, key=text)
        for text in alike
    ]
    assert not any(message.duplicate for message in stored)
    assert len({message.id for message in stored}) == len(alike)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII", "EUC_JP", "WIN1252"])
def test_MEND_1_a_role_that_speaks_another_encoding(encoding: str, make_database: Make, open_shop: Open) -> None:
    """todoku's own connections speak UTF8 all the same; a caller's can send what its encoding has."""
    url = make_database(client_encoding=encoding)
    shop = open_shop(url)
    order = {"fails": "never", "text": TEXT}
    shop.box.publish("order.made", order, tx=None, idempotency_key=TEXT)
    plain = {"fails": "never", "text": "plain"}
    with psycopg.connect(url) as caller:
        assert caller.info.encoding != "utf-8"
        first = shop.box.publish("order.made", plain, tx=caller, idempotency_key="plain")
        again = shop.box.publish("order.made", plain, tx=caller, idempotency_key="plain")
        assert (again.id, again.duplicate) == (first.id, True)
    assert shop.box.drain() == 2
    assert shop.ran == [order, plain]


def test_MEND_1_a_character_that_the_callers_encoding_lacks(make_database: Make, open_shop: Open) -> None:
    """It is the caller's error, before anything is stored."""
    url = make_database(client_encoding="LATIN1")
    shop = open_shop(url)
    with psycopg.connect(url) as caller, pytest.raises(UnicodeEncodeError):
        shop.box.publish("order.made", {"fails": "never", "text": TEXT}, tx=caller)
    assert shop.standing() == {}


# ------------------------------------------------------------------------------------------------------- days


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York", "Pacific/Kiritimati", "<+0545>-05:45"])
@pytest.mark.parametrize("style", ["ISO", "SQL, DMY", "Postgres, MDY", "German"])
def test_MEND_1_partitions_begin_and_end_at_midnight_UTC(zone: str, style: str, shared_url: str) -> None:
    """Their bounds are written as text and read again, in whatever style and zone: "IST" is India's and Israel's."""
    with psycopg.connect(shared_url) as worker:
        worker.execute("select set_config('timezone', %s, true), set_config('datestyle', %s, true)", (zone, style))
        drop_days(worker)
        worker.execute("select todoku_history_ahead(7)")
        worker.execute("set local timezone = 'UTC'; set local datestyle = 'ISO'")
        bounds = worker.execute(
            "select right(c.relname, 8), pg_get_expr(c.relpartbound, c.oid) from pg_inherits"
            " join pg_class c on c.oid = inhrelid where inhparent = 'todoku_history'::regclass"
            " and c.relname ~ '[0-9]{8}$' order by 1"
        ).fetchall()
        worker.rollback()
    assert len(bounds) == 8
    for day, bound in bounds:
        assert f"FROM ('{day[:4]}-{day[4:6]}-{day[6:]} 00:00:00+00')" in bound


@pytest.fixture(scope="module")
def shared_url(stock_dsn: str) -> Iterator[str]:
    """A migrated database for tests that change nothing."""
    with fresh_database(stock_dsn) as url:
        box = App(url)
        box.migrate()
        box.close()
        yield url


def drop_days(connection: psycopg.Connection[tuple[str]]) -> None:
    days = "select inhrelid::regclass::text from pg_inherits where inhparent = 'todoku_history'::regclass"
    for (name,) in connection.execute(days).fetchall():
        if name.rpartition("_")[2].isdigit():
            connection.execute(sql.SQL("drop table {}").format(sql.Identifier(name)))


@pytest.mark.parametrize("change", ["2026-03-08T07:00:00+00:00", "2026-11-01T06:00:00+00:00"], ids=["spring", "autumn"])
@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_MEND_1_an_hour_is_an_hour_when_clocks_change(
    change: str, zone: str, make_database: Make, open_shop: Open
) -> None:
    """I12: the server's zone has one hour too few or twice; delays and times do not know."""
    shop = open_shop(make_database(timezone=zone))
    began = datetime.fromisoformat(change) - timedelta(minutes=30)
    set_clock = shop.box.store.database.set_clock
    set_clock(began.timestamp())
    shop.box.publish("order.late", {"fails": "never", "after": "an hour"}, tx=None, delay=3600)
    shop.box.publish("order.timed", {"fails": "never", "after": "two"}, tx=None, at=began + timedelta(hours=2))
    for seconds, ran in ((3599, 0), (3601, 1), (7199, 1), (7201, 2)):
        set_clock(began.timestamp() + seconds)
        shop.box.drain()
        assert len(shop.ran) == ran, f"after {seconds} s"

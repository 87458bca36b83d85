"""What only a whole server can be set to, and servers that may not be written to (MEND-1)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.daemon.running import shop_at, until
from tests.postgres.conftest import Make, Open, started, version
from tests.postgres.shop import live_a_day
from tests.support import postgres
from tests.support.postgres import fresh_database
from todoku import App
from todoku.core.errors import DatabaseUnavailable

pytestmark = pytest.mark.postgres

WATCHED = (
    "-c shared_preload_libraries=pg_stat_statements,auto_explain -c pg_stat_statements.track=all"
    " -c auto_explain.log_min_duration=0 -c auto_explain.log_analyze=on -c auto_explain.log_nested_statements=on"
)
SMALL = "-c max_connections=20"
PUBLISHERS, EACH = 16, 5


@pytest.mark.skipif(
    version() != postgres.DEBIAN, reason="PyPI's PostgreSQL has no contrib modules: `make system-packages`"
)
def test_MEND_1_every_statement_is_counted_and_explained(make_database: Make, open_shop: Open) -> None:
    """pg_stat_statements and auto_explain, with log_analyze, of nested statements too."""
    url = make_database(started("watched", WATCHED))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("create extension pg_stat_statements")
    shop = open_shop(url)
    live_a_day(shop, url)
    assert shop.doctor() == {}
    with psycopg.connect(url) as admin:
        seen = admin.execute("select from pg_stat_statements where query like '%todoku_delivery%'").rowcount
    assert seen > 0


@pytest.mark.slow
def test_MEND_1_a_server_with_twenty_connections(tmp_path: Path) -> None:
    """A daemon with two workers, and publishers that want more connections than are left: they are told so and try
    again; the daemon goes on, and everything arrives once."""
    with fresh_database(started("small", SMALL)) as url, shop_at(tmp_path, url) as shop:
        shop.box.migrate()
        daemon = shop.start("run", "--app", "shop:box", "--workers", "2")
        daemon.until_ready()

        def publish(who: int) -> int:
            refused, box = 0, App(url)

            @box.job
            async def quick(n: int) -> None: ...

            for number in range(who * EACH, who * EACH + EACH):
                while True:
                    try:
                        quick.using(idempotency_key=str(number)).enqueue(number)
                        break
                    except DatabaseUnavailable:
                        refused += 1
            box.close()
            return refused

        with ThreadPoolExecutor(PUBLISHERS) as pool:
            refused = sum(pool.map(publish, range(PUBLISHERS)))
        print(f"refused_connections: {refused}")
        everything = sorted(range(PUBLISHERS * EACH))
        until(lambda: len(shop.noted("quick")) >= len(everything), "all of them")
        assert sorted(int(line.split()[1]) for line in shop.noted("quick")) == everything
        assert daemon.stop() == 0


def test_MEND_1_a_database_that_says_it_is_read_only(make_database: Make, open_shop: Open) -> None:
    """People set this when nothing is to be written, so it is not overruled: whatever writes is refused."""
    url = make_database()
    open_shop(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"alter database {admin.info.dbname} set default_transaction_read_only = on")  # type: ignore[arg-type]
    shop = open_shop(url, migrate=False)
    sentence = "PostgreSQL is read-only .*default_transaction_read_only"
    with pytest.raises(DatabaseUnavailable, match=sentence):
        shop.box.migrate()
    assert "default_transaction_read_only" in shop.doctor()["writable"].todo
    with pytest.raises(DatabaseUnavailable, match=sentence):
        shop.box.publish("order.made", {"fails": "never"}, tx=None)

"""What a server, a database or a role may be set to: all works the same, or is refused in one sentence (MEND-1).

Each setting is the database's, so it holds for the callers' connections and for todoku's own.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.postgres.conftest import Make, Open
from tests.postgres.shop import live_a_day
from tests.support.crew import until

pytestmark = pytest.mark.postgres

HARMLESS: dict[str, dict[str, str]] = {
    "nothing": {},
    "repeatable read": {"default_transaction_isolation": "repeatable read"},
    "serializable": {"default_transaction_isolation": "serializable"},
    "deferrable": {"default_transaction_isolation": "serializable", "default_transaction_deferrable": "on"},
    "lock_timeout": {"lock_timeout": "50ms"},
    "statement_timeout": {"statement_timeout": "150ms"},
    "idle_in_transaction_session_timeout": {"idle_in_transaction_session_timeout": "100ms"},
    "idle_session_timeout": {"idle_session_timeout": "300ms"},
    "standard_conforming_strings": {"standard_conforming_strings": "off"},
    "work_mem": {"work_mem": "64kB"},
    "Asia/Tokyo": {"timezone": "Asia/Tokyo"},
    "America/New_York": {"timezone": "America/New_York"},
    "dates of SQL": {"datestyle": "SQL, DMY", "timezone": "Asia/Kolkata"},
    "German dates": {"datestyle": "German", "timezone": "Europe/Berlin"},
    "intervals": {"intervalstyle": "sql_standard"},
    "bytea_output": {"bytea_output": "escape"},
    "extra_float_digits": {"extra_float_digits": "0"},
    "row_security": {"row_security": "off"},
    "toast": {"default_toast_compression": "pglz"},
    "custom plans": {"plan_cache_mode": "force_custom_plan"},
    "generic plans": {"plan_cache_mode": "force_generic_plan"},
    "no index scans": {"enable_indexscan": "off", "enable_indexonlyscan": "off"},
    "synchronous_commit": {"synchronous_commit": "off"},
    "quoting": {"backslash_quote": "on", "quote_all_identifiers": "on", "array_nulls": "off"},
    "check_function_bodies": {"check_function_bodies": "off"},
    "transform_null_equals": {"transform_null_equals": "on"},
}


LIMITS = dict.fromkeys(("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout"), "50ms")


def test_MEND_1_migrate_waits_for_another_that_migrates(make_database: Make, open_shop: Open) -> None:
    """The limits of the role are meant for others: the second `migrate` waits as long as the first one takes."""
    url = make_database(**LIMITS)
    waits = "select from pg_locks where locktype = 'advisory' and not granted"
    with psycopg.connect(url) as first, psycopg.connect(url, autocommit=True) as admin, ThreadPoolExecutor(1) as pool:
        first.execute("set idle_in_transaction_session_timeout = 0")
        first.execute("select pg_advisory_xact_lock(hashtext('todoku migrate'))")
        second = pool.submit(open_shop, url)
        until(lambda: admin.execute(waits).rowcount == 1, what="the second to wait")
        admin.execute("set statement_timeout = 0; select pg_sleep(0.2)")  # four times what the role allows
        assert not second.done()
        first.commit()
        assert second.result(timeout=60).doctor() == {}


def test_MEND_1_limits_of_the_role_do_not_reach_transactions_of_ours(make_database: Make, open_shop: Open) -> None:
    """Claims and reads have the limits of todoku's settings; what takes long, such as `verify`, has none."""
    database = open_shop(make_database(**LIMITS)).box.store.database

    def limits(tx: Any) -> set[str]:
        return {tx.connection.execute(f"show {name}").fetchone()[0] for name in LIMITS}

    assert database.snapshot(limits) == {"0"}
    for found in (database.write("claim", limits), database.read(limits)):
        assert "50ms" not in found


@pytest.mark.parametrize("settings", HARMLESS.values(), ids=HARMLESS)
def test_MEND_1_a_day_goes_as_ever(settings: dict[str, str], make_database: Make, open_shop: Open) -> None:
    url = make_database(**settings)
    shop = open_shop(url)
    live_a_day(shop, url)
    known = {"durability"} if "synchronous_commit" in settings else set()
    assert set(shop.doctor()) == known

"""What a server, a database or a role may be set to: all works the same, or is refused in one sentence (MEND-1).

Each setting is the database's, so it holds for the callers' connections and for todoku's own.
"""

from __future__ import annotations

import pytest

from tests.postgres.conftest import Make, Open
from tests.postgres.shop import live_a_day

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


@pytest.mark.parametrize("settings", HARMLESS.values(), ids=HARMLESS)
def test_MEND_1_a_day_goes_as_ever(settings: dict[str, str], make_database: Make, open_shop: Open) -> None:
    url = make_database(**settings)
    shop = open_shop(url)
    live_a_day(shop, url)
    known = {"durability"} if "synchronous_commit" in settings else set()
    assert set(shop.doctor()) == known

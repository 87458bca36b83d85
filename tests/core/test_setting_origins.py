"""Where each setting comes from: as `gather_settings` takes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from todoku.core.settings import ALSO_READ_FROM, find_origins, gather_settings

VARIABLES = sorted({"TODOKU_LEASE_SEC", "TODOKU_PORT", *(name for names in ALSO_READ_FROM.values() for name in names)})


def test_a_variable_goes_before_the_file_and_the_first_that_is_not_empty_counts() -> None:
    environ = {"OUTBOX_LOCK_LEASE_SEC": " ", "OUTBOX_LEASE_SECONDS": "60", "TODOKU_ALERT_LAG": "5"}
    origins = find_origins(environ, {"lease_sec": 30, "port": 1, "alert_lag": 3})
    assert origins == {"lease_sec": "OUTBOX_LEASE_SECONDS", "port": "todoku.toml", "alert_lag": "TODOKU_ALERT_LAG"}


@pytest.mark.parametrize(
    ("environ", "file", "origin"),
    [
        ({"OUTBOX_BACKOFF_SEC": "1,2"}, {"backoff_sec": [3]}, "OUTBOX_BACKOFF_SEC"),
        ({"OUTBOX_BASE_BACKOFF_SECONDS": "1"}, {"backoff_sec": [3]}, "OUTBOX_BASE_BACKOFF_SECONDS"),
        ({}, {"backoff_sec": [3]}, "todoku.toml"),
        ({}, {}, None),
    ],
)
def test_the_back_off_has_names_of_its_own(
    environ: dict[str, str], file: dict[str, object], origin: str | None
) -> None:
    assert find_origins(environ, file).get("backoff") == origin


@given(st.dictionaries(st.sampled_from(VARIABLES), st.sampled_from(["", " ", "7"])), st.booleans())
def test_what_is_gathered_has_an_origin_and_nothing_else_has(environ: dict[str, str], in_file: bool) -> None:
    file: dict[str, object] = {"port": 1, "lease_sec": 30} if in_file else {}
    assert find_origins(environ, file).keys() == gather_settings(environ, file).keys()

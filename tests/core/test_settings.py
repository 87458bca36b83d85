"""Settings: the defaults of DESIGN §7, every name of the source documents, and clear errors."""

from __future__ import annotations

import math
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import quick
from todoku.core.backoff import DEFAULT, Backoff, exponential, linear, table
from todoku.core.errors import InvalidSetting
from todoku.core.oidc import ClientSecret
from todoku.core.scope import Secret
from todoku.core.sealed import MasterKey, MasterKeys, format_master_key
from todoku.core.settings import Settings, read_settings
from todoku.core.signature import SigningKeys

HOUR, DAY = 3600.0, 86_400.0
DEFAULTS: dict[str, object] = {
    "database": "sqlite:///todoku.db",
    "enabled": True,
    "concurrency": None,  # 4 destinations, 3 jobs: whoever runs them knows which
    "processes": None,  # 1 on SQLite, cores on PostgreSQL
    "batch": None,  # adaptive
    "poll_interval_sec": 0.5,
    "lease_sec": 120,
    "reclaim_interval_sec": 5,
    "max_processing_sec": 600,
    "max_attempts": 6,
    "max_lost": 3,
    "backoff": table(5, 10, 20, 40, 80, 160),
    "send_timeout_ms": 2500,
    "http_timeout_sec": 60,
    "drain_grace_sec": 25,
    "stats_interval_sec": 30,
    "tracebacks": "user",
    "span_ratio": 1.0,
    "notify": True,
    "host": "127.0.0.1",
    "port": 8320,
    "app": None,
    "guardrail_db_failures": 3,
    "unknown_after_sec": 600,
    "ledger_ttl": 48 * HOUR,
    "ingest_dedupe": 90 * DAY,
    "history_ttl": 30 * DAY,
    "max_payload_bytes": 1024 * 1024,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_without_anything_said_these_are_the_settings(name: str, value: object) -> None:
    """§7."""
    assert getattr(read_settings({}), name) == value


def test_what_is_read_is_frozen() -> None:
    with pytest.raises(AttributeError):
        read_settings({}).lease_sec = 5  # type: ignore[misc]


# Every name of the source documents (S0-85 … S0-92, S2-36, S3-29), and todoku's own.
NAMES: list[tuple[str, str, str, object]] = [
    ("DATABASE_URL", "postgresql://localhost/shop", "database", "postgresql://localhost/shop"),
    ("OUTBOX_ENABLED", "false", "enabled", False),
    ("OUTBOX_CONCURRENCY", "8", "concurrency", 8),
    ("WORKER_COUNT", "5", "concurrency", 5),
    ("OUTBOX_BATCH", "32", "batch", 32),
    ("OUTBOX_POLL_INTERVAL_SEC", "0.25", "poll_interval_sec", 0.25),
    ("OUTBOX_LOCK_LEASE_SEC", "30", "lease_sec", 30.0),
    ("OUTBOX_LEASE_SECONDS", "31", "lease_sec", 31.0),
    ("OUTBOX_RECLAIM_INTERVAL_SECONDS", "7", "reclaim_interval_sec", 7.0),
    ("OUTBOX_MAX_PROCESSING_SECONDS", "60", "max_processing_sec", 60.0),
    ("OUTBOX_MAX_ATTEMPTS", "3", "max_attempts", 3),
    ("BROKER_TIMEOUT_MS", "500", "send_timeout_ms", 500),
    ("OUTBOX_BACKOFF_SEC", "[5,10]", "backoff", table(5, 10)),
    ("OUTBOX_BACKOFF_SEC", "5,10", "backoff", table(5, 10)),
    ("OUTBOX_BACKOFF_SEC", " [ 0.5, 1 ] ", "backoff", table(0.5, 1)),
    ("OUTBOX_BACKOFF_SEC", "7", "backoff", table(7)),
    ("OUTBOX_BASE_BACKOFF_SECONDS", "2", "backoff", exponential(2, cap=60)),
    ("OUTBOX_MAX_BACKOFF_SECONDS", "30", "backoff", exponential(1, cap=30)),
    ("TODOKU_DATABASE", "sqlite:///other.db", "database", "sqlite:///other.db"),
    ("TODOKU_SCHEMA", "queue", "schema", "queue"),
    ("TODOKU_PROCESSES", "2", "processes", 2),
    ("TODOKU_BACKOFF_SEC", "1,2,3", "backoff", table(1, 2, 3)),
    ("TODOKU_HTTP_TIMEOUT_SEC", "9.5", "http_timeout_sec", 9.5),
    ("TODOKU_DRAIN_GRACE_SEC", "0", "drain_grace_sec", 0.0),
    ("TODOKU_LEDGER_TTL", "60", "ledger_ttl", 60.0),
    ("TODOKU_SQLITE_WAL", "1", "sqlite_wal", True),
]


@pytest.mark.parametrize(("variable", "text", "name", "value"), NAMES)
def test_a_setting_is_read_from_the_environment(variable: str, text: str, name: str, value: object) -> None:
    assert getattr(read_settings({variable: text}), name) == value
    assert getattr(read_settings({variable: f"  {text} "}), name) == value


def test_a_curve_may_have_both_ends() -> None:
    environ = {"OUTBOX_BASE_BACKOFF_SECONDS": "2", "OUTBOX_MAX_BACKOFF_SECONDS": "300"}
    assert read_settings(environ).backoff == exponential(2, cap=300)


@pytest.mark.parametrize("name", [name for name in Settings.__struct_fields__ if name not in ("backoff", "alerts")])
def test_every_setting_has_its_own_name_in_the_environment(name: str) -> None:
    said: dict[type, tuple[str, object]] = {bool: ("no", False), int: ("77", 77), float: ("7.5", 7.5), str: ("x", "x")}
    said[tuple] = ("pin, Phone Number,", ("pin", "Phone Number"))
    optional: dict[str, type] = {"schema": str, "concurrency": int, "processes": int, "batch": int, "sqlite_wal": bool}
    optional["app"] = optional["secrets_dir"] = str
    optional["oidc_client_secret"] = ClientSecret
    optional["oidc_issuer"] = optional["oidc_client_id"] = str
    said[ClientSecret] = ("s3cret", ClientSecret("s3cret"))
    optional["api_connections"] = optional["api_connections_per_address"] = int
    optional |= {"token": Secret, "signing_keys": SigningKeys}
    said[MasterKeys] = (format_master_key("k", bytes(32)), MasterKeys(MasterKey("k", bytes(32))))
    said[Secret] = ("a-token-of-chance", Secret("a-token-of-chance"))
    said[SigningKeys] = (f"{'a' * 16},{'b' * 16}", SigningKeys(current="a" * 16, next="b" * 16))
    chosen = {"encrypt": "all", "trace_url": "https://jaeger.example/{trace_id}"}
    kind = optional.get(name) or type(getattr(Settings(), name))
    text, value = (chosen[name], chosen[name]) if name in chosen else said[kind]
    environ = {}
    match name:
        case "oidc_issuer":
            text = value = "https://id.example"
            environ = {"TODOKU_OIDC_CLIENT_ID": "todoku"}
        case "oidc_client_id":
            text = value = "todoku"
            environ = {"TODOKU_OIDC_ISSUER": "https://id.example"}
        case "oidc_roles":
            text, value = "groups=ops:operator, groups=all:viewer", ("groups=ops:operator", "groups=all:viewer")
    if name == "tracebacks":
        text, value = "full", "full"
    if name == "span_ratio":
        text, value = "0.25", 0.25
    if name == "trusted_proxies":
        text, value = "10.0.0.5, 10.1.0.0/16", ("10.0.0.5", "10.1.0.0/16")
    assert getattr(read_settings({**environ, f"TODOKU_{name.upper()}": text}), name) == value


@pytest.mark.parametrize(("variable", "text", "name"), [row[:3] for row in NAMES if not row[0].startswith("TODOKU")])
def test_todokus_own_name_comes_before_those_of_the_source_documents(variable: str, text: str, name: str) -> None:
    own: dict[str, tuple[str, str, object]] = {
        "backoff": ("TODOKU_BACKOFF_SEC", "99", table(99)),
        "enabled": ("TODOKU_ENABLED", "true", True),
        "database": ("TODOKU_DATABASE", "99", "99"),
    }
    ours, said, expected = own.get(name, (f"TODOKU_{name.upper()}", "99", 99))
    assert getattr(read_settings({variable: text, ours: said}), name) == expected


@pytest.mark.parametrize(
    ("environ", "file", "given", "expected"),
    [
        ({}, {}, {}, 120),
        ({}, {"lease_sec": 10}, {}, 10),
        ({"OUTBOX_LOCK_LEASE_SEC": "20"}, {"lease_sec": 10}, {}, 20),
        ({"OUTBOX_LEASE_SECONDS": "20", "OUTBOX_LOCK_LEASE_SEC": "25"}, {"lease_sec": 10}, {}, 25),
        ({"TODOKU_LEASE_SEC": "30", "OUTBOX_LOCK_LEASE_SEC": "25"}, {"lease_sec": 10}, {}, 30),
        ({"TODOKU_LEASE_SEC": "30"}, {"lease_sec": 10}, {"lease_sec": 40}, 40),
        ({"TODOKU_LEASE_SEC": ""}, {"lease_sec": 10}, {}, 10),
        ({"TODOKU_LEASE_SEC": "  "}, {"lease_sec": 10}, {"lease_sec": None}, 10),
    ],
)
def test_arguments_come_before_the_environment_and_that_before_the_file(
    environ: dict[str, str], file: dict[str, object], given: dict[str, object], expected: float
) -> None:
    """§7; an empty variable and an absent argument say nothing."""
    assert read_settings(environ, file, **given).lease_sec == expected


@pytest.mark.parametrize(
    ("environ", "file", "given", "expected"),
    [
        ({}, {"backoff_sec": [1, 2]}, {}, table(1, 2)),
        ({}, {"backoff_sec": "1,2"}, {}, table(1, 2)),
        ({"OUTBOX_BACKOFF_SEC": "3"}, {"backoff_sec": [1, 2]}, {}, table(3)),
        ({"OUTBOX_BASE_BACKOFF_SECONDS": "3"}, {"backoff_sec": [1, 2]}, {}, exponential(3, cap=60)),
        ({"OUTBOX_BACKOFF_SEC": "3", "OUTBOX_BASE_BACKOFF_SECONDS": "9"}, {}, {}, table(3)),
        ({"OUTBOX_BACKOFF_SEC": "3", "TODOKU_BACKOFF_SEC": "4"}, {}, {}, table(4)),
        ({"OUTBOX_BACKOFF_SEC": " "}, {}, {}, DEFAULT),
        ({"OUTBOX_BACKOFF_SEC": "3"}, {"backoff_sec": [1]}, {"backoff": linear(minutes=5)}, linear(minutes=5)),
    ],
)
def test_the_same_holds_for_the_back_off(
    environ: dict[str, str], file: dict[str, object], given: dict[str, object], expected: Backoff
) -> None:
    assert read_settings(environ, file, **given).backoff == expected


@pytest.mark.parametrize("name", ["enabled", "prepare_statements", "sqlite_wal"])
@pytest.mark.parametrize(
    ("words", "expected"),
    [(("1", "true", "True", "YES", "on", " on "), True), (("0", "false", "FALSE", "no", "Off"), False)],
)
def test_a_switch_understands_what_people_write(name: str, words: tuple[str, ...], expected: bool) -> None:
    for word in words:
        assert getattr(read_settings({f"TODOKU_{name.upper()}": word}), name) is expected
        assert getattr(read_settings({}, {name: word}), name) is expected
    assert getattr(read_settings({}, {name: expected}), name) is expected


BAD: list[tuple[dict[str, str], dict[str, object], str]] = [
    ({"TODOKU_ENABLED": "maybe"}, {}, "enabled"),
    ({"TODOKU_LEASE_SEC": "soon"}, {}, "lease_sec"),
    ({"TODOKU_LEASE_SEC": "0"}, {}, "lease_sec cannot be 0"),
    ({"TODOKU_LEASE_SEC": "-5"}, {}, "lease_sec cannot be -5"),
    ({"TODOKU_LEASE_SEC": "0.5"}, {}, "lease_sec cannot be 0.5"),
    ({"TODOKU_LEASE_SEC": "nan"}, {}, "lease_sec cannot be nan"),
    ({"TODOKU_LEASE_SEC": "inf"}, {}, "lease_sec cannot be inf"),
    ({}, {"ledger_ttl": math.inf}, "ledger_ttl cannot be inf"),
    ({"OUTBOX_MAX_ATTEMPTS": "0"}, {}, "max_attempts cannot be 0"),
    ({"OUTBOX_MAX_ATTEMPTS": "1.5"}, {}, "max_attempts"),
    ({"OUTBOX_BATCH": "-1"}, {}, "batch cannot be -1"),
    ({"WORKER_COUNT": "0"}, {}, "concurrency cannot be 0"),
    ({"TODOKU_DRAIN_GRACE_SEC": "-1"}, {}, "drain_grace_sec cannot be -1"),
    ({"TODOKU_DRAIN_GRACE_SEC": "nan"}, {}, "drain_grace_sec cannot be nan"),
    ({"TODOKU_PORT": "65536"}, {}, "port cannot be 65536"),
    ({"TODOKU_PORT": "-1"}, {}, "port cannot be -1"),
    ({"TODOKU_STATS_INTERVAL_SEC": "0"}, {}, "stats_interval_sec cannot be 0"),
    ({"TODOKU_SPAN_RATIO": "1.5"}, {}, "span_ratio cannot be 1.5"),
    ({"TODOKU_MAX_PAYLOAD_BYTES": "1 MiB"}, {}, "max_payload_bytes"),
    ({"OUTBOX_BACKOFF_SEC": "5;10"}, {}, "back-off"),
    ({"OUTBOX_BACKOFF_SEC": "[]"}, {}, "back-off"),
    ({"OUTBOX_BACKOFF_SEC": "[5,-1]"}, {}, "back-off"),
    ({"OUTBOX_BACKOFF_SEC": "[NaN]"}, {}, "back-off"),
    ({"OUTBOX_BACKOFF_SEC": '["a"]'}, {}, "back-off"),
    ({"OUTBOX_BACKOFF_SEC": "[null]"}, {}, "back-off"),
    ({"OUTBOX_BASE_BACKOFF_SECONDS": "fast"}, {}, "back-off"),
    ({"OUTBOX_MAX_BACKOFF_SECONDS": "0"}, {}, "back-off"),
    ({}, {"backoff_sec": 5}, "back-off"),
    ({}, {"backoff_sec": {"base": 5}}, "back-off"),
    ({}, {"backoff": [5, 10]}, "back-off"),
    ({}, {"lease": 5}, "unknown field `lease`"),
    ({}, {"database": 5}, "database"),
]


@pytest.mark.parametrize(("environ", "file", "said"), BAD)
def test_a_value_that_makes_no_sense_is_a_clear_error(
    environ: dict[str, str], file: dict[str, object], said: str
) -> None:
    """The error names the setting and has a hint; it is never a traceback of somebody else's."""
    with pytest.raises(InvalidSetting, match=said) as caught:
        read_settings(environ, file)
    assert caught.value.hint


def test_an_argument_nobody_knows_is_an_error_too() -> None:
    with pytest.raises(InvalidSetting, match="leese_sec"):
        read_settings({}, None, leese_sec=5)
    with pytest.raises(InvalidSetting, match="back-off policy"):
        read_settings({}, None, backoff="5,10")


def test_what_is_not_ours_in_the_environment_is_not_read() -> None:
    assert read_settings({"LEASE_SEC": "5", "OUTBOX_NONSENSE": "1", "TODOKU_NONSENSE": "1", "HOME": "/"}) == Settings()


@quick
@given(st.dictionaries(st.sampled_from([row[0] for row in NAMES]), st.text(max_size=12), max_size=3))
def test_no_environment_leads_to_anything_but_settings_or_a_clear_error(environ: dict[str, str]) -> None:
    with suppress(InvalidSetting):  # and no other error
        assert isinstance(read_settings(environ), Settings)


@quick
@given(st.lists(st.floats(0, 86_400), min_size=1, max_size=8))
def test_a_table_is_read_as_it_was_written(delays: list[float]) -> None:
    for text in (msgspec.json.encode(delays).decode(), ", ".join(map(repr, delays))):
        assert read_settings({"OUTBOX_BACKOFF_SEC": text}).backoff == table(*delays)

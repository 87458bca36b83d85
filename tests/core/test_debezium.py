"""Issue 15: the configuration of a Debezium connector: what a URL gives, what is refused, and how it is written."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from todoku.core import topic_pattern
from todoku.core.debezium import (
    DatabaseAddress,
    DebeziumConnector,
    check_connector,
    condition,
    connector_settings,
    name_connector,
    publication_sql,
    read_address,
    remarks,
    write_json,
    write_properties,
)
from todoku.core.errors import InvalidMessage, InvalidSetting, UnknownDatabase

ADDRESS = DatabaseAddress(host="db.internal", port=5433, database="shop", user="debezium")
TLS = (("sslmode", "verify-full"), ("sslrootcert", "/ca.pem"))
CONNECTOR = DebeziumConnector(address=ADDRESS, name="todoku-shop")


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://debezium:secret@db.internal:5433/shop", ADDRESS),
        ("postgres://debezium@db.internal:5433/shop", ADDRESS),
        ("postgresql+psycopg://debezium@db.internal:5433/shop", ADDRESS),
        ("postgresql://debezium@db.internal:5433/shop?connect_timeout=3", ADDRESS),
        ("postgresql:///shop?host=db.internal&port=5433&user=debezium", ADDRESS),
        ("postgresql://a%40b@h/x%20y", DatabaseAddress(host="h", port=5432, database="x y", user="a@b")),
        ("postgresql://me@h", DatabaseAddress(host="h", port=5432, database="me", user="me")),
        ("postgresql://me@[::1]:7/x", DatabaseAddress(host="::1", port=7, database="x", user="me")),
        (
            "postgresql://me@h/x?sslmode=verify-full&sslrootcert=/ca.pem",
            DatabaseAddress(host="h", port=5432, database="x", user="me", tls=TLS),
        ),
    ],
)  # fmt: skip
def test_the_server_is_taken_from_the_url(url: str, address: DatabaseAddress) -> None:
    assert read_address(url) == address


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///todoku.db", "log of a PostgreSQL server.*--db postgresql://user@host/name"),
        ("shop.db", "log of a PostgreSQL server"),
        ("postgresql:///shop", "one host, by TCP and as a named user"),
        ("postgresql://me@/shop?host=/run/postgresql", "one host, by TCP"),
        ("postgresql://me:secret@a:1,b:2/shop", "one host"),
        ("postgresql://db.internal/shop", "as a named user"),
        ("postgresql://me@h:port/shop", "cannot be read"),
        ("postgresql://me@h/shop?port=high", "cannot be read"),
    ],
)
def test_a_database_that_debezium_cannot_reach_is_refused(url: str, says: str) -> None:
    with pytest.raises(UnknownDatabase, match=says) as raised:
        read_address(url)
    assert "secret" not in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"name": "shop/1"}, InvalidSetting),
        ({"name": ""}, InvalidSetting),
        ({"schema": "a.b"}, InvalidSetting),
        ({"kafka_topic": "no topic"}, InvalidSetting),
        ({"password": "hunter2"}, InvalidSetting),
        ({"topics": ("a:b",)}, InvalidSetting),
        ({"topics": ("a'b",)}, InvalidMessage),
    ],
)
def test_what_kafka_or_debezium_cannot_take_is_refused(changed: dict[str, object], error: type[Exception]) -> None:
    connector = msgspec.structs.replace(CONNECTOR, **changed)
    with pytest.raises(error) as raised:
        check_connector(connector)
    assert "hunter2" not in str(raised.value)


def test_a_topic_that_kafka_cannot_have_goes_to_one_that_it_can() -> None:
    connector = msgspec.structs.replace(CONNECTOR, topics=("a:b",), kafka_topic="events")
    assert connector_settings(check_connector(connector))["transforms.outbox.route.topic.replacement"] == "events"
    assert "[A-Za-z0-9._-]" in condition(CONNECTOR)
    assert "[A-Za-z0-9._-]" not in condition(connector)


def test_slot_and_publication_are_named_after_the_database() -> None:
    """Slots of all databases of a server share names, and take few characters."""
    address = msgspec.structs.replace(ADDRESS, database="My Shop/" + "x" * 99)
    connector = check_connector(DebeziumConnector(address=address, name=name_connector(address)))
    assert re.fullmatch(r"todoku_my_shop_x+", connector.slot)
    assert len(connector.slot) <= 63
    settings = connector_settings(connector)
    assert settings["slot.name"] == settings["publication.name"] == connector.slot
    assert f'create publication "{connector.slot}" for table "public".todoku_message where (' in publication_sql(
        connector
    )


def test_the_snapshot_and_the_publication_have_the_same_condition() -> None:
    connector = msgspec.structs.replace(CONNECTOR, schema="orders", topics=("order.**", "stock.*.moved"))
    settings, wanted = connector_settings(connector), condition(connector)
    assert wanted in settings["snapshot.select.statement.overrides.orders.todoku_message"]
    assert publication_sql(connector).count(f"({wanted})") == 2
    assert settings["table.include.list"] == r"orders\.todoku_message"
    assert settings["snapshot.mode"] == "initial"
    assert connector_settings(msgspec.structs.replace(connector, from_now=True))["snapshot.mode"] == "no_data"


SEGMENT = st.text("ab_", min_size=1, max_size=2)


@given(
    st.lists(st.one_of(SEGMENT, st.just("*"), st.just("**")), min_size=1, max_size=4),
    st.lists(SEGMENT, min_size=1, max_size=4),
)
def test_the_expression_of_a_pattern_matches_what_the_pattern_does(pattern: list[str], topic: list[str]) -> None:
    """The operators it uses mean the same in PostgreSQL and in Python."""
    connector = msgspec.structs.replace(CONNECTOR, topics=(".".join(pattern),), kafka_topic="events")
    found = re.fullmatch(r"payload is not null and \('\.' \|\| topic\) ~ '(.*)'", condition(connector))
    assert found is not None
    matched = re.search(found[1], "." + ".".join(topic)) is not None
    assert matched == topic_pattern.matches(".".join(pattern), ".".join(topic))


def unescape(text: str) -> str:
    r"""As java.util.Properties reads a value: \uXXXX is a UTF-16 unit, a backslash makes the next character itself."""
    read = re.sub(
        r"\\(?:u([0-9a-f]{4})|(.))",
        lambda found: chr(int(found[1], 16)) if found[1] else found[2],
        text,
        flags=re.DOTALL,
    )
    return read.encode("utf-16-be", "surrogatepass").decode("utf-16-be")


@given(st.text(min_size=1))
def test_a_properties_file_has_the_same_values_as_the_json(user: str) -> None:
    connector = msgspec.structs.replace(CONNECTOR, address=msgspec.structs.replace(ADDRESS, user=user))
    document = json.loads(write_json(connector))
    lines = write_properties(connector).removesuffix("\n").split("\n")
    assert all(line.isascii() for line in lines)
    assert {name: unescape(value) for name, _, value in (line.partition("=") for line in lines)} == (
        {"name": document["name"]} | document["config"]
    )


def test_what_is_encrypted_is_warned_of() -> None:
    """Encrypted payloads are bytes, which Debezium does not get."""
    connector = msgspec.structs.replace(CONNECTOR, topics=("order.**",))
    quiet = remarks(connector, encrypts_all=False, encrypted=("person.moved",))
    assert [line for line in quiet if "warning" in line] == []
    assert "order.paid" in remarks(connector, encrypts_all=False, encrypted=("person.moved", "order.paid"))[-1]
    assert "TODOKU_ENCRYPT=all" in remarks(connector, encrypts_all=True, encrypted=())[-1]
    assert "person.moved" in remarks(CONNECTOR, encrypts_all=False, encrypted=("person.moved",))[-1]
    in_file = msgspec.structs.replace(connector, password="${file:/etc/debezium:password}")
    assert "${file:/etc/debezium:password}" in remarks(in_file, encrypts_all=False, encrypted=())[0]

"""Issue 15: Debezium itself takes what `todoku debezium-config` prints, and events arrive as they were published."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from click.testing import CliRunner

import todoku
from tests.destinations.kinds import Kind, only
from tests.support import postgres
from tests.support.connect import ConnectWorker
from tests.support.ports import free_port
from tests.support.services import PATIENCE, skip_without
from todoku.cli.main import cli

ROLE, PASSWORD, SCHEMA, NAME = "debezium", 'a pass%word, quite "secret"', "orders", "todoku-shop"
DURING_THE_KILL = 300
"""Events that are published while the worker is dead or about to be."""


class Record(msgspec.Struct, frozen=True):
    """What a consumer of Kafka sees of a message."""

    topic: str
    key: str | None
    value: str
    own_headers: str | None
    message_id: str
    others: dict[str, str | None]

    @classmethod
    def read(cls, record: Any) -> Record:
        headers = {name: None if value is None else value.decode() for name, value in record.headers}
        own, message_id = headers.pop("todoku-headers"), headers.pop("todoku-message-id")
        assert datetime.fromisoformat(headers.pop("todoku-created-at") or "").tzinfo is not None
        key = None if record.key is None else record.key.decode()
        return cls(record.topic, key, record.value.decode(), own, message_id or "", headers)

    @classmethod
    def expected(cls, topic: str, key: str | None, value: str, own_headers: str | None, message_id: str) -> Record:
        others = {"id": message_id, "todoku-topic": topic, "eventType": topic, "content-type": "application/json"}
        return cls(topic, key, value, own_headers, message_id, dict(others))


class Source(msgspec.Struct, frozen=True):
    """A database whose log can be read: as todoku reaches it, as Debezium does, and another one on its server."""

    url: str
    seen_by_debezium: str
    neighbour: str


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[ConnectWorker]:
    """Kafka Connect, not started yet."""
    skip_without(ConnectWorker)
    made = ConnectWorker(tmp_path / "connect")
    yield made
    made.stop()


@pytest.fixture
def source() -> Iterator[Source]:
    """A PostgreSQL server of its own, which asks clients that connect by TCP for their password."""
    above, port = Path(os.environ["TODOKU_TEST_HOME"]), free_port()
    above.chmod(0o711)  # run as root, the server is another user's, who must come through
    (home := above / "debezium").mkdir()
    options = f"-c wal_level=logical -c fsync=off -c listen_addresses=127.0.0.1 -c port={port}"
    dsn = f"{postgres.started_dsn(home, options)}&port={port}"
    try:
        (home / "data" / "pg_hba.conf").write_text("local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute("select pg_reload_conf()")
            admin.execute("create database shop")
            admin.execute(f"create role {ROLE} login replication password '{PASSWORD}'")
        debezium = f"postgresql://{ROLE}:never-printed@127.0.0.1:{port}/shop"
        yield Source(postgres.database_url(dsn, "shop"), debezium, dsn)
    finally:
        postgres.stop_server(home)


@pytest.fixture
def box(source: Source) -> Iterator[todoku.App]:
    app = todoku.App(source.url, schema=SCHEMA)
    app.route("**", to=todoku.log("elsewhere"))
    app.migrate()
    yield app
    app.close()


class Events:
    """Publishes events of every shape, and knows what has to arrive of each."""

    def __init__(self, box: todoku.App, prefix: str) -> None:
        self._box = box
        self._prefix = prefix
        self.topics = [f"{prefix}.{name}" for name in ("created", "shipped", "paid.late")]
        self.expected: dict[str, Record] = {}

    def publish(self, name: str, payload: Any, key: str | None = None, **headers: str) -> None:
        """One event that has to arrive."""
        topic = f"{self._prefix}.{name}"
        message = self._box.publish(topic, payload, key=key, headers=headers, tx=None)
        own = msgspec.json.encode(headers).decode() if headers else None
        text, message_id = msgspec.json.encode(payload).decode(), str(message.id)
        self.expected[message_id] = Record.expected(topic, key, text, own, message_id)

    def publish_every_shape(self) -> None:
        """With and without a key and headers, every kind of JSON; among them two that are not for Debezium."""
        self.publish("created", {"id": 7, "名": "さくら", "nested": {"list": [1, 2.5, None, True]}}, "customer-7")
        self.publish("created", {"text": 'a "quoted" \\ line\nand another'}, "ключ 8", tenant="blue", note='"hi", ünï')
        self._box.publish(f"{self._prefix}.created", b"bytes", tx=None)
        self._box.publish("stock.moved", {"another": "topic"}, tx=None)
        self.publish("shipped", ["a", "list"], tenant="green")
        self.publish("shipped", "only text")
        self.publish("shipped", None, "customer-7")
        self.publish("paid.late", 42)


def printed(source: Source, events: Events, *options: str) -> str:
    """What the command prints for these events: no other setting is added."""
    chosen = [word for topic in events.topics for word in ("--topic", topic)]
    command = ["debezium-config", "--db", source.seen_by_debezium, "--schema", SCHEMA, *chosen]
    done = CliRunner().invoke(cli, [*command, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    assert "never-printed" not in done.output
    return done.stdout


@asynccontextmanager
async def _consumer(kind: Kind, topics: list[str]) -> AsyncIterator[Any]:
    from aiokafka import AIOKafkaConsumer

    consumer = AIOKafkaConsumer(
        *topics, bootstrap_servers=kind.service.url, auto_offset_reset="earliest", metadata_max_age_ms=500
    )
    await consumer.start()
    try:
        yield consumer
    finally:
        await consumer.stop()


def read(kind: Kind, events: Events, until: Callable[[set[str]], bool]) -> list[Record]:
    """Everything that the topics hold, from their beginnings, until the ids that were read are enough."""

    async def everything() -> list[Record]:
        found: list[Record] = []
        async with _consumer(kind, events.topics) as consumer:
            while not until({record.message_id for record in found}):
                batch = await consumer.getmany(timeout_ms=500)
                found += [Record.read(record) for records in batch.values() for record in records]
        return found

    return asyncio.run(asyncio.wait_for(everything(), PATIENCE))


def kafka_topics(kind: Kind) -> set[str]:
    async def names() -> set[str]:
        async with _consumer(kind, []) as consumer:
            return set(await consumer.topics())

    return asyncio.run(names())


@pytest.mark.slow
@pytest.mark.postgres
@only("kafka")
def test_events_arrive_as_published_and_none_is_missing_after_a_kill(
    kind: Kind, worker: ConnectWorker, source: Source, box: todoku.App, address: str, tmp_path: Path
) -> None:
    """Issue 15: key, id, type, headers and payload, once; after kill -9 of Debezium none is missing."""
    events = Events(box, address)
    with psycopg.connect(source.url, autocommit=True) as admin:
        admin.execute(printed(source, events, "--sql").encode())
    events.publish_every_shape()  # the first snapshot finds these
    (tmp_path / "connector.json").write_text(printed(source, events))
    worker.configure(tmp_path / "connector.json", NAME, broker=kind.service.url, password=PASSWORD)
    worker.start()
    events.publish_every_shape()  # and these come by the log

    got = read(kind, events, lambda ids: ids >= set(events.expected))
    assert {record.message_id: record for record in got} == events.expected
    assert set(Counter(record.message_id for record in got).values()) == {1}

    before = set(events.expected)
    for number in range(DURING_THE_KILL):
        events.publish("created", {"number": number}, f"key-{number % 7}", number=str(number))
    read(kind, events, lambda ids: bool(ids - before))
    worker.kill()
    events.publish_every_shape()
    (tmp_path / "connector.properties").write_text(printed(source, events, "--properties"))
    worker.configure(tmp_path / "connector.properties", NAME, broker=kind.service.url, password=PASSWORD)
    worker.start()
    got = read(kind, events, lambda ids: ids >= set(events.expected))
    assert {record.message_id: record for record in got} == events.expected
    assert [name for name in kafka_topics(kind) if name.startswith(NAME)] == []  # no topic of changes or log messages

    _expect_the_slot_to_keep_up(source)


def _expect_the_slot_to_keep_up(source: Source) -> None:
    """The log that another database fills is not kept for a connector that has nothing to send (frontier §4)."""
    with psycopg.connect(source.neighbour, autocommit=True) as neighbour:
        neighbour.execute("create table noise as select generate_series(1, 10000)")
        ((target,),) = neighbour.execute("select pg_current_wal_lsn()").fetchall()
        deadline = time.monotonic() + PATIENCE
        behind = "select confirmed_flush_lsn < %s from pg_replication_slots where slot_name = 'todoku_shop'"
        while neighbour.execute(behind, (target,)).fetchall() != [(False,)]:
            assert time.monotonic() < deadline, "the slot stays where it was"
            time.sleep(0.1)

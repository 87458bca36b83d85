"""Bad input is a clear error, with a hint, and nothing is stored and nothing lost."""

from __future__ import annotations

import json
import math
import os
import pwd
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.postgres import database_url, fresh_database
from tests.support.world import Backend, World
from todoku.app import App
from todoku.core.errors import (
    DatabaseUnavailable,
    InvalidMessage,
    InvalidSetting,
    NoRoute,
    SchemaError,
    StoreError,
    TodokuError,
    UnknownDatabase,
)
from todoku.store.sqlite.database import file_path

NUL, HALF = "\0", "\ud800"
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - that it has no time zone is the point
MIB = 1 << 20


@pytest.fixture
def box(world: World) -> Iterator[App]:
    """An App on the world's database, with a route for everything."""
    box = App(world.url)
    box.route("**", to="warehouse")
    yield box
    box.close()


def nothing_is_stored(world: World) -> bool:
    return all(
        world.sql(f"select count(*) from todoku_{table}") == [(0,)]
        for table in ("message", "delivery", "ledger", "lane")
    )


def refusal(kind: type[TodokuError], call: Callable[..., object], *values: Any, **options: Any) -> TodokuError:
    """The error that a call raises: of the kind expected, in one line, with a hint."""
    with pytest.raises(kind) as told:
        call(*values, **options)
    assert told.value.hint, told.value
    assert "\n" not in str(told.value)
    assert len(str(told.value)) < 1000, "a message for a person, not the whole input"
    return told.value


@contextmanager
def about(name: str) -> Iterator[None]:
    """A failure inside says which of the many it is about."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"about {name}")
        raise


# ---------------------------------------------------------------------------------------------- messages


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def circular() -> Any:
    value: dict[str, Any] = {"n": 1}
    value["self"] = value
    return value


def deep_dict(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": value}
    return value


BAD_PAYLOADS: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a set of objects": lambda: {object()},
    "a function": lambda: {"call": print},
    "a tuple as a name": lambda: {("a", "b"): 1},
    "a type": lambda: dict,
    "not a number": lambda: {"n": math.nan},
    "infinity": lambda: [math.inf],
    "minus infinity": lambda: -math.inf,
    "not a number as a name": lambda: {math.nan: 1},
    "a datetime without a time zone": lambda: {"at": NAIVE},
    "10,000 lists deep": lambda: nested(10_000),
    "10,000 objects deep": lambda: deep_dict(10_000),
    "101 deep": lambda: nested(101),
    "itself inside itself": circular,
    "NUL in a text": lambda: {"name": f"a{NUL}b"},
    "NUL in a name": lambda: {f"a{NUL}b": 1},
    "NUL deep inside": lambda: {"a": [{"b": [NUL]}]},
    "half a surrogate pair": lambda: {"name": HALF},
    "half a surrogate pair in a name": lambda: {HALF: 1},
    "a number with 5,000 digits": lambda: {"n": 10**5000},
}


def test_a_payload_that_is_not_json_is_refused(world: World, box: App) -> None:
    """Issue, "It shows": not JSON, NaN, 10,000-deep nesting, NUL in text."""
    for name, payload in BAD_PAYLOADS.items():
        for key in (None, "k"):
            with about(name):
                refusal(InvalidMessage, box.publish, "order.created", payload(), tx=None, idempotency_key=key)
    assert nothing_is_stored(world)


def test_a_payload_over_the_limit_is_refused_with_its_size(world: World, box: App) -> None:
    """DESIGN §7: max_payload_bytes is 1 MiB. Bytes count, not characters."""
    for payload in ("x" * (MIB - 1), "é" * (MIB // 2), b"x" * (MIB + 1)):
        error = refusal(InvalidMessage, box.publish, "order.created", payload, tx=None)
        assert str(MIB) in str(error)
        assert "TODOKU_MAX_PAYLOAD_BYTES" in error.hint
    assert nothing_is_stored(world)
    for payload in ("x" * (MIB - 2), b"x" * MIB):
        box.publish("order.created", payload, tx=None)
    assert len(world.deliveries()) == 2


BAD_OPTIONS: dict[str, dict[str, Any]] = {
    "an empty key": {"key": ""},
    "a key of 513 characters": {"key": "k" * 513},
    "NUL in the key": {"key": f"a{NUL}"},
    "half a surrogate pair in the key": {"key": HALF},
    "a key that is a number": {"key": 7},
    "an empty idempotency key": {"idempotency_key": ""},
    "an idempotency key of 513 characters": {"idempotency_key": "k" * 513},
    "NUL in the idempotency key": {"idempotency_key": NUL},
    "an idempotency key that is bytes": {"idempotency_key": b"k"},
    "a negative delay": {"delay": -1},
    "a negative timedelta": {"delay": timedelta(seconds=-1)},
    "a delay that is not a number": {"delay": math.nan},
    "an infinite delay": {"delay": math.inf},
    "a delay of eleven years": {"delay": timedelta(days=11 * 366)},
    "a delay too large for a float": {"delay": 10**400},
    "a delay in words": {"delay": "soon"},
    "an expiry of nothing": {"expires": 0},
    "a negative expiry": {"expires": -5},
    "an expiry that is not a number": {"expires": math.nan},
    "a datetime without a time zone": {"at": NAIVE},
    "a time in words": {"at": "tomorrow"},
    "both delay and at": {"delay": 5, "at": datetime(2030, 1, 1, tzinfo=UTC)},
    "a priority of 16": {"priority": 16},
    "a priority of -1": {"priority": -1},
    "half a priority": {"priority": 1.5},
    "a priority that is a float": {"priority": 1.0},
    "a priority that is true": {"priority": True},
    "a priority in words": {"priority": "high"},
    "no priority": {"priority": None},
    "a header that is a number": {"headers": {"n": 1}},
    "a header name that is a number": {"headers": {1: "a"}},
    "an empty header name": {"headers": {"": "a"}},
    "NUL in a header": {"headers": {"a": NUL}},
    "NUL in a header name": {"headers": {NUL: "a"}},
    "half a surrogate pair in a header": {"headers": {"a": HALF}},
    "headers that are no mapping": {"headers": ["a"]},
}


def test_an_option_that_makes_no_sense_is_refused(world: World, box: App) -> None:
    """Issue, "It shows": key over 512 characters, negative delay, naive datetime, NUL in text."""
    for name, options in BAD_OPTIONS.items():
        with about(name):
            refusal(InvalidMessage, box.publish, "order.created", {"n": 1}, tx=None, **options)
    assert nothing_is_stored(world)


BAD_TOPICS: list[Any] = [
    "", ".", "order.", ".order", "order..created", "order created", "order/created", "bestellung.größe", "*", "a.**",
    "x" * 256, f"a{NUL}b", f"a{HALF}", "a\n", "a\nb", 7, None, b"order",
]  # fmt: skip


def test_a_topic_that_is_none_is_refused(world: World, box: App) -> None:
    for topic in BAD_TOPICS:
        with about(repr(topic)):
            refusal(InvalidMessage, box.publish, topic, {"n": 1}, tx=None)
    assert nothing_is_stored(world)


def test_one_bad_message_of_many_stores_none(world: World, box: App) -> None:
    """I2: all of them, or none."""
    events: list[tuple[str, Any]] = [("order.created", place) for place in range(50)]
    for bad in (("order.created", math.nan), ("", 1)):
        refusal(InvalidMessage, box.publish_many, [*events, bad], tx=None)
    assert nothing_is_stored(world)


def test_a_refused_publish_leaves_the_callers_transaction_as_it_was(world: World, box: App) -> None:
    """I2: nothing was sent to the database, so the caller may go on and commit its own rows."""
    caller = world.connect()
    caller.execute("create table orders (id integer)")
    caller.execute("insert into orders values (1)")
    refusal(InvalidMessage, box.publish, "order.created", {"n": math.nan}, tx=caller)
    box.publish("order.created", {"n": 1}, tx=caller)
    caller.commit()
    caller.close()
    assert world.sql("select count(*) from orders") == [(1,)]
    assert len(world.deliveries()) == 1


# -------------------------------------------------------------------------------------- what is welcome


@dataclass
class Order:
    id: UUID
    placed: datetime
    amount: Decimal


GOOD_PAYLOADS: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "a text with every kind of character": (
        '\u00e9\u6f22\U0001f600"\\\n\t\u007f\u2028',
        '\u00e9\u6f22\U0001f600"\\\n\t\u007f\u2028',
    ),
    "the word \\u0000, spelled out": ("\\u0000", "\\u0000"),
    "100 deep": (nested(100), nested(100)),
    "brackets in a text": ("[" * 200, "[" * 200),
    "a large number": ({"n": 2**63}, {"n": 2**63}),
    "a small fraction": ({"n": 0.1}, {"n": 0.1}),
    "a tuple": ((1, 2), [1, 2]),
    "a dataclass": (
        Order(UUID(int=7), datetime(2030, 1, 1, tzinfo=UTC), Decimal("9.90")),
        {"id": str(UUID(int=7)), "placed": "2030-01-01T00:00:00+00:00", "amount": "9.90"},
    ),
    "names in any order": ({"b": 1, "a": 2}, {"b": 1, "a": 2}),
}


def test_what_is_accepted_arrives_as_it_was(world: World, box: App) -> None:
    """I1: whatever was acknowledged can be delivered."""
    for name, (payload, expected) in GOOD_PAYLOADS.items():
        box.publish("order.created", payload, tx=None, idempotency_key=name)
        (claim,) = world.claim(world.worker())
        with about(name):
            assert claim.payload is not None
            assert json.loads(claim.payload) == expected


def test_bytes_arrive_as_bytes(world: World, box: App) -> None:
    """DESIGN §5: other content types in `payload_bytes`."""
    for payload in (b"", b"\0\xff\xfe", bytes(range(256)), b'{"n":1}', b"x" * 100_000):
        box.publish("order.created", payload, tx=None, idempotency_key=f"{len(payload)}")
        (claim,) = world.claim(world.worker())
        assert (claim.payload, claim.payload_bytes) == (None, payload)
        assert claim.content_type == "application/octet-stream"


def test_the_limits_themselves_are_accepted(world: World, box: App) -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    options: dict[str, Any] = {"key": "k" * 512, "idempotency_key": "é" * 512, "priority": 15, "delay": 0}
    box.publish("t" * 255, 1, tx=None, **options, headers={"a": "é" * 5000})
    box.publish("a-b_c:d.E9", 1, tx=None, at=at, priority=0, headers={})
    first, second = world.deliveries()
    assert (first.key, first.priority, second.next_run_at) == ("k" * 512, 15, at)


def test_a_set_has_the_same_digest_in_every_process(world: World) -> None:
    """API: a repetition is a duplicate, not a conflict, though sets of texts are ordered anew by each process."""
    program = textwrap.dedent(
        """
        import sys
        from todoku.app import App
        box = App(sys.argv[1])
        box.route("**", to="warehouse")
        message = box.publish("order.created", {"tags": {f"tag-{n}" for n in range(20)}}, tx=None, idempotency_key="k")
        print(message.id)
        box.close()
        """
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", program, world.url],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, timeout=120, check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(told) == 1


# ---------------------------------------------------------------------------------------------- no route


def test_a_topic_without_a_route_is_an_error(world: World) -> None:
    """H18: never nothing: zero deliveries would be none of the five states."""
    box = App(world.url)
    box.route("order.*", to="warehouse")
    error = refusal(NoRoute, box.publish, "user.created", {"n": 1}, tx=None, idempotency_key="k")
    assert "user.created" in str(error)
    assert "box.route" in error.hint
    assert nothing_is_stored(world)
    box.close()


def test_a_topic_without_a_route_is_a_dead_letter_by_policy(world: World) -> None:
    """H18, I1: one `aborted` delivery with reason NO_ROUTE, which a person will see."""
    box = App(world.url, no_route="dead_letter")
    message = box.publish("user.created", {"n": 1}, tx=None)
    (row,) = world.deliveries()
    assert (row.message_id, row.status, row.reason, row.attempts) == (message.id, "aborted", "NO_ROUTE", 0)
    assert world.claim(world.worker()) == []
    box.close()


# --------------------------------------------------------------------------------------------- databases


@pytest.mark.parametrize(
    "url",
    ["mysql://localhost/shop", "redis://localhost", "todoku.db", "", "://", "sqlite:", "sqlite://", "sqlite:///",
     "sqlite:///:memory:", "sqlite://host/file.db", "postgresql:localhost", "http://localhost"],
    ids=repr,
)  # fmt: skip
def test_a_database_url_that_names_none_is_refused_at_once(url: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    error = refusal(UnknownDatabase, App, url)
    assert "sqlite:///" in error.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["postgresql://[half/shop", "postgresql://localhost/shop?no_such_option=1"])
def test_a_url_the_driver_cannot_read_is_a_clear_error(url: str) -> None:
    box = App(url)
    refusal(StoreError, box.migrate)
    box.close()


def publish_to(url: str) -> None:
    """Publish one message to a database."""
    box = App(url)
    box.route("**", to="warehouse")
    try:
        box.publish("order.created", {"n": 1}, tx=None)
    finally:
        box.close()


def test_an_unreachable_server_is_a_clear_error() -> None:
    """Issue, "It shows": nobody listens at this port; the error says so at once."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        error = refusal(DatabaseUnavailable, publish_to, f"postgresql://somebody:secret@127.0.0.1:{port}/shop")
    assert "does not answer" in str(error)
    assert "secret" not in str(error)


@pytest.mark.postgres
def test_a_database_that_does_not_exist_is_a_clear_error(postgres_dsn: str) -> None:
    error = refusal(DatabaseUnavailable, publish_to, database_url(postgres_dsn, "no_such_database"))
    assert "no_such_database" in str(error)


def test_a_file_in_a_directory_that_is_missing_is_a_clear_error(tmp_path: Path) -> None:
    error = refusal(DatabaseUnavailable, publish_to, f"sqlite:///{tmp_path}/missing/todoku.db")
    assert f"{tmp_path}/missing" in error.hint
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_no_database(tmp_path: Path) -> None:
    refusal(DatabaseUnavailable, publish_to, f"sqlite:///{tmp_path}")


@pytest.mark.parametrize(
    "content", [b"name,amount\n" * 1000, b"SQLite format 3\0" + b"\xff" * 5000], ids=["csv", "torn"]
)
def test_a_file_that_is_not_sqlite_is_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "orders.csv"
    file.write_bytes(content)
    refusal(StoreError, publish_to, f"sqlite:///{file}")
    refusal(StoreError, App(f"sqlite:///{file}").migrate)
    assert file.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["orders.csv"]


READ_ONLY = """
import os, sys
from todoku.app import App
from todoku.core.errors import DatabaseUnavailable
import todoku.store.sqlite.database
url, user = sys.argv[1], int(sys.argv[2])
box = App(url)
box.route("**", to="warehouse")
if os.geteuid() == 0:
    os.setgid(user), os.setuid(user)  # to root every file is writable
try:
    box.publish("order.created", {"n": 2}, tx=None)
except DatabaseUnavailable as error:
    print(error.hint and "refused:", error)
print("counted:", box.store.statistics.counts().of("pending"))
box.close()
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that every user may enter: pytest's own is only for the user who runs it."""
    directory = Path(tempfile.mkdtemp(prefix="todoku-shared-", dir="/tmp"))
    directory.chmod(0o755)
    yield directory
    directory.chmod(0o755)
    shutil.rmtree(directory)


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_file_that_may_not_be_written_is_a_clear_error(shared: Path, kind: str) -> None:
    """Issue, "It shows": read-only. A process of a user without the right is told so; it may still look."""
    file = shared / "todoku.db"
    url = f"sqlite:///{file}"
    box = App(url)
    box.migrate()
    box.route("**", to="warehouse")
    box.publish("order.created", {"n": 1}, tx=None)
    box.close()
    before = file.read_bytes()
    for journal in shared.glob("todoku.db-*"):
        journal.unlink()  # left there, its owner could go on writing in a directory that is read-only
    file.chmod(0o444 if kind == "file" else 0o666)
    shared.chmod(0o555)

    nobody = pwd.getpwnam("nobody").pw_uid
    done = subprocess.run(
        [sys.executable, "-c", READ_ONLY, url, str(nobody)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    refused, counted = done.stdout.splitlines()
    assert refused.startswith("refused: ")
    assert str(file) in refused
    assert counted == "counted: 1"
    assert file.read_bytes() == before


@pytest.fixture
def empty_url(backend: Backend, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database in which nobody has migrated anything."""
    if backend == "sqlite":
        yield request.getfixturevalue("sqlite_url")
        return
    with fresh_database(request.getfixturevalue("postgres_dsn")) as url:
        yield url


def test_publishing_before_migrating_says_what_to_do(empty_url: str) -> None:
    error = refusal(SchemaError, publish_to, empty_url)
    assert "todoku migrate" in error.hint
    box = App(empty_url)
    refusal(SchemaError, box.about)
    box.migrate()
    box.close()
    publish_to(empty_url)  # nothing was left behind that would be in the way


@pytest.mark.postgres
def test_a_server_that_only_reads_is_a_clear_error(postgres_url: str) -> None:
    """As a standby is, or a server whose disk was nearly full."""
    world = World("postgres", postgres_url)
    name = world.sql("select current_database()")[0][0]
    world.sql(f'alter database "{name}" set default_transaction_read_only = on')
    error = refusal(DatabaseUnavailable, publish_to, postgres_url)
    assert "read-only" in str(error)
    assert world.sql("select count(*) from todoku_message") == [(0,)]
    world.close()


# ---------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("LEASE_SEC", "never"), ("LEASE_SEC", "0"), ("LEASE_SEC", "nan"), ("MAX_ATTEMPTS", "-1"), ("ENABLED", "perhaps"),
     ("BACKOFF_SEC", "soon"), ("BACKOFF_SEC", "[]"), ("MAX_PAYLOAD_BYTES", "0"), ("LOCK_TIMEOUT_SEC", "inf")],
)  # fmt: skip
def test_a_setting_that_cannot_be_read_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"TODOKU_{name}", value)
    refusal(InvalidSetting, App, "sqlite:///never-opened.db")


def test_the_database_was_never_touched_by_a_refused_message(sqlite_url: str) -> None:
    """Checked at the edge: not even the file is made."""
    box = App(sqlite_url)
    box.route("**", to="warehouse")
    refusal(InvalidMessage, box.publish, "order.created", math.nan, tx=None)
    box.close()
    assert not Path(file_path(sqlite_url)).exists()
    with pytest.raises(sqlite3.OperationalError):
        sqlite3.connect(f"file:{file_path(sqlite_url)}?mode=ro", uri=True)

"""Through PgBouncer in transaction mode: each transaction may run on another connection of the server.

So nothing may be kept in the session: no prepared statement (PgBouncer has them since 1.21 only), no SET, no lock.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.conformance.test_migrations import ALL, LATEST
from tests.support.postgres import fresh_database
from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.app import App
from todoku.core.errors import DatabaseUnavailable, IdempotencyConflict
from todoku.core.message import Claimed
from todoku.store.database import Migrated
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed, lose
from todoku.store.leases import Reclaimed

pytestmark = [pytest.mark.pgbouncer, pytest.mark.postgres]
PORT = 6543
POOL_SIZE = 2

PRISTINE = {
    "lock_timeout": "0",
    "statement_timeout": "0",
    "search_path": '"$user", public',
    "enable_seqscan": "on",
    "enable_bitmapscan": "on",
    "enable_sort": "on",
    "plan_cache_mode": "auto",
    "transaction_read_only": "off",
    "default_transaction_read_only": "off",
    "synchronous_commit": "on",
}
ADVISORY_LOCKS = """
select count(*) from pg_locks
 where locktype = 'advisory' and database = (select oid from pg_database where datname = current_database())
"""
_CONFIGURATION = """
[databases]
{database}
[pgbouncer]
unix_socket_dir = {home}
listen_port = {port}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 100
"""


def _program() -> str:
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if (found := shutil.which("pgbouncer", path=places)) is None:
        pytest.skip("pgbouncer is not installed: `make system-packages`")
    return found


def _configured(home: Path, url: str) -> str:
    """Writes the configuration; returns the name of the database."""
    given = conninfo_to_dict(url)
    name = str(given["dbname"])
    server = {
        **given,
        "port": given.get("port") or 5432,
        "user": given.get("user") or pwd.getpwuid(os.geteuid()).pw_name,
    }
    database = f"{name} = " + " ".join(f"{key}={value}" for key, value in server.items())
    text = _CONFIGURATION.format(database=database, home=home, port=PORT, size=POOL_SIZE)
    (home / "pgbouncer.ini").write_text(text)
    return name


@contextmanager
def pooled(url: str) -> Iterator[str]:
    """The URL of the same database through a PgBouncer of its own, which refuses to be run by root."""
    program, home = _program(), Path(tempfile.mkdtemp(prefix="todoku-pgbouncer-", dir="/tmp"))
    name = _configured(home, url)
    user = "nobody" if os.geteuid() == 0 else None
    if user is not None:
        record = pwd.getpwnam(user)
        for path in (home, home / "pgbouncer.ini"):
            os.chown(path, record.pw_uid, record.pw_gid)
    with (home / "log").open("w+") as log:
        process = subprocess.Popen(
            [program, str(home / "pgbouncer.ini")],
            user=user,
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            through = f"postgresql://anybody@/{name}?host={home}&port={PORT}"
            _wait_for(through, process, home / "log")
            assert len(_sessions(through)) == POOL_SIZE
            yield through
        finally:
            process.terminate()
            process.wait(60)
            shutil.rmtree(home, ignore_errors=True)


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        else:
            return


@pytest.fixture
def world(postgres_url: str) -> Iterator[World]:
    """A migrated store that is reached through PgBouncer only."""
    with pooled(postgres_url) as url:
        world = World("postgres", url, prepare_statements=False, connections=8)
        yield world
        world.close()


def _sessions(url: str) -> dict[int, dict[str, object]]:
    """The connections of the pool, all held at the same time: what each remembers, by the server's process."""
    with ExitStack() as stack:
        held = [stack.enter_context(psycopg.connect(url, prepare_threshold=None)) for _ in range(POOL_SIZE)]
        return {
            connection.execute("select pg_backend_pid()").fetchall()[0][0]: _memory(connection) for connection in held
        }


def _memory(connection: psycopg.Connection[tuple[object, ...]]) -> dict[str, object]:
    """What a session of the server remembers, as seen by whoever gets it next."""
    shown = {name: connection.execute(f"show {name}").fetchall()[0][0] for name in PRISTINE}
    prepared = connection.execute("select count(*) from pg_prepared_statements").fetchall()[0][0]
    locks = connection.execute(ADVISORY_LOCKS).fetchall()[0][0]
    return {**shown, "prepared": prepared, "advisory locks": locks}


# ---------------------------------------------------------------------------------------------- one at a time


def test_migrations_go_through_the_pooler(postgres_dsn: str) -> None:
    """Migrations: the lock is the transaction's, because a session's would be left behind in the pool."""
    with fresh_database(postgres_dsn) as direct, pooled(direct) as url:
        worlds = [World("postgres", url, prepare_statements=False) for _ in range(4)]
        with ThreadPoolExecutor(4) as threads:
            done = list(threads.map(lambda world: world.store.migrate(), worlds))
        assert sorted(done, key=str) == [Migrated((), LATEST)] * 3 + [Migrated(ALL, LATEST)]
        for world in worlds:
            world.close()
        with psycopg.connect(direct) as connection:
            assert connection.execute(ADVISORY_LOCKS).fetchall() == [(0,)]


def test_publish_and_its_keys_go_through_the_pooler(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2, I5: a key is reserved once, another body conflicts, a caller's own transaction is joined."""
    (first,), (again,) = world.publish(idempotency_key="k"), world.publish(idempotency_key="k")
    assert (again.id, again.duplicate) == (first.id, True)
    with pytest.raises(IdempotencyConflict):
        world.publish(idempotency_key="k", payload=lambda _: "another")
    monkeypatch.setenv("TODOKU_PREPARE_STATEMENTS", "false")
    box = App(world.url)
    box.route("**", to="warehouse", ordered=True)
    with psycopg.connect(world.url, prepare_threshold=None) as connection:
        box.publish("order.created", 1, tx=connection, key="lane", idempotency_key="rolled back")
        connection.rollback()
        for number in range(8):
            box.publish("order.created", number, tx=connection, key="lane", idempotency_key=f"k{number}")
        connection.commit()
    box.close()
    assert [claim.payload for claim in world.claim_lanes(world.worker())] == [str(number) for number in range(8)]


@contextmanager
def _the_other_connection(url: str) -> Iterator[None]:
    """The pool gives out what was used last: whoever holds that sends all others to the other one."""
    with psycopg.connect(url) as holding:
        holding.execute("select 1")
        yield


def test_every_step_of_the_line_goes_through_the_pooler_often_enough_to_be_prepared(world: World) -> None:
    """The driver would prepare a statement at its sixth execution, in one session, and use it in the other."""
    world.publish(40)
    worker = world.worker(lease=30)
    for number in range(8):
        with _the_other_connection(world.url) if number % 2 else nullcontext():
            _take_every_step(world, worker)
    counts = world.store.statistics.counts()
    assert {name: counts.of(name) for name in ("pending", "failed", "aborted", "sending", "succeeded")} == {
        "pending": 16, "failed": 8, "aborted": 8, "sending": 0, "succeeded": 8,
    }  # fmt: skip
    _assert_nothing_is_left_in_the_sessions(world)


def _take_every_step(world: World, worker: UUID) -> None:
    done, retried, dead, released = world.claim(worker, limit=4)
    assert world.settle([done]).lost == ()
    assert world.settle([retried], failed(delay=1000)).lost == ()
    assert world.settle([dead], aborted()).lost == ()
    assert world.store.claims.release([released], delay=1000) == ()
    assert world.store.leases.renew(worker, lease=30)
    assert world.store.leases.owned(worker) == []
    assert world.store.leases.reclaim() == Reclaimed(0, 0, 0)
    assert len(world.store.acts.replay(Filter(ids=(dead.id,)), SOMEBODY).changed) == 1
    assert len(world.store.acts.cancel(Filter(ids=(dead.id,)), SOMEBODY).changed) == 1
    assert world.store.ping() > 0


def test_a_lost_worker_is_found_through_the_pooler(world: World) -> None:
    """I3, H6: reclaim, suspects, and the last act of a drain."""
    world.publish(6)
    world.publish(3, to=["ordered"], ordered=True, key="k")
    lost, draining = world.worker(lease=10), world.worker(lease=60)
    zombies = world.claim(lost, limit=3)
    assert len(world.claim(draining, limit=3) + world.claim_lanes(draining)) == 6
    world.advance(11)
    assert world.store.leases.reclaim() == Reclaimed(workers=1, freed=3, aborted=0)
    assert world.store.leases.end(draining, lost=False) == Reclaimed(workers=1, freed=6, aborted=0)
    assert world.settle(zombies).lost == tuple(zombies)
    after = world.worker()
    assert [len(world.claim_suspect(after)) for _ in range(4)] == [1, 1, 1, 0]
    assert (len(world.claim(after)), len(world.claim_lanes(after))) == (3, 3)


def test_maintenance_and_reading_go_through_the_pooler(world: World) -> None:
    """Expire, prune (which makes partitions), find, story."""
    messages = world.publish(3, expires=60)
    assert world.settle(world.claim(world.worker(), limit=1)).lost == ()
    world.advance(61)
    world.store.destinations.announce(["warehouse"])
    assert world.store.retention.expire(unknown_after=600) == (2, 0)
    assert world.store.retention.prune(history_ttl=3600).messages == 0
    assert [row.reason for row in world.deliveries()] == ["EXPIRED"] * 2
    assert len(world.history()) == 1
    story = world.store.messages.story(messages[1].id)
    assert story is not None
    assert [row.status for row in story.deliveries] == ["aborted"]


# ------------------------------------------------------------------------------------------------ all at once


def _work(world: World, worker: UUID, share: int) -> list[Claimed]:
    """One thread's part: publishes its share, then takes whatever waits until there is nothing left."""
    for number in range(share):
        world.publish(2, key=f"key{number % 3}", to=["ordered"], ordered=True)
        world.publish(2, idempotency_key=f"k{number}", payload=lambda _, n=number: n)
    taken: list[Claimed] = []
    while world.store.statistics.counts().rows:
        found = world.claim(worker, limit=10) + world.claim_lanes(worker, lanes=2, limit=6)
        assert world.settle(found).lost == ()
        assert world.store.leases.renew(worker, lease=60)
        assert world.store.leases.reclaim() == Reclaimed(0, 0, 0)
        taken += found
    return taken


@pytest.mark.slow
def test_many_threads_share_a_pool_of_two(world: World) -> None:
    """I1, I3, I10: eight workers on two connections of the server; nothing is lost or shared, and lanes keep order."""
    workers = [world.worker() for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(lambda worker: _work(world, worker, 12), workers))
    taken = [claim for part in parts for claim in part]
    assert len({(claim.id, claim.epoch) for claim in taken}) == len(taken) == 8 * 12 * 2 + 12
    assert sorted(done.id for done in world.history()) == sorted(claim.id for claim in taken)
    assert world.sql("select count(*) from todoku_lane") == [(0,)]
    _assert_lanes_in_order(world)
    _assert_nothing_is_left_in_the_sessions(world)


def _assert_lanes_in_order(world: World) -> None:
    finished = world.sql(
        "select m.key, h.delivery_id from todoku_history h join todoku_message m on m.seq = h.message_seq"
        " where h.destination = 'ordered' order by h.finished_at, h.delivery_id"
    )
    lanes: dict[str, list[int]] = defaultdict(list)
    for key, id in finished:
        lanes[key].append(id)
    assert len(lanes) == 3
    assert [ids for ids in lanes.values() if ids != sorted(ids)] == []


def _assert_nothing_is_left_in_the_sessions(world: World) -> None:
    """Every connection of the pool looks like one that todoku has never used."""
    untouched = {**PRISTINE, "prepared": 0, "advisory locks": 0}
    assert list(_sessions(world.url).values()) == [untouched] * POOL_SIZE


def test_nothing_is_left_in_the_sessions_after_failures(world: World) -> None:
    """No session state: not after an error, a conflict or a lost reply either."""
    world.publish(2, to=["ordered"], ordered=True, key="k")
    worker = world.worker()
    calls: dict[str, Callable[[], object]] = {
        "claim_lanes": lambda: world.claim_lanes(worker),
        "publish": world.publish,
        "reclaim": world.store.leases.reclaim,
    }
    for operation, call in calls.items():
        with armed(f"{operation}.before_commit", lose), pytest.raises(DatabaseUnavailable):
            call()
    world.publish(idempotency_key="k")
    with pytest.raises(IdempotencyConflict):
        world.publish(idempotency_key="k", payload=lambda _: "another")
    _assert_nothing_is_left_in_the_sessions(world)

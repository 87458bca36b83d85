"""`verify`: the invariants as queries. Each finds the corruption planted for it, by name, and nothing else does."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.decision import park
from todoku.core.ending import Following, NewBatch, add_to_batch
from todoku.core.flow import RUN, StepRow
from todoku.core.limit import Limit
from todoku.core.settings import Settings
from todoku.engine.diagnostics.verification import CHECKS, verify
from todoku.store.batches import begin
from todoku.store.deliveries import Filter
from todoku.store.publish import Publishing

HOUR = 3600.0
DAY = 86_400.0


def broken(world: World, **options: Any) -> dict[str, tuple[str, ...]]:
    """What does not hold, by name; nobody reclaims here, so nothing heals."""
    settings = Settings()
    given = {"history_ttl": settings.history_ttl, "ledger_ttl": settings.ledger_ttl, "patience": 0.0, **options}
    return {verdict.check.name: verdict.examples for verdict in verify(world.store, **given) if verdict.examples}


def busy(world: World) -> None:
    """A database in which everything there is has happened."""
    world.publish(4, idempotency_key=None)
    for number in range(3):
        world.publish(1, idempotency_key=f"u{number}")
    world.publish(4, key="k", ordered=True, to=["bank"])
    world.publish(2, key="dead", ordered=True, to=["bank"])
    worker = world.worker(lease=HOUR)
    claims = world.claim(worker)
    world.settle([*claims[:3], claims[6]])
    world.settle(claims[3:4], failed(delay=60))
    world.settle(claims[4:6], aborted())
    lanes = world.claim_lanes(worker, limit=2)
    by_lane = {claim.lane: claim for claim in lanes}
    one, other = by_lane.values()
    world.settle([one])
    world.settle([other], aborted())
    world.store.acts.replay(Filter(ids=(claims[4].id,)), SOMEBODY)
    world.store.acts.purge(Filter(ids=(claims[5].id,)), SOMEBODY)
    world.settle(world.claim_lanes(worker, limit=1), failed(delay=30))
    world.claim(world.worker(lease=HOUR), limit=1)
    world.publish(1, delay=HOUR, key="later", ordered=True, to=["bank"])
    world.publish(3, key="full", per_key=Limit(concurrency=1), to=["press"])
    world.settle(world.claim_gates(worker, Limit(concurrency=1)), failed(delay=60))
    batch = uuid4()
    members = tuple(add_to_batch(draft, batch) for draft in world.drafts(2, to=["bound"]))
    database = world.store.database
    to = Publishing(database.dialect, database.queries, database.now())
    world.store.run(begin(to, [Following(members, NewBatch(id=batch, total=2, on="finished"))]))
    world.settle(world.claim(worker, limit=1, destinations=["bound"]))
    world.publish(1, topic="fulfil", to=["fulfil"], headers={RUN: "auto"})
    (run,) = world.claim(worker, destinations=["fulfil"])
    world.store.runs.store_steps([(run, StepRow("wait:1", 1, "wait", "wait", "open", awaits="approval"))])
    world.settle([run], park(math.inf))


def test_everything_holds_whatever_has_happened(world: World) -> None:
    busy(world)
    assert broken(world) == {}
    world.advance(10)
    assert broken(world) == {}
    world.store.leases.reclaim()
    assert broken(world) == {}


def _sql(world: World, sqlite: str, postgres: str | None = None) -> None:
    world.sql(sqlite if world.backend == "sqlite" or postgres is None else postgres)


def _without_check(world: World) -> None:
    """As if somebody had dropped the constraint that keeps this from happening."""
    if world.backend == "sqlite":
        connection = world.connect()
        connection.execute("pragma ignore_check_constraints = on")
        connection.execute(
            "update todoku_delivery set worker_id = 'x' where id = (select min(id) from todoku_delivery)"
        )
        connection.commit()
        connection.close()
        return
    world.sql("alter table todoku_delivery drop constraint todoku_delivery_check")
    world.sql(f"update todoku_delivery set worker_id = '{uuid4()}' where status = 'pending'")


def _lane_taken_away(world: World) -> None:
    world.publish(1, key="new", ordered=True, to=["bank"])
    assert world.claim_lanes(world.worker(lease=HOUR))
    world.sql("update todoku_lane set worker_id = null")


def _step(world: World, message: str, key: str) -> None:
    now = "1" if world.backend == "sqlite" else "now()"
    world.sql(
        "insert into todoku_step (message_seq, step_key, number, name, kind, state, started_at, epoch)"
        f" values (({message}), '{key}', 1, 'undo', 'undo', 'open', {now}, 0)"
    )


def _signal(world: World, step: str) -> None:
    """A signal for a run that is parked, as if its call had been lost."""
    now = "1" if world.backend == "sqlite" else "now()"
    world.sql(
        "insert into todoku_signal (message_seq, name, payload, created_at, step_key)"
        f" select message_seq, 'approval', 'null', {now}, {step} from todoku_delivery where destination = 'fulfil'"
    )


HISTORY = "finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count"
PLANTED: dict[str, Callable[[World], None]] = {
    "acknowledged": lambda world: _sql(world, "delete from todoku_delivery where status = 'failed'"),
    "message": lambda world: _sql(
        world,
        "delete from todoku_message where seq in (select message_seq from todoku_delivery where status = 'failed')",
    ),
    "one_state": lambda world: _sql(
        world,
        f"insert into todoku_history ({HISTORY}) select updated_at, id, epoch, message_seq, destination, queue,"
        " attempts, replay_count from todoku_delivery where status = 'failed' and lane is null",
    ),
    "finished_once": lambda world: _sql(
        world, f"insert into todoku_history ({HISTORY}) select {HISTORY} from todoku_history where destination = 'bank'"
    ),
    "reserved": lambda world: _sql(
        world,
        "insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at)"
        f" values ('publish:order.created', 'x', 'x', 'accepted', '{uuid4()}', 1, 1)",
        "insert into todoku_ledger (scope, key_hash, digest, state, message_id, created_at, updated_at)"
        f" values ('publish:order.created', 'x', 'x', 'accepted', '{uuid4()}', now(), now())",
    ),
    "owner": _without_check,
    "orphan": lambda world: _sql(
        world, "delete from todoku_worker where id in (select worker_id from todoku_delivery where lane is null)"
    ),
    "lane_owner": _lane_taken_away,
    "epoch": lambda world: _sql(world, "update todoku_delivery set epoch = 0 where status = 'failed'"),
    "attempts": lambda world: _sql(
        world, "update todoku_delivery set attempts = 7, epoch = 100 where status = 'failed'"
    ),
    "token": lambda world: _sql(
        world, "insert into todoku_attempt select * from todoku_attempt where reason = 'TIMEOUT'"
    ),
    "ledger": lambda world: _sql(world, "delete from todoku_ledger where scope = 'effect:warehouse'"),
    "replays": lambda world: _sql(world, "update todoku_delivery set replay_count = 2 where status = 'failed'"),
    "lane": lambda world: _sql(world, "delete from todoku_lane where not parked"),
    "parked": lambda world: _sql(world, "update todoku_lane set parked = true where not parked"),
    "lane_time": lambda world: _sql(
        world,
        "update todoku_lane set ready_at = ready_at + 7200000000",
        "update todoku_lane set ready_at = ready_at + interval '2 hours'",
    ),
    "gate": lambda world: _sql(world, "delete from todoku_gate"),
    "gate_running": lambda world: _sql(world, "update todoku_gate set running = running + 1"),
    "gate_time": lambda world: _sql(
        world,
        "update todoku_gate set ready_at = ready_at + 7200000000",
        "update todoku_gate set ready_at = ready_at + interval '2 hours'",
    ),
    "batch": lambda world: _sql(world, "update todoku_batch set succeeded = succeeded + 1"),
    "batch_due": lambda world: _sql(world, "update todoku_batch set open = 0, succeeded = 2"),
    "tried": lambda world: _sql(
        world,
        "update todoku_attempt set message_seq = message_seq + 1000"
        " where delivery_id in (select id from todoku_delivery where status = 'failed')",
    ),
    "endpoint": lambda world: _sql(
        world,
        "insert into todoku_endpoint (id, url, spec, updated_at, group_name)"
        f" values ('{uuid4()}', 'https://a.example/', '{{}}', 1, 'nobody')",
        "insert into todoku_endpoint (id, url, spec, updated_at, group_name)"
        f" values ('{uuid4()}', 'https://a.example/', '{{}}', now(), 'nobody')",
    ),
    "clock": lambda world: _sql(
        world,
        "update todoku_delivery set updated_at = updated_at + 3600000000 where status = 'failed'",
        "update todoku_delivery set updated_at = updated_at + interval '1 hour' where status = 'failed'",
    ),
    "step": lambda world: _step(world, "select 4711", "charge:1"),
    "signal": lambda world: _signal(world, "'nobody'"),
    "woken": lambda world: _signal(world, "null"),
    "undone": lambda world: _step(
        world, "select min(message_seq) from todoku_delivery where status = 'failed'", "~undo"
    ),
}


def test_every_check_has_a_corruption_planted_for_it() -> None:
    assert [check.name for check in CHECKS] == list(PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_a_corruption_is_found_by_its_name(world: World, name: str) -> None:
    busy(world)
    PLANTED[name](world)
    found = broken(world)
    assert found[name]
    words = ("message", "delivery", "lane", "key", "gate", "batch", "endpoint")
    assert all(example.split()[0] in words for example in found[name])
    assert set(found) == {name}, "one corruption breaks one invariant"


def test_many_examples_are_cut(world: World) -> None:
    world.publish(30)
    world.sql("delete from todoku_delivery")
    assert len(broken(world)["acknowledged"]) == 10


def test_what_a_reclaim_heals_is_not_reported(world: World) -> None:
    """A row whose worker was just buried is freed by the next reclaim: only what stays is broken."""
    world.publish(2)
    world.claim(worker := world.worker(lease=HOUR))
    world.sql(f"delete from todoku_worker where id = '{worker}'")
    assert set(broken(world)) == {"orphan"}
    looks: list[float] = []

    def reclaimed_meanwhile(seconds: float) -> None:
        looks.append(seconds)
        world.store.leases.reclaim()

    assert broken(world, patience=5.0, sleep=reclaimed_meanwhile) == {}
    assert len(looks) == 1
    world.claim_suspect(worker := world.worker(lease=HOUR))
    world.sql(f"delete from todoku_worker where id = '{worker}'")
    assert set(broken(world, patience=5.0, sleep=looks.append)) == {"orphan"}, "nobody reclaims: it stays"


def test_what_is_only_old_is_not_broken(world: World) -> None:
    """Retention: history and keys go by age, and what a person purged is gone on purpose."""
    world.publish(1, idempotency_key="u1")
    world.settle(world.claim(world.worker(lease=HOUR)))
    world.publish(1)
    world.store.acts.cancel(Filter(), SOMEBODY)
    world.store.acts.purge(Filter(), SOMEBODY)
    assert broken(world) == {}
    world.advance(3 * DAY)
    world.store.retention.prune(history_ttl=30 * DAY)
    assert world.sql("select count(*) from todoku_ledger") == [(0,)]
    assert broken(world) == {}
    world.advance(30 * DAY)
    world.store.retention.prune(history_ttl=30 * DAY)
    assert broken(world) == {}


def test_it_is_right_while_workers_run(world: World) -> None:
    """One snapshot for all checks: publishers, workers and people at full speed break nothing in between."""
    stop, errors = threading.Event(), []

    def work(number: int) -> None:
        store, round_number = world.another_store(lock_timeout_sec=60), 0
        try:
            while not stop.is_set():
                round_number += 1
                store.run(world.steps(world.drafts(5, idempotency_key=None)))
                store.run(world.steps(world.drafts(3, key=f"k{number}", ordered=True, to=["bank"])))
                store.run(world.steps(world.drafts(1, idempotency_key=f"{number}.{round_number}")))
                worker = uuid4()
                store.leases.register(worker, name="t", lease=HOUR)
                claims = world.claim(worker, store=store)
                places = store.claims.waiting(None).lanes
                lanes = store.claims.take_lanes(worker, places, lanes=3, limit=6) if places else []
                half = len(claims) // 2
                world_settle(store, claims[:half])
                store.claims.settle([(claim, aborted()) for claim in claims[half:]])
                store.acts.replay(Filter(destination="warehouse"), SOMEBODY, limit=3)
                store.acts.purge(Filter(destination="warehouse"), SOMEBODY, limit=2)
                world_settle(store, lanes[:1])
                store.claims.release(lanes[1:])
                store.leases.end(worker, lost=False)
        except Exception as error:
            errors.append(error)

    def world_settle(store: Any, claims: Any) -> None:
        from todoku.core.decision import SUCCEEDED

        store.claims.settle([(claim, SUCCEEDED) for claim in claims])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        looks = []
        while (len(looks) < 25 or not world.history()) and not errors:
            looks.append(broken(world, patience=0.0))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []
    assert [look for look in looks if look] == []
    assert len(world.history()) > 0

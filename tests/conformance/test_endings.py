"""What follows the end of a delivery is in the transaction that ends it: there if the end is, and once (I1, I2, I3)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed, snoozed
from todoku.app import new_id
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.ending import BATCH, Ending, Following, Hook, NewBatch, add_to_batch, batch_of, chain_drafts
from todoku.core.errors import DatabaseUnavailable
from todoku.core.message import Claimed, Draft
from todoku.core.outcome import Done
from todoku.core.status import Status
from todoku.engine.publish import encode
from todoku.store import failpoint
from todoku.store.batches import BatchStatus, begin
from todoku.store.claims import Transacted
from todoku.store.deliveries import Filter
from todoku.store.endings import FORGOTTEN_AFTER
from todoku.store.publish import Publishing

BOTH = (
    Hook(name="witness", event="succeeded", queue="hooks", max_attempts=3),
    Hook(name="witness", event="aborted", queue="hooks", max_attempts=3),
)


def told(world: World, *, store: Any = None) -> list[Ending]:
    """What the hook `witness` was told, in order; each is settled, so that it is told once."""
    worker = world.worker()
    claims = sorted(world.claim(worker, limit=1000, destinations=["witness"]), key=lambda claim: claim.id)
    world.settle(claims)
    return [msgspec.json.decode(claim.payload or "", type=Ending) for claim in claims]


def ends(world: World) -> list[tuple[int, str, str | None]]:
    return [(each.delivery_id, each.status, each.reason) for each in told(world)]


# ------------------------------------------------------------------------------------------- ways to end


def by_success(world: World, claim: Claimed) -> str:
    world.settle([claim])
    return "succeeded"


def by_transaction(world: World, claim: Claimed) -> str:
    assert world.store.claims.transact(claim, lambda _: Done(), limit=10) is Transacted.SETTLED
    return "succeeded"


def by_abort(world: World, claim: Claimed) -> str:
    world.settle([claim], aborted())
    return "REFUSED"


def by_cancel_while_it_waits(world: World, claim: Claimed) -> str:
    world.store.claims.release([claim])
    world.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    return "CANCELLED"


def by_cancel_while_it_runs(world: World, claim: Claimed) -> str:
    """Its owner has not heard of it, and wants to try again (H22)."""
    world.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    world.settle([claim], failed())
    return "CANCELLED"


def by_cancel_while_it_snoozes(world: World, claim: Claimed) -> str:
    world.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    world.settle([claim], snoozed())
    return "CANCELLED"


def by_cancel_before_it_starts(world: World, claim: Claimed) -> str:
    world.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    world.store.claims.release([claim])
    return "CANCELLED"


def by_cancel_and_death_of_its_owner(world: World, claim: Claimed) -> str:
    world.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    world.store.leases.end(claim.worker, lost=True)
    return "CANCELLED"


def by_the_death_of_its_owners(world: World, claim: Claimed) -> str:
    world.store.leases.end(claim.worker, lost=True, max_lost=1)
    return "WORKER_LOST"


def by_the_end_of_leases(world: World, claim: Claimed) -> str:
    world.advance(3600)
    world.store.leases.reclaim(max_lost=1)
    return "WORKER_LOST"


def by_expiry(world: World, claim: Claimed) -> str:
    world.store.claims.release([claim])
    world.advance(60)
    world.store.retention.expire(unknown_after=3600)
    return "EXPIRED"


def by_unknown_destination(world: World, claim: Claimed) -> str:
    world.store.claims.release([claim])
    world.advance(20)
    world.store.destinations.announce(["witness", "then"])
    world.store.retention.expire(unknown_after=10)
    return "UNKNOWN_DESTINATION"


def by_hand_as_succeeded(world: World, claim: Claimed) -> str:
    world.store.claims.release([claim])
    world.store.acts.settle_by_hand(Filter(ids=(claim.id,)), SOMEBODY, succeeded=True)
    return "succeeded"


def by_hand_as_aborted(world: World, claim: Claimed) -> str:
    world.store.claims.release([claim])
    world.store.acts.settle_by_hand(Filter(ids=(claim.id,)), SOMEBODY, succeeded=False)
    return "BY_HAND"


WAYS = (
    by_success, by_transaction, by_abort, by_cancel_while_it_waits, by_cancel_while_it_runs,
    by_cancel_while_it_snoozes, by_cancel_before_it_starts, by_cancel_and_death_of_its_owner,
    by_the_death_of_its_owners, by_the_end_of_leases, by_expiry, by_unknown_destination, by_hand_as_succeeded,
    by_hand_as_aborted,
)  # fmt: skip
Way = Callable[[World, Claimed], str]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_end_fires_the_hook_once_and_counts_once(world: World, way: Way) -> None:
    world.store.announce_hooks(BOTH)
    began = world.store.ping()
    first, other = world.drafts(2, key="k7", expires=40.0)
    batch = begun(world, [first, other], on="finished", then=world.drafts(to=["then"])[0])
    (claim, running) = world.claim(world.worker(), destinations=["warehouse"])
    reason = way(world, claim)
    way(world, running)  # a batch waits for all of them
    found = [each for each in told(world) if each.delivery_id == claim.id]
    assert [(each.status, each.reason) for each in found] == [
        ("succeeded", None) if reason == "succeeded" else ("aborted", reason)
    ]
    assert (found[0].message_id, found[0].topic, found[0].destination) == (
        UUID(claim.message_id), "order.created", "warehouse",
    )  # fmt: skip
    assert (found[0].key, found[0].queue, found[0].replay_count) == ("k7", "warehouse", 0)
    assert began <= found[0].ended_at.timestamp() <= world.store.ping()
    status = world.store.batch(batch)
    assert status is not None
    assert (status.open, status.succeeded, status.aborted) == ((0, 2, 0) if reason == "succeeded" else (0, 0, 2))
    assert status.done
    assert len(waiting(world, "then")) == 1
    assert told(world) == []
    assert broken(world) == {}


def broken(world: World) -> dict[str, tuple[str, ...]]:
    return world.store.broken(history_ttl=1e6, ledger_ttl=1e6)


# ------------------------------------------------------------------------------------------------- hooks


def test_a_settle_that_was_not_ours_fires_nothing(world: World) -> None:
    """I3: the zombie's outcome is dropped, and so is what would have followed it."""
    world.store.announce_hooks(BOTH)
    world.publish()
    (late,) = world.claim(world.worker())
    world.store.leases.end(late.worker, lost=True)
    (winner,) = world.claim_suspect(world.worker())
    assert world.settle([late], aborted()).lost == (late,)
    assert told(world) == []
    assert world.settle([winner]).lost == ()
    assert ends(world) == [(winner.id, "succeeded", None)]


def test_a_settle_that_is_repeated_fires_once(world: World) -> None:
    """H4: its reply was lost, so it is made again, and finds that it has been made."""
    world.store.announce_hooks(BOTH)
    batch = begun(world, world.drafts(2), then=world.drafts(to=["then"])[0])
    claims = world.claim(world.worker())
    with failpoint.armed("settle.after_commit", failpoint.lose), pytest.raises(DatabaseUnavailable):
        world.settle(claims)
    assert world.settle(claims).lost == ()
    assert len(told(world)) == 2
    assert counted(world, batch) == (0, 2, 0, True)
    assert len(waiting(world, "then")) == 1


def test_a_settle_that_does_not_commit_fires_nothing(world: World) -> None:
    world.store.announce_hooks(BOTH)
    batch = begun(world, world.drafts(1), then=world.drafts(to=["then"])[0])
    claims = world.claim(world.worker())
    with failpoint.armed("settle.before_commit", failpoint.lose), pytest.raises(DatabaseUnavailable):
        world.settle(claims)
    assert told(world) == []
    assert counted(world, batch) == (1, 0, 0, False)
    world.settle(claims)
    assert len(told(world)) == 1
    assert counted(world, batch) == (0, 1, 0, True)


def test_what_goes_on_or_was_only_asked_fires_nothing(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.publish(3)
    first, second, third = world.claim(world.worker())
    world.settle([first], failed())
    world.settle([second], snoozed())
    world.store.acts.cancel(Filter(ids=(third.id,)), SOMEBODY)
    assert told(world) == []


def test_a_success_that_the_ledger_knows_of_is_told_as_a_success(world: World) -> None:
    """I5: the ledger decides how a delivery ends, and the hook hears what it decided."""
    world.store.announce_hooks(BOTH)
    world.publish(idempotency_key="once")
    (late,) = world.claim(world.worker())
    world.store.leases.end(late.worker, lost=True)
    (now,) = world.claim_suspect(world.worker())
    world.settle([late])  # its effect is recorded (I7)
    world.settle([now], aborted())
    assert ends(world) == [(now.id, "succeeded", None)]


def test_a_delivery_whose_message_is_gone_still_settles(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.publish(2)
    world.sql("delete from todoku_message")
    one, two = world.claim(world.worker())
    assert world.settle([one], aborted("BAD_PAYLOAD")).lost == ()
    assert world.settle([two]).lost == ()
    assert told(world) == []


def test_an_end_after_a_replay_is_told_again(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.publish()
    (claim,) = world.claim(world.worker())
    world.settle([claim], aborted())
    world.store.acts.replay(Filter(ids=(claim.id,)), SOMEBODY)
    world.settle(world.claim(world.worker(), destinations=["warehouse"]))
    assert [(each.status, each.replay_count) for each in told(world)] == [("aborted", 0), ("succeeded", 1)]


def test_hooks_hear_only_what_they_asked_for(world: World) -> None:
    hooks = [
        Hook(name="orders", event="succeeded", queue="hooks", max_attempts=3, topic="order.*"),
        Hook(name="dead", event="aborted", queue="hooks", max_attempts=3),
        Hook(name="mailed", event="succeeded", queue="hooks", max_attempts=3, destination="mail"),
        Hook(name="urgent", event="succeeded", queue="hooks", max_attempts=3, from_queue="fast"),
    ]
    world.store.announce_hooks(hooks)
    world.publish(topic="order.created")
    world.publish(topic="user.created", to=["mail"])
    world.publish(topic="user.created", to=["crm"], queue="fast")
    world.settle(world.claim(world.worker()))
    claims = world.claim(world.worker())
    assert sorted((claim.destination, claim.topic) for claim in claims) == [
        ("mailed", "todoku.succeeded"), ("orders", "todoku.succeeded"), ("urgent", "todoku.succeeded"),
    ]  # fmt: skip
    assert {(claim.queue, claim.max_attempts) for claim in claims} == {("hooks", 3)}


def test_two_hooks_share_a_message_and_each_has_its_own_delivery(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.store.announce_hooks([Hook(name="audit", event="succeeded", queue="hooks", max_attempts=1)])
    world.publish()
    world.settle(world.claim(world.worker()))
    claims = world.claim(world.worker())
    assert sorted(claim.destination for claim in claims) == ["audit", "witness"]
    assert len({claim.message_id for claim in claims}) == 1


def test_the_ends_of_hooks_fire_no_hooks(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.publish()
    world.settle(world.claim(world.worker()))
    (hook,) = world.claim(world.worker())
    world.settle([hook], aborted())
    assert [each.destination for each in world.deliveries()] == ["witness"]
    world.store.acts.replay(Filter(ids=(hook.id,)), SOMEBODY)
    world.settle(world.claim(world.worker()))
    assert world.deliveries() == []


def test_a_store_that_knows_no_program_fires_the_hooks_that_were_announced(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.publish()
    world.another_store().acts.cancel(Filter(status="pending"), SOMEBODY)
    assert [each.reason for each in told(world)] == ["CANCELLED"]


def test_a_hook_that_is_announced_anew_hears_what_it_asks_for_now(world: World) -> None:
    world.store.announce_hooks(BOTH)
    changed = Hook(name="witness", event="succeeded", queue="other", max_attempts=9, timeout=2.5, topic="user.*")
    world.store.announce_hooks([changed])
    assert world.store.hooks() == (BOTH[1], changed)


def test_a_hook_that_nobody_announces_while_others_are_is_forgotten(world: World) -> None:
    world.store.announce_hooks(BOTH)
    world.advance(10 * FORGOTTEN_AFTER)
    assert set(world.store.hooks()) == set(BOTH)  # nobody works, and nothing is forgotten
    world.store.destinations.announce(["warehouse"])
    assert world.store.hooks() == ()
    world.store.retention.prune(history_ttl=1e9)
    assert world.sql("select count(*) from todoku_hook") == [(0,)]


def test_without_hooks_and_batches_an_end_asks_the_database_nothing_more(world: World) -> None:
    asked: list[str] = []
    world.publish(3, headers={"tenant": "a"})
    claims = world.claim(world.worker())
    world.settle(claims[:1])  # the hooks are known from here on, for a second
    world.store._endings._hooks_until = float("inf")
    watch(world, asked)
    world.settle(claims[1:2])
    world.settle(claims[2:], failed())
    assert asked == ["settle_done", "settle_rest"]


def watch(world: World, asked: list[str]) -> None:
    """Note the name of every query that the store makes from now on."""
    write = world.store.database.write

    def watched(operation: str, work: Callable[[Any], Any]) -> Any:
        return write(operation, lambda tx: work(Watched(tx, asked)))

    world.store.database.write = watched  # type: ignore[method-assign,assignment]


class Watched:
    def __init__(self, tx: Any, asked: list[str]) -> None:
        self._tx, self._asked = tx, asked

    def rows(self, query: str, /, **values: Any) -> Any:
        self._asked.append(query)
        return self._tx.rows(query, **values)

    def statement(self, statement: Any) -> Any:
        self._asked.append("statement")
        return self._tx.statement(statement)


# ----------------------------------------------------------------------------------------------- batches


def begun(world: World, members: list[Draft], *, on: Any = "finished", then: Draft | None = None) -> UUID:
    """Store a batch."""
    id = new_id()
    batch = NewBatch(id=id, total=len(members), on=on, next=None if then is None else Following((then,)))
    start(world, Following(tuple(add_to_batch(draft, id) for draft in members), batch))
    return id


def start(world: World, following: Following) -> None:
    database = world.store.database
    world.store.run(begin(Publishing(database.dialect, database.queries, database.now()), [following]))


def counted(world: World, batch: UUID) -> tuple[int, int, int, bool]:
    status = world.store.batch(batch)
    assert status is not None
    return status.open, status.succeeded, status.aborted, status.done


def waiting(world: World, destination: str) -> list[int]:
    return [each.id for each in world.deliveries(destination=destination)]


def test_a_batch_is_done_when_its_last_member_ends(world: World) -> None:
    batch = begun(world, world.drafts(3), then=world.drafts(to=["then"])[0])
    claims = world.claim(world.worker(), destinations=["warehouse"])
    assert {batch_of(claim.headers) for claim in claims} == {batch}
    world.settle(claims[:2], aborted())
    assert (counted(world, batch), waiting(world, "then")) == ((1, 0, 2, False), [])
    world.settle(claims[2:])
    assert counted(world, batch) == (0, 1, 2, True)
    assert len(waiting(world, "then")) == 1
    status = world.store.batch(batch)
    assert isinstance(status, BatchStatus)
    assert (status.total, status.on) == (3, "finished")
    assert status.done_at is not None
    assert status.done_at >= status.created_at
    assert world.store.batch(uuid4()) is None


def test_a_dead_letter_that_succeeds_after_all_is_counted_over_and_nothing_follows_twice(world: World) -> None:
    batch = begun(world, world.drafts(2), then=world.drafts(to=["then"])[0])
    world.settle(world.claim(world.worker()), aborted())
    assert counted(world, batch) == (0, 0, 2, True)
    one, two = world.deliveries(destination="warehouse")
    for _ in range(2):  # a replay that fails again changes nothing
        world.store.acts.replay(Filter(ids=(one.id,)), SOMEBODY)
        world.settle(world.claim(world.worker(), destinations=["warehouse"]), aborted())
    assert counted(world, batch) == (0, 0, 2, True)
    world.store.acts.replay(Filter(ids=(one.id,)), SOMEBODY)
    world.settle(world.claim(world.worker(), destinations=["warehouse"]))
    world.store.acts.settle_by_hand(Filter(ids=(two.id,)), SOMEBODY, succeeded=True)
    assert counted(world, batch) == (0, 2, 0, True)
    assert len(waiting(world, "then")) == 1
    assert broken(world) == {}


def test_a_batch_that_waits_for_success_goes_on_after_the_replay_that_brings_it(world: World) -> None:
    batch = begun(world, world.drafts(2), on="succeeded", then=world.drafts(to=["then"])[0])
    one, two = world.claim(world.worker())
    world.settle([one])
    world.settle([two], aborted())
    assert (counted(world, batch), waiting(world, "then")) == ((0, 1, 1, False), [])
    world.store.acts.replay(Filter(ids=(two.id,)), SOMEBODY)
    world.settle(world.claim(world.worker(), destinations=["warehouse"]))
    assert counted(world, batch) == (0, 2, 0, True)
    assert len(waiting(world, "then")) == 1


def test_a_batch_whose_dead_letter_is_purged_is_given_up(world: World) -> None:
    batch = begun(world, world.drafts(2), on="succeeded", then=world.drafts(to=["then"])[0])
    world.settle(world.claim(world.worker()), aborted())
    assert counted(world, batch) == (0, 0, 2, False)
    world.store.acts.purge(Filter(status="aborted"), SOMEBODY)
    assert counted(world, batch) == (0, 0, 2, True)
    assert waiting(world, "then") == []


def test_members_of_several_batches_settle_together(world: World) -> None:
    batches = [begun(world, world.drafts(3), then=world.drafts(to=["then"])[0]) for _ in range(4)]
    claims = world.claim(world.worker())
    world.settle(claims[::2])
    world.settle(claims[1::2], aborted())
    assert [counted(world, batch)[0] for batch in batches] == [0, 0, 0, 0]
    assert len(waiting(world, "then")) == 4


def test_eight_settlers_at_once_complete_a_batch_once(world: World) -> None:
    """The row's lock orders them; whoever is last publishes what follows (I3)."""
    batch = begun(world, world.drafts(80), then=world.drafts(to=["then"])[0])
    claims = world.claim(world.worker(), limit=80)
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(8)]
    start = threading.Barrier(8)

    def settle(place: int) -> None:
        start.wait(timeout=60)
        for claim in claims[place::8]:
            pair: list[tuple[Claimed, Settlement]] = [(claim, SUCCEEDED if claim.id % 2 else aborted())]
            while stores[place].claims.settle(pair).stuck:
                pass

    threads = [threading.Thread(target=settle, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert counted(world, batch) == (0, 40, 40, True)
    assert len(waiting(world, "then")) == 1
    assert broken(world) == {}


def test_what_waits_for_a_batch_is_kept_exactly_as_it_will_be_published(world: World) -> None:
    (then,) = world.drafts(to=["then"], key="k", priority=7, headers={"tenant": "a"}, labels=["x"], max_attempts=2)
    raw = msgspec.structs.replace(
        world.drafts(to=["bytes"])[0], payload=None, payload_bytes=b"\x00\xff{", content_type="application/octet-stream"
    )
    id = new_id()
    first = add_to_batch(world.drafts(1)[0], id)
    start(world, Following((first,), NewBatch(id=id, total=1, on="finished", next=Following((then, raw)))))
    world.settle(world.claim(world.worker()))
    found = {claim.destination: claim for claim in world.claim(world.worker())}
    claim = found["then"]
    assert (claim.message_id, claim.key, claim.priority, claim.max_attempts) == (str(then.id), "k", 7, 2)
    assert (claim.payload, claim.headers) == (then.payload, then.headers)
    assert (found["bytes"].payload, found["bytes"].payload_bytes) == (None, b"\x00\xff{")


def test_batches_are_pruned_after_their_retention_and_never_while_they_wait(world: World) -> None:
    done, blocked, unfinished = (
        begun(world, world.drafts(1), on="succeeded", then=world.drafts(to=["then"])[0]) for _ in range(3)
    )
    one, two, _ = world.claim(world.worker())
    world.settle([one])
    world.settle([two], aborted())
    world.advance(3600)
    assert world.store.retention.prune(history_ttl=7200).batches == 0
    world.advance(7200)
    assert world.store.retention.prune(history_ttl=7200).batches == 1
    assert world.store.batch(done) is None
    assert counted(world, blocked) == (0, 0, 1, False)
    assert counted(world, unfinished) == (1, 0, 0, False)


def test_a_header_that_names_no_batch_is_nobodys(world: World) -> None:
    """Whoever else writes to the database: a settle never fails for it."""
    for value in ("nonsense", str(uuid4())):
        (draft,) = world.drafts(1)
        world.store.run(world.steps([msgspec.structs.replace(draft, headers=encode({BATCH: value}))]))
    assert world.settle(world.claim(world.worker())).lost == ()
    assert len(world.history()) == 2


# ------------------------------------------------------------------------------------------------ chains


def test_each_link_of_a_chain_follows_the_success_of_the_one_before(world: World) -> None:
    drafts = [world.drafts(to=[name])[0] for name in ("one", "two", "three")]
    start(world, chain_drafts(drafts, [new_id(), new_id()]))
    for name in ("one", "two", "three"):
        (claim,) = world.claim(world.worker())
        assert claim.destination == name
        world.settle([claim], aborted())
        assert world.claim(world.worker()) == []
        world.store.acts.replay(Filter(ids=(claim.id,)), SOMEBODY)
        world.settle(world.claim(world.worker()))
    assert [each.destination for each in world.history()] == ["one", "two", "three"]
    assert world.sql("select count(*) from todoku_batch where done_at is null") == [(0,)]


def test_an_ordered_member_and_what_follows_into_a_lane(world: World) -> None:
    """I10: a continuation takes its place in its lane like any other publish."""
    links = world.drafts(3, to=["lane"], ordered=True, key="k")
    start(world, chain_drafts(links, [new_id(), new_id()]))
    world.publish(1, to=["lane"], ordered=True, key="k", payload=lambda _: "between")
    seen = []
    for _ in range(4):
        (claim,) = world.claim_lanes(world.worker(), limit=1)
        seen.append(claim.payload)
        world.settle([claim])
    assert seen == ['{"n":0}', '"between"', '{"n":1}', '{"n":2}']
    assert world.claim_lanes(world.worker()) == []
    assert broken(world) == {}


@pytest.mark.postgres
def test_who_publishes_into_the_lane_of_what_follows_holds_up_no_settle(postgres_url: str) -> None:
    """H11: the end is settled at once; what follows goes into the lane as soon as the publisher has committed, once."""
    world = World("postgres", postgres_url, lock_timeout_sec=0.2)
    (then,) = world.drafts(1, to=["lane"], ordered=True, key="k")
    batch = begun(world, world.drafts(1), then=then)
    (claim,) = world.claim(world.worker())
    connection = world.connect()
    try:
        lanes = [leg.lane for leg in then.legs]
        connection.execute("select pg_advisory_xact_lock(%s)", lanes)
        assert world.settle([claim]).lost == ()
        assert [each.status for each in world.history()] == [Status.SUCCEEDED]
        assert counted(world, batch) == (0, 1, 0, False)
        assert world.store.follow_batches() == 0
        connection.rollback()
    finally:
        connection.close()
    others = [world.another_store(lock_timeout_sec=60) for _ in range(4)]
    numbers: list[int] = []
    threads = [threading.Thread(target=lambda store=store: numbers.append(store.follow_batches())) for store in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert sum(numbers) == 1
    assert counted(world, batch) == (0, 1, 0, True)
    assert len(waiting(world, "lane")) == 1
    assert world.store.follow_batches() == 0
    world.close()

"""The ledger: a key is reserved once, an effect happens once per destination, and a true success stays true."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed, snoozed
from todoku.core.decision import CONFLICT, SUCCEEDED, Settlement, decide_by_ledger
from todoku.core.errors import IdempotencyConflict
from todoku.core.identity import effect_scope, key_hash, publish_scope
from todoku.core.message import Claimed, Draft, Message
from todoku.core.status import Status
from todoku.store.claims import SettleReport
from todoku.store.deliveries import Filter
from todoku.store.join import run
from todoku.store.ledger import Entry

HOUR = 3600.0
DAY = 24 * HOUR
TOPIC = "order.created"


def reserved(world: World, key: str, topic: str = TOPIC) -> Entry | None:
    return world.store.ledger.entry(publish_scope(topic), key_hash(key))


def effect(world: World, key: str, destination: str = "warehouse") -> Entry | None:
    return world.store.ledger.entry(effect_scope(destination), key_hash(key))


def state(entry: Entry | None) -> str | None:
    return None if entry is None else entry.state


def publish_on(world: World, connection: Any, drafts: list[Draft]) -> list[Message]:
    """Publish in the open transaction of a caller's connection."""
    return run(connection, world.store.database.dialect, world.steps(drafts))  # type: ignore[no-any-return]


def rows_of(world: World, *tables: str) -> list[int]:
    return [world.sql(f"select count(*) from todoku_{table}")[0][0] for table in tables]


def claim_one(world: World, lease: float = HOUR) -> Claimed:
    (claim,) = world.claim(world.worker(lease=lease))
    return claim


def done(result: str | None = None) -> Settlement:
    return Settlement(status=Status.SUCCEEDED, result=result)


# -------------------------------------------------------------------------------------- the reservation


def test_64_publishers_racing_for_a_key_reserve_it_once(world: World) -> None:
    """I2, H14: one row; every loser is told the winner's message, and exactly one was not a duplicate."""
    start = threading.Barrier(64)

    def publisher(_: int) -> Message:
        connection = world.connect()
        try:
            if world.backend == "sqlite":
                connection.execute("pragma busy_timeout = 60000")
            drafts = world.drafts(idempotency_key="raced")
            start.wait()
            (message,) = publish_on(world, connection, drafts)
            connection.commit()
            return message
        finally:
            connection.close()

    with ThreadPoolExecutor(64) as pool:
        messages = list(pool.map(publisher, range(64)))

    assert len({message.id for message in messages}) == 1
    assert [message.duplicate for message in messages].count(False) == 1
    assert rows_of(world, "message", "delivery", "ledger") == [1, 1, 1]
    (row,) = world.deliveries()
    assert row.message_id == messages[0].id


def test_a_publisher_that_rolls_back_leaves_the_key_to_the_next(world: World) -> None:
    """I2: the reservation is part of the caller's transaction."""
    connection = world.connect()
    publish_on(world, connection, world.drafts(idempotency_key="k"))
    connection.rollback()
    connection.close()
    assert rows_of(world, "message", "delivery", "ledger") == [0, 0, 0]
    (message,) = world.publish(idempotency_key="k")
    assert not message.duplicate


@pytest.mark.postgres
def test_a_loser_waits_for_the_winners_commit_and_gets_its_message(postgres_url: str) -> None:
    """H14: the insert waits, the read is a statement of its own: it sees what the insert's snapshot did not."""
    world = World("postgres", postgres_url)
    with psycopg.connect(world.url) as winner, ThreadPoolExecutor(1) as pool:
        (first,) = publish_on(world, winner, world.drafts(idempotency_key="k"))
        waiting = pool.submit(world.publish, idempotency_key="k")
        world.until_blocked()
        winner.commit()
        (second,) = waiting.result()
    assert (second.id, second.duplicate, first.duplicate) == (first.id, True, False)
    world.close()


def test_a_repetition_returns_the_earlier_message_and_queues_nothing(world: World) -> None:
    """DESIGN §4 Publish: same digest ⇒ the earlier message. Also when it was written differently."""
    (first,) = world.publish(idempotency_key="k", payload=lambda _: {"amount": 1, "name": "caf\u00e9"})
    (again,) = world.publish(idempotency_key="k", payload=lambda _: {"name": "cafe\u0301", "amount": 1.0})
    assert (again.id, again.duplicate, again.created_at) == (first.id, True, first.created_at)
    assert rows_of(world, "message", "delivery", "ledger") == [1, 1, 1]


def test_another_body_under_the_same_key_is_a_conflict_that_names_the_difference(world: World) -> None:
    """API: errors contain the fix; nothing is stored and the entry is left alone."""
    world.publish(idempotency_key="u7", payload=lambda _: {"amount": 1, "user": 7})
    before = reserved(world, "u7")
    with pytest.raises(IdempotencyConflict, match=r"'u7' was used at .* with another body; differs in: amount") as told:
        world.publish(idempotency_key="u7", payload=lambda _: {"amount": 2, "user": 7})
    assert told.value.hint
    assert "user" not in str(told.value).partition("differs in")[2]
    assert reserved(world, "u7") == before
    assert rows_of(world, "message", "delivery", "ledger") == [1, 1, 1]


def test_a_key_belongs_to_its_topic(world: World) -> None:
    """H12: `welcome` and `goodbye` both with key `u7` do not conflict."""
    for topic in ("welcome", "goodbye"):
        (message,) = world.publish(topic=topic, idempotency_key="u7", payload=lambda _, topic=topic: {"mail": topic})
        assert not message.duplicate
    assert rows_of(world, "message", "ledger") == [2, 2]


def test_a_key_twice_in_one_publish_is_one_message(world: World) -> None:
    """I2: the second of two equal drafts in one call is a duplicate of the first."""
    messages = world.publish(3, idempotency_key="k", payload=lambda _: {"n": 0})
    assert len({message.id for message in messages}) == 1
    assert [message.duplicate for message in messages] == [False, True, True]
    assert rows_of(world, "message", "delivery", "ledger") == [1, 1, 1]


def test_a_key_twice_in_one_publish_with_two_bodies_is_a_conflict(world: World) -> None:
    with pytest.raises(IdempotencyConflict):
        world.publish(2, idempotency_key="k", payload=lambda place: {"n": place})
    assert rows_of(world, "message", "delivery", "ledger") == [0, 0, 0]


def test_a_conflict_reserves_no_other_key_even_if_the_caller_commits(world: World) -> None:
    """I1, I2: a reservation without its message would make the next publish of that key a duplicate of nothing."""
    world.publish(idempotency_key="used", payload=lambda _: "before")
    drafts = [
        draft for key in ("a", "used", "z") for draft in world.drafts(idempotency_key=key, payload=lambda _: "after")
    ]
    connection = world.connect()
    with pytest.raises(IdempotencyConflict):
        publish_on(world, connection, drafts)
    connection.commit()  # the caller caught the error, and goes on with its own business
    connection.close()

    for key in ("a", "z"):
        (message,) = world.publish(idempotency_key=key, payload=lambda _: "after")
        assert not message.duplicate
    assert rows_of(world, "message", "delivery", "ledger") == [3, 3, 3]


@pytest.mark.postgres
def test_a_repeatable_read_caller_is_told_to_try_its_transaction_again(postgres_url: str) -> None:
    """H14: such a caller cannot see the winner; 40001 goes to it, and its second try finds the earlier message."""
    world = World("postgres", postgres_url)
    with psycopg.connect(world.url) as caller:
        caller.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        caller.execute("select count(*) from todoku_message")  # the snapshot is taken here
        (first,) = world.publish(idempotency_key="k")
        with pytest.raises(psycopg.errors.SerializationFailure):
            publish_on(world, caller, world.drafts(idempotency_key="k"))
        caller.rollback()
        (again,) = publish_on(world, caller, world.drafts(idempotency_key="k"))
    assert (again.id, again.duplicate) == (first.id, True)
    assert rows_of(world, "message", "delivery") == [1, 1]
    world.close()


# ------------------------------------------------------------------------------------------- the effect


def sends(world: World, claims: list[Claimed]) -> list[str]:
    """Where a worker would send these: those that the ledger has not decided already (I5)."""
    return [claim.destination for claim in claims if decide_by_ledger(claim) is None]


def test_a_keyed_message_to_three_destinations_is_sent_three_times(world: World) -> None:
    """H12, I5: a sibling's success never settles another delivery of a fanned-out message."""
    world.publish(to=("a", "b", "c"), idempotency_key="k")
    worker = world.worker()
    claims = world.claim(worker)
    assert sorted(sends(world, claims)) == ["a", "b", "c"]
    world.settle(claims)
    assert [state(effect(world, "k", name)) for name in "abc"] == ["succeeded"] * 3


def test_also_when_the_first_is_settled_before_the_second_is_claimed(world: World) -> None:
    """H12: the earlier draft of the protocol never sent b and c."""
    world.publish(to=("a", "b", "c"), idempotency_key="k")
    worker = world.worker()
    sent = []
    for name in "abc":
        claims = world.claim(worker, destinations=[name])
        sent += sends(world, claims)
        assert world.settle(claims) == SettleReport()
    assert sent == ["a", "b", "c"]
    assert len(world.history()) == 3


def test_an_effect_that_already_succeeded_is_not_sent_again(world: World) -> None:
    """W-105 (S0-99), I5: the ledger says succeeded with the same digest: the row follows without a send."""
    world.publish(topic="one", idempotency_key="k", payload=lambda _: "same")
    world.settle([claim_one(world)], done('{"receipt":1}'))
    before = effect(world, "k")

    world.publish(topic="other", idempotency_key="k", payload=lambda _: "same")
    claim = claim_one(world)
    assert (claim.effect_state, claim.effect_digest) == ("succeeded", claim.digest)
    assert decide_by_ledger(claim) == SUCCEEDED
    assert world.store.claims.effects([claim]) == {claim.id: ("succeeded", claim.digest)}
    world.settle([claim], SUCCEEDED)

    assert world.deliveries() == []
    after = effect(world, "k")
    assert before is not None
    assert after is not None
    assert (after.state, after.response, after.message_id) == ("succeeded", '{"receipt":1}', before.message_id)


def test_an_effect_with_another_digest_is_a_conflict_and_the_ledger_is_left_alone(world: World) -> None:
    """I5: `aborted` / IDEMPOTENCY_CONFLICT; what was done stays written as it was done."""
    world.publish(topic="one", idempotency_key="k", payload=lambda _: "first")
    world.settle([claim_one(world)], done('{"receipt":1}'))
    before = effect(world, "k")

    world.publish(topic="other", idempotency_key="k", payload=lambda _: "second")
    claim = claim_one(world)
    assert decide_by_ledger(claim) == CONFLICT
    world.settle([claim], CONFLICT)

    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("aborted", "IDEMPOTENCY_CONFLICT")
    assert effect(world, "k") == before


def test_an_attempt_without_an_effect_entry_is_sent(world: World) -> None:
    world.publish(idempotency_key="k")
    claim = claim_one(world)
    assert (claim.effect_state, world.store.claims.effects([claim])) == (None, {})
    assert decide_by_ledger(claim) is None


# -------------------------------------------------------------------------------------------- the zombie


def stolen(world: World, **options: Any) -> tuple[Claimed, Claimed]:
    """A claim whose worker slept through its lease, and the claim of the next owner."""
    world.publish(idempotency_key="k", **options)
    zombie = claim_one(world, lease=10)
    world.advance(11)
    assert world.store.leases.reclaim().freed == 1
    (owner,) = world.claim_suspect(world.worker(lease=HOUR))
    assert owner.id == zombie.id
    return zombie, owner


def test_a_zombies_success_is_recorded_though_its_row_is_lost(world: World) -> None:
    """I7, H13, fault row 4: it did send. The row is fenced, the effect is not; the owner sees it before sending."""
    zombie, owner = stolen(world)
    assert world.settle([zombie], done('"by the zombie"')) == SettleReport(lost=(zombie,))

    entry = effect(world, "k")
    assert entry is not None
    assert (entry.state, entry.response) == ("succeeded", '"by the zombie"')
    (row,) = world.deliveries()
    assert (row.status, row.epoch, row.worker) == ("sending", owner.epoch, owner.worker)
    assert world.store.claims.effects([owner]) == {owner.id: ("succeeded", owner.digest)}  # read again: H13


def test_a_zombies_abort_says_nothing(world: World) -> None:
    """I7: a failure is only the owner's to tell."""
    zombie, owner = stolen(world)
    assert world.settle([zombie], aborted()).lost == (zombie,)
    assert effect(world, "k") is None
    assert world.settle([owner]) == SettleReport()
    assert state(effect(world, "k")) == "succeeded"


def test_the_first_success_stays(world: World) -> None:
    """I7: the first writer wins, whichever of the two it is."""
    zombie, owner = stolen(world)
    world.settle([owner], done('"the owner"'))
    world.settle([zombie], done('"the zombie"'))
    entry = effect(world, "k")
    assert entry is not None
    assert (entry.state, entry.response) == ("succeeded", '"the owner"')


def test_a_success_is_never_made_a_failure(world: World) -> None:
    """I7: the zombie succeeded, the owner gave up: what took effect took effect."""
    zombie, owner = stolen(world)
    world.settle([zombie], done())
    world.settle([owner], aborted())
    assert state(effect(world, "k")) == "succeeded"


# ------------------------------------------------------------------------------------ replay and reopen


def kill(world: World, key: str = "k", **options: Any) -> Message:
    """Publish, and let it become a dead letter."""
    (message,) = world.publish(idempotency_key=key, **options)
    world.settle([claim_one(world)], aborted("HTTP_4XX"))
    return message


def test_failed_then_replayed_then_succeeded(world: World) -> None:
    """S0-102, H15: while it runs again a repeat is not answered with the old failure; then it turns succeeded."""
    kill(world)
    seen = [state(effect(world, "k"))]
    world.store.acts.replay(Filter(), SOMEBODY)
    seen.append(state(effect(world, "k")))
    claim = claim_one(world)
    assert decide_by_ledger(claim) is None
    world.settle([claim])
    seen.append(state(effect(world, "k")))
    assert seen == ["failed", "accepted", "succeeded"]


def test_a_retry_writes_no_effect(world: World) -> None:
    """I5: `failed` in the ledger means given up, not waiting."""
    world.publish(idempotency_key="k")
    world.settle([claim_one(world)], failed())
    assert effect(world, "k") is None


def test_a_duplicate_of_a_dead_letter_reopens_it_by_policy(world: World) -> None:
    """H15, I9: an exit from `aborted` like any other: attempts from 0, replay_count + 1, audited by=publisher."""
    message = kill(world)
    (dead,) = world.deliveries()
    (again,) = world.publish(idempotency_key="k", reopen=True)
    assert (again.id, again.duplicate) == (message.id, True)

    (row,) = world.deliveries()
    assert (row.id, row.status, row.attempts, row.lost, row.replay_count) == (dead.id, "pending", 0, 0, 1)
    assert row.epoch > dead.epoch
    assert row.reason is None
    assert state(effect(world, "k")) == "accepted"
    story = world.store.messages.story(message.id)
    assert story is not None
    assert [(act.by, act.action, act.target) for act in story.audit] == [("publisher", "replay", f"delivery:{row.id}")]
    world.settle([claim_one(world)])
    assert state(effect(world, "k")) == "succeeded"


def test_without_the_policy_a_duplicate_leaves_a_dead_letter_alone(world: World) -> None:
    """I9: terminal rows leave only by audited replay."""
    kill(world)
    (message,) = world.publish(idempotency_key="k")
    (row,) = world.deliveries()
    assert message.duplicate
    assert (row.status, row.replay_count) == ("aborted", 0)


def test_a_duplicate_reopens_only_what_is_dead(world: World) -> None:
    """H15: of a fanned-out message one is done, one waits, one is dead: only the dead one runs again."""
    (message,) = world.publish(to=("done", "waits", "dead"), idempotency_key="k")
    worker = world.worker()
    world.settle(world.claim(worker, destinations=["done"]))
    world.settle(world.claim(worker, destinations=["dead"]), aborted())
    world.publish(to=("done", "waits", "dead"), idempotency_key="k", reopen=True)

    story = world.store.messages.story(message.id)
    assert story is not None
    assert {row.destination: (row.status, row.replay_count) for row in story.deliveries} == {
        "done": ("succeeded", 0),
        "waits": ("pending", 0),
        "dead": ("pending", 1),
    }
    assert len(story.audit) == 1


def test_publishers_that_reopen_at_once_reopen_once(world: World) -> None:
    """H15: a conditional update; one generation, one audit row, however many come."""
    message = kill(world)
    start = threading.Barrier(8)

    def publisher(_: int) -> Message:
        connection = world.connect()
        try:
            drafts = world.drafts(idempotency_key="k", reopen=True)
            start.wait()
            (found,) = publish_on(world, connection, drafts)
            connection.commit()
            return found
        finally:
            connection.close()

    with ThreadPoolExecutor(8) as pool:
        assert {found.id for found in pool.map(publisher, range(8))} == {message.id}
    (row,) = world.deliveries()
    assert (row.status, row.replay_count) == ("pending", 1)
    assert rows_of(world, "audit") == [1]


@pytest.mark.postgres
def test_the_second_publisher_finds_it_reopened_by_the_first(postgres_url: str) -> None:
    """H15: the second waits for the first one's uncommitted reopening, looks again, and changes nothing."""
    world = World("postgres", postgres_url)
    kill(world)
    with psycopg.connect(world.url) as first, ThreadPoolExecutor(1) as pool:
        publish_on(world, first, world.drafts(idempotency_key="k", reopen=True))
        store = world.another_store(lock_timeout_sec=30)
        second = pool.submit(store.run, world.steps(world.drafts(idempotency_key="k", reopen=True)))
        world.until_blocked()
        first.commit()
        second.result()
    (row,) = world.deliveries()
    assert (row.status, row.replay_count) == ("pending", 1)
    assert rows_of(world, "audit") == [1]
    world.close()


# -------------------------------------------------------------------------------------------- retention


def pruned_to(world: World, key: str = "k") -> tuple[str | None, str | None]:
    """What prune leaves of a key: its publish entry, its effect entry."""
    world.store.retention.prune(history_ttl=3650 * DAY)
    return state(reserved(world, key)), state(effect(world, key))


def test_entries_live_48_hours_after_the_delivery_succeeded(world: World) -> None:
    """H16: counted from the success, not from the publish."""
    world.publish(idempotency_key="k")
    world.advance(3 * DAY)
    world.settle([claim_one(world)])
    world.advance(47 * HOUR)
    assert pruned_to(world) == ("accepted", "succeeded")
    (message,) = world.publish(idempotency_key="k")
    assert message.duplicate
    world.advance(2 * HOUR)
    assert pruned_to(world) == (None, None)
    (message,) = world.publish(idempotency_key="k")
    assert not message.duplicate


def test_they_live_48_hours_after_the_last_of_several_deliveries(world: World) -> None:
    """H16: the publish entry of a fanned-out message waits for its slowest delivery."""
    world.publish(to=("fast", "slow"), idempotency_key="k")
    worker = world.worker(lease=30 * DAY)
    world.settle(world.claim(worker, destinations=["fast"]))
    slow = world.claim(worker, destinations=["slow"])
    world.advance(60 * HOUR)
    assert pruned_to(world)[0] == "accepted"
    world.settle(slow)
    world.advance(47 * HOUR)
    assert pruned_to(world)[0] == "accepted"
    world.advance(2 * HOUR)
    assert pruned_to(world)[0] is None


def test_an_effect_entry_lives_48_hours_after_the_last_delivery_it_settled(world: World) -> None:
    """H16: a zombie succeeded two days before the row did: the entry must outlive the row by 48 hours, too."""
    zombie, owner = stolen(world)
    world.settle([zombie], done('"once"'))
    assert world.store.leases.renew(owner.worker, lease=30 * DAY)
    world.advance(47 * HOUR)
    world.settle([owner], SUCCEEDED)
    world.advance(47 * HOUR)
    assert pruned_to(world) == ("accepted", "succeeded")
    entry = effect(world, "k")
    assert entry is not None
    assert entry.response == '"once"'
    world.advance(2 * HOUR)
    assert pruned_to(world) == (None, None)


@pytest.mark.parametrize("ending", [aborted(), failed(), snoozed()], ids=["aborted", "failed", "snoozed"])
def test_what_a_zombie_achieved_settles_the_owners_delivery_whatever_its_own_attempt_came_to(
    world: World, ending: Settlement
) -> None:
    """I5, I7: the ledger says succeeded, so the row may not say anything else."""
    zombie, owner = stolen(world)
    world.settle([zombie], done())
    assert world.settle([owner], ending) == SettleReport()
    assert world.deliveries() == []
    assert [row.epoch for row in world.history()] == [owner.epoch]


def test_a_success_that_finds_another_digest_recorded_is_a_conflict(world: World) -> None:
    """I5: two messages of one key and destination were both sent; the row must not contradict the ledger."""
    world.publish(topic="one", idempotency_key="k", payload=lambda _: "this")
    world.publish(topic="other", idempotency_key="k", payload=lambda _: "that")
    first, second = world.claim(world.worker())
    assert world.settle([first]) == SettleReport()
    assert world.settle([second]) == SettleReport()
    (row,) = world.deliveries()
    assert (row.id, row.status, row.reason) == (second.id, "aborted", "IDEMPOTENCY_CONFLICT")


def test_what_a_zombie_achieved_is_not_cancelled_when_its_successor_dies(world: World) -> None:
    """I5, H13, H22: asked to stop and then lost, but the ledger knows of the success: the next claim settles it."""
    zombie, owner = stolen(world)
    world.store.acts.cancel(Filter(ids=(owner.id,)), SOMEBODY)
    world.settle([zombie], done())
    world.store.leases.end(owner.worker, lost=True)
    (claim,) = world.claim_suspect(world.worker())
    assert decide_by_ledger(claim) == SUCCEEDED


def test_entries_are_kept_while_a_dead_letter_has_the_key(world: World) -> None:
    """H16: row aborted, zombie success, 48 hours pass, replay: it must still be known that it was done."""
    zombie, owner = stolen(world)
    world.settle([owner], aborted())
    world.settle([zombie], done())
    world.advance(30 * DAY)
    assert pruned_to(world) == ("accepted", "succeeded")
    world.store.acts.replay(Filter(), SOMEBODY)
    (claim,) = world.claim_suspect(world.worker())
    assert decide_by_ledger(claim) == SUCCEEDED  # no second effect


def test_entries_are_kept_while_a_delivery_waits_longer_than_48_hours(world: World) -> None:
    """H16: any delay over 48 hours."""
    (message,) = world.publish(idempotency_key="k", delay=72 * HOUR)
    world.advance(71 * HOUR)
    assert pruned_to(world) == ("accepted", None)
    (again,) = world.publish(idempotency_key="k", delay=72 * HOUR)
    assert (again.id, again.duplicate) == (message.id, True)
    assert len(world.deliveries()) == 1


def test_an_effect_entry_is_kept_while_another_message_with_the_key_waits(world: World) -> None:
    """H16: the second message of the same key and destination must find what the first one did."""
    world.publish(topic="one", idempotency_key="k", payload=lambda _: "same")
    world.publish(topic="other", idempotency_key="k", payload=lambda _: "same", delay=10 * DAY)
    world.settle([claim_one(world)])
    world.advance(11 * DAY)
    assert pruned_to(world)[1] == "succeeded"
    assert decide_by_ledger(claim_one(world)) == SUCCEEDED


@pytest.mark.parametrize("end", ["settled", "purged", "replayed, cancelled and purged"])
def test_entries_do_not_stay_for_ever_after_a_person_ended_the_delivery(world: World, end: str) -> None:
    """H16: settled by hand or purged, nothing refers to them any more: 48 hours later they go."""
    kill(world)
    world.advance(3 * DAY)
    if end == "settled":
        assert world.store.acts.settle_by_hand(Filter(), SOMEBODY, succeeded=True).changed
    else:
        if end != "purged":
            assert world.store.acts.replay(Filter(), SOMEBODY).changed
            assert world.store.acts.cancel(Filter(), SOMEBODY).changed
        assert world.store.acts.purge(Filter(), SOMEBODY).changed
    world.advance(47 * HOUR)
    assert None not in pruned_to(world)
    world.advance(2 * HOUR)
    assert pruned_to(world) == (None, None)

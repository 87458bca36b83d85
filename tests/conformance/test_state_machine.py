"""The store against a small pure model, step by step, on both databases (I1, I3, I4, I5, I9).

Hypothesis makes up stories of publishes, claims, settlements, deaths and acts of people, in which replies get lost;
after each step everything the store shows is compared with `reference.py`. What it found is told below, by name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.conformance.reference import WAITING, Ending, Entry, Reference, Row, Token, effect
from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.decision import Settlement
from todoku.core.errors import DatabaseUnavailable, IdempotencyConflict
from todoku.core.message import Claimed, Draft, Message
from todoku.core.status import Status
from todoku.store import failpoint
from todoku.store.acts import Acted
from todoku.store.claims import SettleReport
from todoku.store.deliveries import Delivery, Filter
from todoku.store.leases import Held

T = TypeVar("T")
E = TypeVar("E")
Pair = tuple[Claimed, Row]
"""What was claimed, and the model's row at that moment."""

UNIT: Final = 1000.0
"""Seconds. Every duration is whole units, so the few seconds a story really takes never matter."""

LEASE: Final = 6
ENDINGS: Final = (
    Ending("succeeded"),
    Ending("succeeded", result='{"ok":true}'),
    Ending("failed", 0, "TIMEOUT"),
    Ending("failed", 2, "TIMEOUT"),
    Ending("aborted", 0, "REFUSED"),
    Ending("aborted", 0, "IDEMPOTENCY_CONFLICT"),
    Ending("pending", 1, snoozed=True),
)


def do(name: str, /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A step: the method of that name, and its arguments."""
    return st.fixed_dictionaries({"do": st.just(name), **arguments})


def one(*values: Any) -> st.SearchStrategy[Any]:
    """One of these; what is written twice comes twice as often."""
    return st.sampled_from(values)


number = st.integers(0, 99)  # one of what there is
picks = st.lists(number, min_size=1, max_size=3)
endings = st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=3)
lost = one(None, None, None, None, "before_commit", "after_commit")  # the reply, without or with the commit

PUBLISH: Final = do(
    "publish",
    to=one(("mail",), ("shop",), ("mail", "shop")),
    topic=one("order.created", "order.changed"),
    key=one(None, None, "k1", "k1", "k2"),
    body=one(1, 2),
    delay=one(0, 0, 0, 2),
    expires=one(None, None, 3),
    priority=one(0, 0, 7),
    reopen=st.booleans(),
    lost=lost,
)
CLAIM: Final = do(
    "claim",
    how=one("claim", "claim", "work", "work", "suspect"),
    number=number,
    limit=st.integers(1, 3),
    endings=endings,
    lost=lost,
)
END: Final = do(
    "end",
    how=one("settle", "settle", "settle", "release", "zombie"),
    stale=one(False, False, False, True),
    picks=picks,
    endings=endings,
    delay=one(0, 0, 2),
    lost=lost,
)
LEASES: Final = do(
    "lease",
    how=one("wait", "wait", "renew", "renew", "lapse", "reclaim", "reclaim", "drain", "die", "die"),
    number=number,
    lost=lost,
)
PERSON: Final = do(
    "person", act=one("replay", "replay", "cancel", "cancel", "purge", "succeed", "abort"), picks=picks, lost=lost
)
MAINTAIN: Final = do(
    "maintain",
    how=one("pause", "resume", "resume", "open", "close", "expire", "expire"),
    name=one("mail", "shop"),
    lost=lost,
)
STEPS: Final = st.one_of(PUBLISH, PUBLISH, CLAIM, CLAIM, CLAIM, END, END, LEASES, PERSON, PERSON, MAINTAIN)


def settlement(ending: Ending) -> Settlement:
    return Settlement(
        status=Status(ending.status),
        delay=ending.delay * UNIT,
        reason=ending.reason,
        error=ending.reason,
        result=ending.result,
        snoozed=ending.snoozed,
    )


def token(claim: Claimed | Held) -> Token:
    return claim.id, claim.epoch, claim.worker


class Machine(RuleBasedStateMachine):
    """One story."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world, self.store = world, world.store
        self.model = Reference()
        self.workers: list[UUID] = []
        self.claims: list[Pair] = []
        self.began = self.store.ping()
        self.before: dict[int, Delivery] = {}
        self.audited: Counter[int] = Counter()
        self.raw = world.connect()
        if world.backend == "postgres":
            self.raw.autocommit = True

    def teardown(self) -> None:
        self.raw.close()

    @initialize(messages=st.lists(PUBLISH, min_size=1, max_size=4))
    def begin(self, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.step(message)

    @rule(step=STEPS)
    def step(self, step: dict[str, Any]) -> None:
        """One rule for all: Hypothesis leaves rules out of a story, and half a protocol shows nothing."""
        getattr(self, step["do"])(**{name: value for name, value in step.items() if name != "do"})

    # ---------------------------------------------------------------------------------------- support

    def both(self, operation: str, lost: str | None, call: Callable[[], T], expect: Callable[[], E]) -> tuple[T, E]:
        """Make a call here and in the model, and return both answers. Its first reply may get lost: then again."""
        self.model.turn += 1
        if lost is not None:
            with failpoint.armed(f"{operation}.{lost}", failpoint.lose), suppress(DatabaseUnavailable):
                call()
            if lost == "after_commit":
                expect()
            self.model.turn += 1
        return call(), expect()

    def worker(self, number: int) -> UUID:
        """A worker: mostly one that lives, now and then one that does not."""
        live = [worker for worker in self.workers if self.model.live(worker)]
        if not live:
            live = [self.register()]
        dead = [worker for worker in self.workers if worker not in live]
        workers = dead if dead and number % 5 == 4 else live
        return workers[number % len(workers)]

    def owner(self, number: int) -> UUID:
        """A worker that owns something, if that can be had."""
        if not self.live:
            self.claim("claim", number, 2, [], None)
        owners = [claim.worker for claim, _ in self.live]
        return owners[number % len(owners)] if owners else self.worker(number)

    def chosen(self, picks: Sequence[int], statuses: Sequence[str]) -> list[int]:
        """Deliveries to act on: mostly some in these states. No two of one effect entry in the same act."""
        everything = sorted((id for ids in self.model.messages.values() for id in ids), reverse=True)
        able = [id for id in everything if id in self.model.rows and self.model.rows[id].status in statuses]
        ids = able if able and picks[0] % 8 != 7 else everything
        found: dict[object, int] = {}
        for pick in picks:
            id = ids[pick % len(ids)]
            row = self.model.rows.get(id)
            found.setdefault((row.destination, row.key) if row is not None and row.key is not None else id, id)
        return list(found.values())

    def batch(self, pairs: Sequence[Pair], picks: Iterable[int]) -> list[Pair]:
        """Claims of one worker, as a settle or release has them; no two of one effect entry."""
        found: dict[object, Pair] = {}
        worker = None
        for pick in picks:
            claim, row = pairs[-1 - pick % len(pairs)]
            worker = worker or claim.worker
            if claim.worker == worker:
                found.setdefault((row.destination, row.key) if row.key else token(claim), (claim, row))
        return list(found.values())

    @property
    def live(self) -> list[Pair]:
        """Claims whose token still works."""
        return [pair for pair in self.claims if self.model.owned(token(pair[0]))]

    @property
    def stale(self) -> list[Pair]:
        """Claims of deliveries that are in flight again, old and new; or all there ever were."""
        again = Counter(claim.id for claim, _ in self.claims)
        running = {id for id, row in self.model.rows.items() if row.status == "sending" and again[id] > 1}
        return [pair for pair in self.claims if pair[0].id in running] or self.claims

    # ---------------------------------------------------------------------------------------- publish

    def publish(
        self, lost: str | None, delay: int, expires: int | None, body: int, key: str | None, **more: Any
    ) -> None:
        def attempt() -> Message | None:
            nonlocal drafted
            (drafted,) = self.world.drafts(
                payload=lambda _: body,
                idempotency_key=key,
                delay=delay * UNIT,
                expires=None if expires is None else expires * UNIT,
                **more,
            )
            with suppress(IdempotencyConflict):
                return self.store.run(self.world.steps([drafted]))[0]
            return None

        drafted: Draft
        message, expected = self.both("publish", lost, attempt, lambda: self.published(drafted, delay, expires))
        assert (message and (message.id, message.duplicate)) == expected

    def published(self, draft: Draft, delay: int, expires: int | None) -> tuple[UUID, bool] | None:
        """A publish in the model. The ids of its deliveries are the database's to give."""
        model, key = self.model, draft.idempotency
        if key is not None and (earlier := model.reserved.get((key.scope, key.key_hash))) is not None:
            if earlier[0] != key.digest:
                return None
            if key.reopen:
                model.replay([id for id in model.messages[earlier[1]] if id in model.rows])
            return earlier[1], True
        found = sorted(self.store.deliveries.find(Filter(message_id=draft.id)).items, key=lambda delivery: delivery.id)
        assert {delivery.destination for delivery in found} == {leg.destination for leg in draft.legs}
        rows = {
            delivery.id: Row(
                destination=delivery.destination,
                key=None if key is None else key.key_hash,
                digest=None if key is None else key.digest,
                priority=draft.legs[0].priority,
                due=(model.now + delay, model.turn),
                expires=None if expires is None else model.now + expires,
            )
            for delivery in found
        }
        model.publish(draft.id, rows, None if key is None else (key.scope, key.key_hash), key and key.digest)
        return draft.id, False

    # ---------------------------------------------------------------------------------- time, the lease

    def register(self) -> UUID:
        worker = uuid4()
        self.store.leases.register(worker, name="story", lease=LEASE * UNIT)
        self.workers.append(worker)
        self.model.leases[worker] = self.model.now + LEASE
        return worker

    def lease(self, how: str, number: int, lost: str | None) -> None:
        """Time passes; leases are kept, end, or are ended."""
        store, model = self.store, self.model
        most = 1 + number % 3
        if how in ("wait", "lapse"):
            self.advance(LEASE if how == "lapse" else 1 + number % 2)
        for worker in model.leases if how == "lapse" else ():
            assert not store.leases.renew(worker, lease=LEASE * UNIT)  # H1: before anybody has noticed
            assert self.world.claim(worker) == self.world.claim_suspect(worker) == []
        if how == "reclaim":
            reclaimed, expected = self.both(
                "reclaim", lost, lambda: store.leases.reclaim(max_lost=most), lambda: model.reclaim(max_lost=most)
            )
            assert (reclaimed.workers, reclaimed.freed, reclaimed.aborted) == expected
        if how in ("drain", "die"):
            worker, died = self.owner(number), how == "die"
            reclaimed, expected = self.both(
                "end_lease",
                lost,
                lambda: store.leases.end(worker, lost=died, max_lost=most),
                lambda: model.bury(worker, died=died, max_lost=most),
            )
            assert (reclaimed.workers, reclaimed.freed, reclaimed.aborted) == expected
        if how == "renew":
            worker = self.worker(number)
            renewed, is_live = self.both(
                "renew",
                lost,
                lambda: store.leases.renew(worker, lease=LEASE * UNIT),
                lambda: model.renew(worker, LEASE),
            )
            assert renewed is is_live

    def advance(self, units: int) -> None:
        self.world.advance(units * UNIT)
        self.model.now += units

    # ----------------------------------------------------------------------------------------- the line

    def claim(self, how: str, number: int, limit: int, endings: list[Ending], lost: str | None) -> None:
        """Claim; `work`: and settle at once, as most workers do."""
        worker = self.worker(number)
        if not self.able(worker) and number % 4:
            self.mend()
        if how == "suspect" or not self.model.claimable(worker, suspects=False):
            self.claim_suspect(worker, lost)
        else:
            self.claim_some(worker, limit, lost)
        if how == "work" and self.live:
            self.settle(self.batch(self.live, range(limit)), endings, None)

    def able(self, worker: UUID) -> bool:
        return any(self.model.claimable(worker, suspects=suspects) for suspects in (True, False))

    def mend(self) -> None:
        """Nothing may run: let time pass, and take out of the way what people and breakers put there."""
        self.advance(2)
        for name in ("mail", "shop"):
            self.maintain("resume", name, None)
            self.maintain("close", name, None)
        if not any(row.status in WAITING for row in self.model.rows.values()):
            self.publish(lost=None, delay=0, expires=None, body=1, key=None, to=("shop",))

    def claim_some(self, worker: UUID, limit: int, lost: str | None) -> None:
        self.lose_a_claim("claim", lost, worker, lambda: self.world.claim(worker, limit), limit)
        expected = self.model.claimable(worker, suspects=False)[:limit]
        claims = self.world.claim(worker, limit)
        assert {claim.id for claim in claims} == set(expected)
        for place in {(claim.destination, claim.priority) for claim in claims}:
            ids = [claim.id for claim in claims if (claim.destination, claim.priority) == place]
            assert ids == [id for id in expected if id in ids], "a slice comes in time order"
        self.claimed(worker, claims)

    def claim_suspect(self, worker: UUID, lost: str | None) -> None:
        self.lose_a_claim("claim_suspect", lost, worker, lambda: self.world.claim_suspect(worker), 1)
        able = self.model.claimable(worker, suspects=True)
        claims = self.world.claim_suspect(worker)
        assert len(claims) == min(1, len(able))
        assert {claim.id for claim in claims} <= set(able)
        self.claimed(worker, claims)

    def claimed(self, worker: UUID, claims: Sequence[Claimed]) -> None:
        self.model.take(worker, [claim.id for claim in claims])
        for claim in claims:
            row = self.model.rows[claim.id]
            entry = self.model.effects.get(effect(row.destination, row.key)) if row.key else None
            assert (claim.attempt, claim.epoch, claim.lost, claim.snoozes, claim.replay_count, claim.worker) == (
                row.attempts, row.epoch, row.lost, row.snoozes, row.replays, worker,
            )  # fmt: skip
            assert (claim.key_hash, claim.digest) == (row.key, row.digest)
            assert (claim.effect_state, claim.effect_digest) == ((entry.state, entry.digest) if entry else (None, None))
            self.claims.append((claim, row))

    def lose_a_claim(
        self, operation: str, lost: str | None, worker: UUID, call: Callable[[], object], limit: int
    ) -> None:
        """A claim whose reply is lost: the worker compares what it owns with what it holds, and releases it (H3)."""
        if lost is None:
            return
        with failpoint.armed(f"{operation}.{lost}", failpoint.lose), suppress(DatabaseUnavailable):
            call()
        held = {token(pair[0]) for pair in self.live}
        unknown = [own for own in self.store.leases.owned(worker) if token(own) not in held]
        able = self.model.claimable(worker, suspects=operation == "claim_suspect")
        assert len(unknown) == (min(limit, len(able)) if lost == "after_commit" else 0)
        assert {own.id for own in unknown} <= set(able)
        self.model.take(worker, [own.id for own in unknown])
        assert self.store.claims.release(unknown) == ()
        assert not any(self.model.release(token(own), 0) for own in unknown)

    def settle(self, batch: Sequence[Pair], endings: Sequence[Ending], lost: str | None) -> None:
        pairs = [(claim, row, endings[place % len(endings)]) for place, (claim, row) in enumerate(batch)]

        def call() -> SettleReport:
            return self.store.claims.settle([(claim, settlement(ending)) for claim, _, ending in pairs])

        def expect() -> set[Token]:
            told = {token(claim): self.model.settle(token(claim), row, ending) for claim, row, ending in pairs}
            return {which for which, is_lost in told.items() if is_lost}

        report, expected = self.both("settle", lost, call, expect)
        assert {token(claim) for claim in report.lost} == expected
        assert report.stuck == ()

    def end(self, how: str, stale: bool, picks: list[int], endings: list[Ending], delay: int, lost: str | None) -> None:
        """Settle or release what is claimed; `stale`: with whatever tokens there ever were (I3)."""
        if not self.live and not (stale and self.claims):
            self.claim("claim", picks[0], 3, endings, None)
        if not self.claims:
            return
        batch = self.batch(self.stale if stale else self.live or self.claims, picks)
        if len({claim.id for claim, _ in batch}) < len(batch):
            lost = None  # an old token beside a new one: two transactions, of which only one could be ambiguous
        if how == "zombie":  # the same worker claims what it had to give up, and then the first attempt ends too (H4)
            self.settle(batch, [ENDINGS[2]], None)
            self.claim_some(batch[0][0].worker, 3, None)
        if how in ("settle", "zombie"):
            self.settle(batch, endings, lost)
        else:
            self.release([claim for claim, _ in batch], delay, lost)

    def release(self, claims: list[Claimed], delay: int, lost: str | None) -> None:
        answer, expected = self.both(
            "release",
            lost,
            lambda: self.store.claims.release(claims, delay=delay * UNIT),
            lambda: {token(claim) for claim in claims if self.model.release(token(claim), delay)},
        )
        assert {token(claim) for claim in answer} == expected

    # ------------------------------------------------------------------------------- what a person does

    def person(self, act: str, picks: list[int], lost: str | None) -> None:
        if not self.model.messages:
            return
        store, model = self.store, self.model
        acts: dict[str, tuple[str, Callable[[Filter], Acted], Callable[[list[int]], set[int]], tuple[str, ...]]] = {
            "replay": ("replay", lambda which: store.acts.replay(which, SOMEBODY), model.replay, ("aborted",)),
            "cancel": ("cancel", lambda which: store.acts.cancel(which, SOMEBODY), model.cancel, ("sending", *WAITING)),
            "purge": ("purge", lambda which: store.acts.purge(which, SOMEBODY), model.purge, ("aborted",)),
            "succeed": (
                "settle_by_hand",
                lambda which: store.acts.settle_by_hand(which, SOMEBODY, succeeded=True),
                lambda ids: model.settle_by_hand(ids, succeeded=True),
                ("aborted", *WAITING),
            ),
            "abort": (
                "settle_by_hand",
                lambda which: store.acts.settle_by_hand(which, SOMEBODY, succeeded=False),
                lambda ids: model.settle_by_hand(ids, succeeded=False),
                WAITING,
            ),
        }
        operation, call, expect, statuses = acts[act]
        ids = self.chosen(picks, statuses)
        acted, expected = self.both(operation, lost, lambda: call(Filter(ids=tuple(ids))), lambda: expect(ids))
        assert set(acted.changed) == expected

    def maintain(self, how: str, name: str, lost: str | None) -> None:
        store, model = self.store, self.model
        match how:
            case "pause" | "resume":
                store.queues.pause(name, SOMEBODY, paused=how == "pause")
                (model.paused.add if how == "pause" else model.paused.discard)(name)
            case "open" | "close":
                units = 2 if how == "open" else 0
                store.limits.set_breaker(name, open_for=units * UNIT)
                model.open_until[name] = model.now + units
            case _:
                answer, expected = self.both(
                    "expire", lost, lambda: store.retention.expire(unknown_after=1e8), lambda: (model.expire(), 0)
                )
                assert answer == expected

    # -------------------------------------------------------------------------------------- comparing

    @invariant()
    def the_store_shows_what_the_model_says(self) -> None:
        found = {delivery.id: delivery for delivery in self.store.deliveries.find(Filter(), limit=1000).items}
        done = {
            delivery.id: delivery
            for delivery in self.store.deliveries.find(Filter(status="succeeded"), limit=1000).items
        }
        self.check_rows(found, done)
        self.check_ledger()
        self.check_records()
        self.check_i1(found, done)
        self.check_i4_and_i9(found)

    def check_rows(self, found: dict[int, Delivery], done: dict[int, Delivery]) -> None:
        model = self.model
        assert {id: self.shown(delivery) for id, delivery in found.items()} == {
            id: (
                row.destination, row.priority, row.status, row.attempts, row.lost, row.snoozes, row.replays,
                row.epoch, row.worker, row.asked, row.reason, row.due[0],
            )
            for id, row in model.rows.items()
        }  # fmt: skip
        assert {id: (d.destination, d.attempts, d.replay_count, d.epoch, d.worker) for id, d in done.items()} == {
            id: (d.destination, d.attempts, d.replays, d.epoch, d.worker) for id, d in model.done.items()
        }

    def shown(self, delivery: Delivery) -> tuple[object, ...]:
        unit = (delivery.next_run_at.timestamp() - self.began) // UNIT
        return (
            delivery.destination, delivery.priority, delivery.status, delivery.attempts, delivery.lost,
            delivery.snoozes, delivery.replay_count, delivery.epoch, delivery.worker, delivery.cancel_requested,
            delivery.reason, unit,
        )  # fmt: skip

    def read(self, statement: str) -> list[tuple[Any, ...]]:
        return self.raw.execute(statement).fetchall()  # type: ignore[no-any-return]

    def check_ledger(self) -> None:
        """I5: reservations and effects are what the model says; whatever succeeded is recorded as such."""
        ledger = {(scope, key): Entry(*rest) for scope, key, *rest in self.read(
            "select scope, key_hash, digest, state from todoku_ledger")}  # fmt: skip
        assert ledger == self.model.effects | {
            key: Entry(digest, "accepted") for key, (digest, _) in self.model.reserved.items()
        }
        for done in self.model.done.values():
            if done.key is not None:
                entry = ledger[effect(done.destination, done.key)]
                assert entry.state == "succeeded"
                assert entry.digest == done.digest or done.worker is None  # a person may say so of a conflict too

    def check_records(self) -> None:
        """I4, I9: every failed attempt and every act of a person, once each."""
        tried = self.read("select delivery_id, replay, number, epoch, reason, worker_id from todoku_attempt")
        assert Counter((*row[:-1], row[-1] and str(row[-1])) for row in tried) == Counter(
            (row.id, row.replay, row.number, row.epoch, row.reason, row.worker and str(row.worker))
            for row in self.model.tried
        )
        audit = self.read("select action, target from todoku_audit where target like 'delivery:%'")
        assert Counter(audit) == Counter((action, f"delivery:{id}") for action, id in self.model.audit)
        results = {id: json.loads(text) for id, text in self.results()}
        assert results == {id: json.loads(text) for id, text in self.model.results.items()}

    def results(self) -> list[tuple[Any, ...]]:
        return self.read("select delivery_id, cast(result as text) from todoku_result")

    def check_i1(self, found: dict[int, Delivery], done: dict[int, Delivery]) -> None:
        """I1: every published delivery is in exactly one place, unless a person removed it."""
        everything = Counter([*found, *done, *self.model.purged])
        assert everything == Counter(id for ids in self.model.messages.values() for id in ids)

    def check_i4_and_i9(self, found: dict[int, Delivery]) -> None:
        """I4: an epoch rises with each change of owner or state. I9: a dead letter leaves with an audit row."""
        audited = Counter(id for _, id in self.model.audit)
        for id, old in self.before.items():
            new = found.get(id)
            if new is not None and (new.status, new.worker) != (old.status, old.worker):
                assert new.epoch > old.epoch
            elif new is not None:
                assert new.epoch >= old.epoch
            if old.status == "aborted" and (new is None or new.status != "aborted"):
                assert audited[id] > self.audited[id]
        self.before, self.audited = found, audited


# ---------------------------------------------------------------------------------------------- stories

TABLES: Final = (
    "todoku_message", "todoku_delivery", "todoku_lane", "todoku_history", "todoku_attempt", "todoku_result",
    "todoku_ledger", "todoku_worker", "todoku_queue", "todoku_destination", "todoku_audit",
)  # fmt: skip


def forget(world: World) -> None:
    """Empty a world for the next story, and put its clock right: cheaper than another database."""
    world.reset_clock()
    if world.backend == "postgres":
        world.sql(f"truncate {', '.join(TABLES)}")
        return
    world.sql("drop trigger if exists todoku_audit_no_delete")
    connection = world.connect()
    try:
        with connection:
            for table in TABLES:
                connection.execute(f"delete from {table}")
    finally:
        connection.close()


def tell(world: World, *, examples: int, steps: int) -> None:
    """Run stories on a world."""

    def story() -> Machine:
        forget(world)
        return Machine(world)

    run_state_machine_as_test(
        story,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            print_blob=True,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize(
    ("on_sqlite", "on_postgres", "steps"),
    [
        pytest.param(10, 5, 20, id="few"),
        pytest.param(100, 30, 30, id="many", marks=pytest.mark.slow),
        pytest.param(15, 15, 100, id="long", marks=pytest.mark.slow),
    ],
)
def test_the_store_does_what_the_model_says(world: World, on_sqlite: int, on_postgres: int, steps: int) -> None:
    """I1, I3, I4, I5, I9: stories of so many steps, on both databases."""
    tell(world, examples=on_sqlite if world.backend == "sqlite" else on_postgres, steps=steps)


# ------------------------------------------------------------------------------ what the stories found


def two_messages_of_one_key(world: World) -> tuple[Claimed, Claimed]:
    """Two topics, one key, two bodies, one destination: two publish entries, and one effect entry between them."""
    for topic, body in (("order.created", 1), ("order.changed", 2)):
        world.publish(topic=topic, idempotency_key="k", payload=lambda _, body=body: body)
    one, other = world.claim(world.worker())
    assert (one.key_hash, one.destination) == (other.key_hash, other.destination)
    assert one.digest != other.digest
    return one, other


def entry_of(world: World, claim: Claimed) -> tuple[str, str]:
    entry = world.store.ledger.entry(*effect(claim.destination, claim.key_hash or ""))
    assert entry is not None
    return entry.digest, entry.state


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_success_is_in_the_ledger_although_another_body_of_its_key_had_failed(world: World, by_hand: bool) -> None:
    """I5, I7: the failure of one message kept the success of the other out, and a zombie would have sent it again."""
    failing, succeeding = two_messages_of_one_key(world)
    world.settle([failing], aborted())
    assert entry_of(world, failing) == (failing.digest, "failed")
    if by_hand:
        world.store.claims.release([succeeding])
        world.store.acts.settle_by_hand(Filter(ids=(succeeding.id,)), SOMEBODY, succeeded=True)
    else:
        world.settle([succeeding])
    assert entry_of(world, succeeding) == (succeeding.digest, "succeeded")
    assert world.store.claims.effects([failing]) == {failing.id: ("succeeded", succeeding.digest)}  # a conflict for it


def test_a_failure_says_nothing_about_another_body_of_its_key(world: World) -> None:
    """I5: whichever failed first keeps the entry until something succeeds."""
    one, other = two_messages_of_one_key(world)
    world.settle([one], aborted())
    world.settle([other], aborted())
    assert entry_of(world, one) == (one.digest, "failed")


def test_replaying_a_message_leaves_the_ledger_entry_of_another_alone(world: World) -> None:
    """H15: what runs again is not failed any more; the other message of the same key is, and does not run."""
    one, other = two_messages_of_one_key(world)
    world.settle([one], aborted())
    world.settle([other], aborted())
    world.store.acts.replay(Filter(ids=(other.id,)), SOMEBODY)
    assert entry_of(world, one) == (one.digest, "failed")
    world.store.acts.replay(Filter(ids=(one.id,)), SOMEBODY)
    assert entry_of(world, one) == (one.digest, "accepted")


def test_reopening_a_message_leaves_the_ledger_entry_of_another_alone(world: World) -> None:
    """H15: the same, when it is a publisher that reopens."""
    one, other = two_messages_of_one_key(world)
    world.settle([one], aborted())
    world.settle([other], aborted())
    world.publish(topic="order.changed", idempotency_key="k", payload=lambda _: 2, reopen=True)
    assert entry_of(world, one) == (one.digest, "failed")
    world.publish(topic="order.created", idempotency_key="k", payload=lambda _: 1, reopen=True)
    assert entry_of(world, one) == (one.digest, "accepted")


def test_an_old_token_beside_a_new_one_of_the_same_delivery_changes_nothing_for_it(world: World) -> None:
    """I3, I13: a zombie attempt ends in the same batch as its successor; on PostgreSQL the whole batch was refused."""
    result = Settlement(status=Status.SUCCEEDED, result='{"ok":true}')
    world.publish(2)
    worker = world.worker()
    claims = world.claim(worker)
    old, neighbour = claims
    world.settle([old], failed())
    (new,) = world.claim(worker)
    assert new.id == old.id
    assert (
        world.store.claims.settle([(new, result), (old, result), (neighbour, result)]).lost == ()
    )  # `old` was settled
    assert [done.epoch for done in world.history()] == [new.epoch, neighbour.epoch]
    assert world.deliveries() == []


@pytest.mark.parametrize("old_first", [True, False])
def test_releasing_an_old_token_beside_a_new_one_releases_the_new_one(world: World, old_first: bool) -> None:
    """I3, H3: whichever comes first."""
    world.publish()
    worker = world.worker()
    (old,) = world.claim(worker)
    world.store.claims.release([old])
    (new,) = world.claim(worker)
    assert world.store.claims.release([old, new] if old_first else [new, old]) == (old,)
    assert [(row.status, row.attempts) for row in world.deliveries()] == [("pending", 0)]

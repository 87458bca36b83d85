"""Claim (DESIGN §4): asked by the worker, committed by the database, answered or not: three moments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from tests.model.model import Model
from tests.model.state import (
    ASKED,
    ASKED_BUSY,
    DUE,
    LIVE,
    NO_CLAIM,
    NO_LEASE,
    NOBODY,
    ON_ITS_WAY,
    REPLYING,
    SENDING,
    STRAY,
    UP,
    Event,
    Held,
    State,
    Step,
    Worker,
    put,
)
from tests.model.steps.execute import as_seen
from tests.model.steps.lease import cast_adrift, with_worker
from tests.model.steps.rows import reserve


def ask(model: Model, state: State) -> Iterator[Step]:
    """Claim: a worker that is up, not draining, and in its lease by its own clock asks for due rows."""
    if not any(row.status in DUE for row in state.rows):
        return  # a claim that finds nothing changes nothing
    for number, worker in enumerate(state.workers):
        in_lease = worker.me != NOBODY and state.leases[worker.me] == LIVE
        if in_lease and worker.mode == UP and worker.claim == NO_CLAIM and _has_room(model, worker):
            idle = len(state.rows) == 1 or all(held.phase == STRAY for held in worker.held)
            claim = ASKED if idle else ASKED_BUSY
            yield Event("claim asked", number), with_worker(state, number, worker._replace(claim=claim))


def _has_room(model: Model, worker: Worker) -> bool:
    """A suspect has its worker to itself, so that a message that kills its worker takes nobody with it."""
    alone = model.fixes.suspects_claimed_alone and model.fixes.suspect_has_worker_to_itself
    return not (alone and any(held.suspect for held in worker.held))


def commit(model: Model, state: State) -> Iterator[Step]:
    """Claim: due rows become `sending` with owner, attempts + 1 and epoch + 1; nothing without the worker row."""
    for number, worker in enumerate(state.workers):
        if worker.claim not in ON_ITS_WAY:
            continue
        if not _may_claim(model, state, worker.me):
            yield Event("claim finds no worker row", number), _answered(state, number, ())
            continue
        batches = list(_picks(model, state, worker.claim))
        if not batches:
            yield Event("claim finds nothing", number), _answered(state, number, ())
        for picked in batches:
            claimed, tokens = _take(model, state, picked, worker.me)
            yield (
                Event("claim commits", number, picked),
                with_worker(claimed, number, worker._replace(claim=REPLYING, reply=tokens)),
            )


def _may_claim(model: Model, state: State, incarnation: int) -> bool:
    """FOR KEY SHARE: the worker row cannot go between the look and the commit. An ended one is still a row."""
    return not model.fixes.claim_needs_worker_row or state.leases[incarnation] != NO_LEASE


def _picks(model: Model, state: State, claim: str) -> Iterator[tuple[int, ...]]:
    """Every batch that the claim may take: any due rows, but a suspect alone."""
    due = [delivery for delivery, row in enumerate(state.rows) if row.status in DUE]
    for size in range(1, model.scenario.batch + 1):
        for picked in combinations(due, size):
            suspect = model.fixes.suspects_claimed_alone and any(state.rows[d].lost for d in picked)
            crowded = size > 1 or (claim == ASKED_BUSY and model.fixes.suspect_has_worker_to_itself)
            if not (suspect and crowded) and _reserved(model, state, picked) is not None:
                yield picked


def _reserved(model: Model, state: State, picked: tuple[int, ...]) -> State | None:
    """With reservations by the claim: the effect entries of these rows are theirs; None: one is another's."""
    if not (model.scenario.reserves_at_claim and model.fixes.reserves_effect):
        return state
    after: State | None = state
    for delivery in picked:
        if after is not None and model.entry[delivery] != NOBODY:
            after = reserve(model, after, delivery)
    return after


def _take(model: Model, state: State, picked: tuple[int, ...], owner: int) -> tuple[State, tuple[Held, ...]]:
    rows, tokens, before = list(state.rows), [], []
    for delivery in picked:
        row = rows[delivery]
        before.append((delivery, row))
        rows[delivery] = row = row._replace(
            status=SENDING, owner=owner, attempts=row.attempts + 1, epoch=row.epoch + 1, begun=False
        )
        tokens.append(_token(model, state, delivery, row.epoch, owner))
    unflushed = () if model.fixes.claims_commit_synchronously else tuple(before)
    reserved = _reserved(model, state, picked) or state
    return reserved._replace(rows=tuple(rows), unflushed=unflushed), tuple(tokens)


def _token(model: Model, state: State, delivery: int, epoch: int, owner: int) -> Held:
    """What the claim returns: the token, and what is needed to execute."""
    row, entry = state.rows[delivery], model.entry[delivery]
    held = Held(delivery, epoch, owner, suspect=len(state.rows) > 1 and row.lost > 0)
    if entry == NOBODY or (model.fixes.reserves_effect and not model.scenario.reserves_at_claim):
        return held
    known = state.ledger[entry]
    tried = row.attempts > 0 or (row.replays > 0 and model.fixes.replayed_counts_as_tried)
    taken_over = known is not None and model.fixes.reserves_effect
    return held._replace(again=row.lost > 0 or tried or taken_over, seen=as_seen(known))


def _answered(state: State, number: int, tokens: tuple[Held, ...]) -> State:
    worker = state.workers[number]
    return with_worker(state, number, worker._replace(claim=NO_CLAIM, reply=(), held=(*worker.held, *tokens)))


def reply(model: Model, state: State) -> Iterator[Step]:
    """Claim: the worker learns what it has claimed, or the reply is lost after the commit."""
    for number, worker in enumerate(state.workers):
        if worker.claim != REPLYING:
            continue
        taken = tuple(held.delivery for held in worker.reply)
        yield Event("claim answered", number, taken), _answered(state, number, worker.reply)
        if state.budget.ambiguous:
            spent = state._replace(budget=state.budget._replace(ambiguous=state.budget.ambiguous - 1))
            yield Event("claim's reply is lost", number, taken), _answered(spent, number, ())


def lose_connection(model: Model, state: State) -> Iterator[Step]:
    """Claim: the connection breaks before the commit; whether the claim goes on is the backend's secret."""
    if not state.budget.ambiguous:
        return
    for number, worker in enumerate(state.workers):
        if worker.claim in ON_ITS_WAY:
            spent = state._replace(budget=state.budget._replace(ambiguous=state.budget.ambiguous - 1))
            yield Event("claim adrift", number), _answered(cast_adrift(spent, worker), number, ())


def finish_adrift(model: Model, state: State) -> Iterator[Step]:
    """Claim: one that nobody waits for commits after all (H2: perhaps after its worker was buried), or never."""
    for index, (incarnation, claim) in enumerate(state.adrift):
        left = state._replace(adrift=state.adrift[:index] + state.adrift[index + 1 :])
        if _may_claim(model, state, incarnation):
            for picked in _picks(model, state, claim):
                claimed, _ = _take(model, left, picked, incarnation)
                yield Event("adrift claim commits", deliveries=picked), claimed


def forget(model: Model, state: State) -> Iterator[Step]:
    """The database loses its last commits (asynchronous commit, failover): the claim never was."""
    if not state.budget.failovers or not state.unflushed:
        return
    rows = state.rows
    for delivery, before in state.unflushed:
        row = rows[delivery]
        if row.status != SENDING or row.epoch != before.epoch + 1:
            return  # a later commit has flushed it
        rows = put(rows, delivery, before)
    budget = state.budget._replace(failovers=state.budget.failovers - 1)
    yield Event("failover"), state._replace(rows=rows, unflushed=(), budget=budget)

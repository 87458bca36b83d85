"""The invariants of DESIGN §3 that a state, or a step between two states, can break.

A state check says what is wrong with a state, a step check what is wrong with a step; None is fine. That everything
can still arrive (no delivery is stranded) is a question about the whole graph: `search.stranded`.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.model.model import Model
from tests.model.state import (
    ABORTED,
    ABSENT,
    ACKNOWLEDGED,
    CANCELLED,
    CONFLICT,
    DONE,
    DRAINING,
    DUE,
    EXECUTING,
    FAILED,
    LATE,
    LIVE,
    NOBODY,
    PENDING,
    PRUNED,
    RELEASE,
    RUNNING,
    SENDING,
    STRAY,
    SUCCEEDED,
    TERMINAL,
    Budget,
    Event,
    State,
)

# A cancel too: its owner may stop waiting for what it has already sent.
EXPLAINING = frozenset({"crashes", "lapses", "ambiguous", "timeouts", "cancels"})

StateCheck = Callable[[Model, State], str | None]
StepCheck = Callable[[Model, State, Event, State], str | None]


def _faults(model: Model, state: State) -> int:
    """How much has gone wrong that may explain a second send; a poison's crash is on nobody's budget."""
    spent = (first - now for first, now in zip(model.scenario.budget, state.budget, strict=True))
    explaining = (count for kind, count in zip(Budget._fields, spent, strict=True) if kind in EXPLAINING)
    return sum(explaining) + any(message.poison for message in model.scenario.messages)


def name(delivery: int) -> str:
    """Deliveries are called d1, d2, …"""
    return f"d{delivery + 1}"


# --- states -----------------------------------------------------------------------------------------------------


def i1_acknowledged_is_there(model: Model, state: State) -> str | None:
    """I1: every committed publish has at least one delivery."""
    for number, status in enumerate(state.messages):
        rows = [row for row, message in zip(state.rows, model.message_of, strict=True) if message == number]
        if status == ACKNOWLEDGED and all(row.status == ABSENT for row in rows):
            return f"message {number + 1} was acknowledged and has no delivery"
    return None


def i1_has_its_message(model: Model, state: State) -> str | None:
    """I1: what is still to be sent has something to send."""
    for delivery, row in enumerate(state.rows):
        if state.messages[model.message_of[delivery]] == PRUNED and row.status not in {ABSENT, SUCCEEDED}:
            return f"{name(delivery)} is {row.status} and its message has been pruned"
    return None


def i1_success_is_real(model: Model, state: State) -> str | None:
    """I1, I5: `succeeded` means that this destination took this content, by this or an equal delivery."""
    for delivery, row in enumerate(state.rows):
        if row.status == SUCCEEDED and not any(state.rows[d].effects for d in model.same_effect[delivery]):
            return f"{name(delivery)} is succeeded and its destination never saw it"
    return None


def i3_one_live_owner(model: Model, state: State) -> str | None:
    """I3: no two workers with an unexpired lease hold one delivery."""
    owners: dict[int, set[int]] = {}
    for number, worker in enumerate(state.workers):
        if worker.me != NOBODY and state.leases[worker.me] == LIVE:
            for held in worker.held:
                if held.phase in EXECUTING:
                    owners.setdefault(held.delivery, set()).add(number)
    twice = [delivery for delivery, who in owners.items() if len(who) > 1]
    return f"two workers with live leases hold {name(twice[0])}" if twice else None


def i3_held_is_owned(model: Model, state: State) -> str | None:
    """I3: what a worker in its lease is about to execute, or executes, is its own in the database too."""
    for worker in state.workers:
        if worker.me != NOBODY and state.leases[worker.me] == LIVE:
            for held in worker.held:
                row = state.rows[held.delivery]
                if held.phase in EXECUTING and (row.owner, row.epoch) != (held.owner, held.epoch):
                    return f"a worker with a live lease executes {name(held.delivery)}, which is not its own"
    return None


def i4_attempts_in_range(model: Model, state: State) -> str | None:
    """I4: attempts are never negative and never above their maximum."""
    for delivery, row in enumerate(state.rows):
        if not 0 <= row.attempts <= model.scenario.max_attempts:
            return f"{name(delivery)} has {row.attempts} attempts"
    return None


def i4_lost_is_explained(model: Model, state: State) -> str | None:
    """I4, I13: `lost` counts owners that died; a poison beside it costs a delivery at most one, and no attempt."""
    first, now = model.scenario.budget, state.budget
    died = (first.crashes - now.crashes) + (first.lapses - now.lapses)
    beside = any(message.poison for message in model.scenario.messages)
    for delivery, row in enumerate(state.rows):
        if row.lost > died + beside and not model.message(delivery).poison:
            return f"{name(delivery)} has lost {row.lost} owners; {died} died, and not by its doing"
    return None


def i5_success_is_recorded(model: Model, state: State) -> str | None:
    """I5: a success with a key is in the ledger."""
    for delivery, row in enumerate(state.rows):
        entry = model.entry[delivery]
        if row.status == SUCCEEDED and entry != NOBODY and state.recorded[entry] != model.digest[delivery]:
            return f"{name(delivery)} is succeeded and the ledger does not know"
    return None


def i5_conflict_was_not_sent(model: Model, state: State) -> str | None:
    """I5: a second content under a used key is aborted instead of sent, not after it (but for a fault)."""
    for delivery, row in enumerate(state.rows):
        if row.reason == CONFLICT and row.effects and not _faults(model, state):
            return f"{name(delivery)} was sent and then aborted as {CONFLICT}"
    return None


def i5_failed_entry_is_true(model: Model, state: State) -> str | None:
    """I5: an effect entry says `failed` only of a delivery that is aborted."""
    for known in state.ledger:
        if known is not None and known.state == FAILED and state.rows[known.holder].status != ABORTED:
            return f"the ledger says failed of {name(known.holder)}, which is {state.rows[known.holder].status}"
    return None


def i5_published_once(model: Model, state: State) -> str | None:
    """I5: a publish with a key queues one message, however often it is repeated."""
    twice = [number for number, copies in enumerate(state.copies) if copies > 1]
    return f"message {twice[0] + 1} was queued twice" if twice else None


def i6_one_effect(model: Model, state: State) -> str | None:
    """I6: a transactional handler's message has one effect, whatever crashes."""
    for delivery, row in enumerate(state.rows):
        if row.effects > 1 and model.message(delivery).transactional:
            return f"{name(delivery)} had its effect {row.effects} times"
    return None


def i9_replays_are_audited(model: Model, state: State) -> str | None:
    """I9: who, when and why of every replay."""
    for delivery, row in enumerate(state.rows):
        if row.audits != row.replays:
            return f"{name(delivery)} was reopened without an audit row"
    return None


def i13_duplicates_are_explained(model: Model, state: State) -> str | None:
    """I13: one effect beyond the first for each fault at the most, at a destination and for a key."""
    faults = _faults(model, state)
    for same in model.same_effect:
        effects = sum(state.rows[delivery].effects for delivery in same)
        if effects > 1 + faults:
            return f"{' and '.join(map(name, same))}: {effects} sends of one content, {faults} faults"
    return None


def cancel_is_heard(model: Model, state: State) -> str | None:
    """DESIGN §2: a delivery that somebody cancelled is not waiting to be claimed again."""
    for delivery, row in enumerate(state.rows):
        if row.asked and row.status in DUE:
            return f"{name(delivery)} was cancelled and is {row.status}"
    return None


def cancel_was_asked(model: Model, state: State) -> str | None:
    """DESIGN §2: CANCELLED means that somebody cancelled it, since it was last replayed."""
    for delivery, row in enumerate(state.rows):
        if row.status == ABORTED and row.reason == CANCELLED and not row.asked:
            return f"{name(delivery)} is aborted as CANCELLED and nobody asked since its replay"
    return None


# --- steps ------------------------------------------------------------------------------------------------------


def i3_fenced_by_owner(model: Model, before: State, event: Event, after: State) -> str | None:
    """I3: a token changes a delivery only while its worker owns it."""
    token = event.token
    if token is None or before.rows is after.rows:
        return None
    old, new = before.rows[token.delivery], after.rows[token.delivery]
    changed = (old.status, old.epoch, old.attempts) != (new.status, new.epoch, new.attempts)
    if changed and old.owner != token.owner:
        return f"{name(token.delivery)} was {old.status} and not this worker's, and its token changed it"
    return None


def i3_lost_only_if_stale(model: Model, before: State, event: Event, after: State) -> str | None:
    """I3: the Done of a worker whose lease never ended counts, unless it had itself settled something else first."""
    token = event.token
    if event.name != "lost" or token is None or token.phase == LATE or token.outcome != DONE:
        return None
    if before.workers[event.worker].me == token.owner != NOBODY and before.leases[token.owner] == LIVE:
        return f"the live owner of {name(token.delivery)} brings {token.outcome} and is told Lost"
    return None


def i4_epoch_rises(model: Model, before: State, event: Event, after: State) -> str | None:
    """I4: epoch rises at every change of owner or state, and never falls."""
    if before.rows is after.rows:
        return None
    for delivery, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old.status != ABSENT and new.epoch < old.epoch:
            return f"the epoch of {name(delivery)} fell from {old.epoch} to {new.epoch}"
        if old.status != ABSENT and (old.status, old.owner) != (new.status, new.owner) and new.epoch == old.epoch:
            return f"{name(delivery)} went from {old.status} to {new.status} at one epoch"
    return None


def i4_attempt_is_fair(model: Model, before: State, event: Event, after: State) -> str | None:
    """I4, I13: what never started costs no attempt; what started is given back only for a lost owner."""
    if before.rows is after.rows:
        return None
    for delivery, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old.status != SENDING or new.status not in {PENDING, FAILED, ABORTED}:
            continue
        if not old.begun and new.status != ABORTED and new.attempts >= old.attempts:
            return f"{name(delivery)} never started and paid an attempt"
        released = event.name in {"released", "exit"} or (event.token and event.token.outcome == RELEASE)
        if old.begun and released and new.attempts < old.attempts:
            return f"{name(delivery)} had started and its attempt was given back"
    return None


def i5_not_sent_once_recorded(model: Model, before: State, event: Event, after: State) -> str | None:
    """I5: nothing is started that the ledger ever recorded as done."""
    if event.name != "start":
        return None
    delivery = event.deliveries[0]
    entry = model.entry[delivery]
    if entry != NOBODY and before.recorded[entry] == model.digest[delivery]:
        return f"{name(delivery)} is sent although its effect had been recorded as succeeded"
    return None


def i5_no_abort_of_a_success(model: Model, before: State, event: Event, after: State) -> str | None:
    """I5: a delivery whose own effect entry succeeded with the same digest does not become `aborted`."""
    if before.rows is after.rows:
        return None
    for delivery, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if new.status == ABORTED and old.status not in {ABORTED, ABSENT} and model.done_before(before, delivery):
            return f"{name(delivery)} becomes aborted ({new.reason}) and its effect entry says succeeded"
    return None


def i7_success_stays_true(model: Model, before: State, event: Event, after: State) -> str | None:
    """I7: with a key, a stale worker's success is recorded all the same."""
    token = event.token
    if event.name != "lost" or token is None or token.outcome != DONE:
        return None
    entry = model.entry[token.delivery]
    if entry != NOBODY and not after.recorded[entry]:
        return f"{name(token.delivery)} was sent, and nobody remembers"
    return None


def i9_terminal_is_final(model: Model, before: State, event: Event, after: State) -> str | None:
    """I9: terminal rows leave only by audited replay, and then to pending."""
    if before.rows is after.rows:
        return None
    for delivery, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old.status in TERMINAL and new.status != old.status:
            audited = old.status == ABORTED and new.status == PENDING and new.audits == old.audits + 1
            if not audited:
                return f"{name(delivery)} went from {old.status} to {new.status} by no audited replay"
    return None


def i11_draining_never_claims(model: Model, before: State, event: Event, after: State) -> str | None:
    """I11: draining never claims."""
    if event.name == "claim asked" and before.workers[event.worker].mode == DRAINING:
        return "a draining worker claims"
    return None


def i12_starts_in_lease(model: Model, before: State, event: Event, after: State) -> str | None:
    """I12: nothing is started after the lease can have ended."""
    if event.name == "start" and event.token and before.leases[event.token.owner] != LIVE:
        return f"{name(event.deliveries[0])} is started by a worker whose lease is over"
    return None


def i13_killer_is_alone(model: Model, before: State, event: Event, after: State) -> str | None:
    """I13: a message that is known to have killed a worker takes nobody with it."""
    if event.name != "poison kills" or event.token is None or event.token.phase != RUNNING:
        return None
    killer = before.rows[event.token.delivery]
    held = before.workers[event.worker].held
    beside = [one.delivery for one in held if one.phase not in {STRAY, LATE} and one != event.token]
    known = model.fits(killer, event.token) and (killer.lost or killer.replays)  # so it was when it was claimed
    if beside and known:
        return f"{name(event.token.delivery)} has killed before, and takes {name(beside[0])} with it"
    return None


STATE_CHECKS: tuple[StateCheck, ...] = (
    i1_acknowledged_is_there,
    i1_has_its_message,
    i1_success_is_real,
    i3_one_live_owner,
    i3_held_is_owned,
    i4_attempts_in_range,
    i4_lost_is_explained,
    i5_success_is_recorded,
    i5_conflict_was_not_sent,
    i5_failed_entry_is_true,
    i5_published_once,
    i6_one_effect,
    i9_replays_are_audited,
    i13_duplicates_are_explained,
    cancel_is_heard,
    cancel_was_asked,
)

STEP_CHECKS: tuple[StepCheck, ...] = (
    i3_fenced_by_owner,
    i3_lost_only_if_stale,
    i4_epoch_rises,
    i4_attempt_is_fair,
    i5_not_sent_once_recorded,
    i5_no_abort_of_a_success,
    i7_success_stays_true,
    i9_terminal_is_final,
    i11_draining_never_claims,
    i12_starts_in_lease,
    i13_killer_is_alone,
)

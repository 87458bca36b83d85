"""Publish (DESIGN §4): one transaction of the caller's: publish entry, message, deliveries."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.model import Model
from tests.model.state import (
    ABORTED,
    ABSENT,
    ACKNOWLEDGED,
    NO_ROUTE,
    PENDING,
    PRUNED,
    REFUSED,
    SUCCEEDED,
    UNANSWERED,
    UNPUBLISHED,
    Event,
    Row,
    State,
    Step,
    put,
)


def publish(model: Model, state: State) -> Iterator[Step]:
    """Publish: the entry (publish scope, key) first; the reply may be lost after the commit."""
    for number, status in enumerate(state.messages):
        if status == UNPUBLISHED:
            event = Event("publish", deliveries=_routed(model, number))
            if _conflicts(model, state, number):
                yield Event("publish.refused"), state._replace(messages=put(state.messages, number, REFUSED))
                continue
            stored = _store(model, state, number)
            yield event, stored._replace(messages=put(state.messages, number, ACKNOWLEDGED))
            if state.budget.unanswered and model.scenario.messages[number].key:
                budget = state.budget._replace(unanswered=state.budget.unanswered - 1)
                yield (
                    event._replace(name="publish.unanswered"),
                    stored._replace(messages=put(state.messages, number, UNANSWERED), budget=budget),
                )


def publish_again(model: Model, state: State) -> Iterator[Step]:
    """Publish: the caller whose reply was lost repeats it; the publish entry answers with the earlier message."""
    for number, status in enumerate(state.messages):
        if status == UNANSWERED:
            if not model.fixes.publish_entry_first:
                state = state._replace(copies=put(state.copies, number, state.copies[number] + 1))
            answered = state._replace(messages=put(state.messages, number, ACKNOWLEDGED))
            yield Event("publish.repeated", deliveries=_routed(model, number)), answered


def _routed(model: Model, number: int) -> tuple[int, ...]:
    """The deliveries that the routes give a message when it is published."""
    return tuple(d for d, message in enumerate(model.message_of) if message == number and not model.late[d])


def _conflicts(model: Model, state: State, number: int) -> bool:
    """The publish entry is there with another digest: IdempotencyConflict, nothing is written."""
    mine = model.scenario.messages[number]
    return bool(mine.key) and any(
        other.scope == mine.scope and other.key == mine.key and other.digest != mine.digest
        for other, status in zip(model.scenario.messages, state.messages, strict=True)
        if status not in {UNPUBLISHED, REFUSED}
    )


def _store(model: Model, state: State, number: int) -> State:
    rows = list(state.rows)
    for delivery in _routed(model, number):
        if model.destination[delivery]:
            rows[delivery] = Row(status=PENDING)
        elif model.fixes.no_route_is_aborted:
            rows[delivery] = Row(status=ABORTED, reason=NO_ROUTE)
    copies = put(state.copies, number, state.copies[number] + 1)
    return state._replace(rows=tuple(rows), copies=copies)


def fan_out_late(model: Model, state: State) -> Iterator[Step]:
    """Publish: a route added later gives an old message one more delivery, under the lock that prune takes too."""
    if not state.budget.fanouts:
        return
    for delivery, row in enumerate(state.rows):
        if row.status == ABSENT and model.late[delivery] and _is_stored(state, model.message_of[delivery]):
            budget = state.budget._replace(fanouts=state.budget.fanouts - 1)
            rows = put(state.rows, delivery, Row(status=PENDING))
            yield Event("fan out", deliveries=(delivery,)), state._replace(rows=rows, budget=budget)


def _is_stored(state: State, number: int) -> bool:
    return state.messages[number] in {ACKNOWLEDGED, UNANSWERED}


def prune_message(model: Model, state: State) -> Iterator[Step]:
    """Retention (DESIGN §5): a message goes only when no delivery of it is left, under a lock."""
    if len(state.messages) != 1 or not state.budget.prunes or not _is_stored(state, 0):
        return
    gone = all(row.status in {ABSENT, SUCCEEDED} for row in state.rows)
    if model.fixes.prune_locks_message:
        if gone:
            yield Event("prune message"), _pruned(state)
        return
    if state.pruning:
        yield Event("prune message"), _pruned(state)
    elif gone:
        yield Event("prune looks"), state._replace(pruning=True)


def _pruned(state: State) -> State:
    budget = state.budget._replace(prunes=state.budget.prunes - 1)
    return state._replace(messages=put(state.messages, 0, PRUNED), pruning=False, budget=budget)


def prune_entry(model: Model, state: State) -> Iterator[Step]:
    """Retention (DESIGN §7): an effect entry outlives every delivery that is not succeeded."""
    if not state.budget.prunes:
        return
    for entry, known in enumerate(state.ledger):
        referring = [row for row, mine in zip(state.rows, model.entry, strict=True) if mine == entry]
        kept = any(row.status != SUCCEEDED for row in referring)
        if known is not None and not (kept and model.fixes.entry_kept_while_referred):
            budget = state.budget._replace(prunes=state.budget.prunes - 1)
            yield Event("prune entry"), state._replace(ledger=put(state.ledger, entry, None), budget=budget)

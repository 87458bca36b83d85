"""The canonical form of a state: what differs only in names is one state.

Which worker is called A, which number an incarnation drew and how high an epoch has climbed cannot be told from
inside: they are only ever compared. So workers are sorted by what they look like without names, incarnations are
numbered in the order in which they are met, and epochs keep only their order among the tokens that are still about.
This makes the space finite (claim and release may alternate for ever) and five times smaller than sorting alone.
"""

from __future__ import annotations

from tests.model.model import Model, Named
from tests.model.state import EXECUTING, NO_LEASE, NOBODY, OUTCOME, SENDING, Held, Row, State, Worker

Names = dict[int, int]
DEAD = -1  # an epoch that no row has


def canonical(model: Model, state: State) -> State:
    """The one state that stands for all that look like this one."""
    named = (state.rows, state.leases, state.workers, state.adrift, state.reopening, state.unflushed)
    known = model.renamed.get(named)
    if known is None:
        known = model.renamed[named] = _rename(model, state)
    rows, leases, workers, adrift, reopening, unflushed = known
    return state._replace(
        rows=rows, leases=leases, workers=workers, adrift=adrift, reopening=reopening, unflushed=unflushed
    )


def _rename(model: Model, state: State) -> Named:
    slack = model.scenario.budget.failovers  # so far back may a row's epoch fall
    unflushed = tuple(one for one in state.unflushed if _is_unflushed(state.rows[one[0]], one[1]))
    workers_now = tuple(_without_dead_tokens(worker, state.rows, slack) for worker in state.workers)
    state = state._replace(workers=workers_now, unflushed=unflushed, adrift=_still_adrift(model, state))
    rows, leases = state.rows, state.leases
    workers = sorted(state.workers, key=lambda worker: _look(worker, rows, leases))
    names, ranks = _meet(state, workers), _ranks(state, slack)
    return (
        tuple(_row(row, names, rank) for row, rank in zip(rows, ranks, strict=True)),
        _leases(state, names),
        tuple(_worker(worker, names, ranks) for worker in workers),
        tuple(sorted((names[me], claim) for me, claim in state.adrift)),
        tuple(sorted((delivery, ranks[delivery][epoch]) for delivery, epoch in state.reopening)),
        tuple((delivery, _row(row, names, ranks[delivery])) for delivery, row in unflushed),
    )


def _is_unflushed(row: Row, before: Row) -> bool:
    """Nothing has been committed to the row since the claim that may be forgotten."""
    return row.status == SENDING and row.epoch == before.epoch + 1


def _without_dead_tokens(worker: Worker, rows: tuple[Row, ...], slack: int) -> Worker:
    """A token behind its row never fits again: which one it was makes no difference any more.

    What is still executed keeps its name, and an outcome as long as its owner may think it valid: I3 asks for them.
    """
    if not worker.held:
        return worker
    held = tuple(
        [
            Held(one.delivery, DEAD, NOBODY, one.phase, one.outcome, one.suspect)
            if one.epoch < rows[one.delivery].epoch - slack
            and one.phase not in EXECUTING
            and (one.phase != OUTCOME or one.owner != worker.me)
            else one
            for one in worker.held
        ]
    )
    return worker._replace(held=held)


def _look(worker: Worker, rows: tuple[Row, ...], leases: tuple[str, ...]) -> tuple[object, ...]:
    """A worker as it looks without names."""
    me = worker.me
    return (
        worker.mode,
        worker.claim,
        "" if me == NOBODY else leases[me],
        tuple([row.owner == me for row in rows]),
        sorted([_token_look(held, me, rows) for held in worker.held]) if worker.held else [],
        [(held.delivery, held.epoch) for held in worker.reply],
    )


def _token_look(held: Held, me: int, rows: tuple[Row, ...]) -> tuple[object, ...]:
    mine, fits = held.owner == me, held.owner == rows[held.delivery].owner
    return held.delivery, held.phase, held.outcome, mine, fits, held.epoch


def _meet(state: State, workers: list[Worker]) -> Names:
    """Every incarnation that something still mentions, numbered in the order of meeting."""
    names: Names = {NOBODY: NOBODY}
    for worker in workers:
        names.setdefault(worker.me, len(names) - 1)
        for held in sorted(worker.held):
            names.setdefault(held.owner, len(names) - 1)
    for row in state.rows:
        names.setdefault(row.owner, len(names) - 1)
    for me, _ in state.adrift:
        names.setdefault(me, len(names) - 1)
    return names


def _leases(state: State, names: Names) -> tuple[str, ...]:
    """A worker row matters as long as a process lives under it, a row is owned by it, or a claim asks for it."""
    matters = {worker.me for worker in state.workers}
    matters.update([row.owner for row in state.rows])
    matters.update([me for me, _ in state.adrift])
    return tuple([state.leases[me] if me in matters else NO_LEASE for me in names if me != NOBODY])


def _still_adrift(model: Model, state: State) -> tuple[tuple[int, str], ...]:
    """A claim that can no longer commit is gone; the others in the order of their looks."""
    if not state.adrift:
        return ()
    leases, needs_row = state.leases, model.fixes.claim_needs_worker_row
    about = [one for one in state.adrift if not needs_row or leases[one[0]] != NO_LEASE]
    owners = [row.owner for row in state.rows]
    return tuple(sorted(about, key=lambda one: (leases[one[0]], one[1], [owner == one[0] for owner in owners])))


def _ranks(state: State, slack: int) -> list[Names]:
    """For each delivery, the place of each epoch among those that a row, a token or a reader still has.

    Distances do not matter, because a new epoch is above all of them; only when the database may forget a commit
    does it matter whether the next epoch meets an old token, so that distances up to that are kept.
    """
    about = [{row.epoch} for row in state.rows]
    for worker in state.workers:
        for held in worker.held:
            about[held.delivery].add(held.epoch)
        for held in worker.reply:
            about[held.delivery].add(held.epoch)
    for delivery, epoch in state.reopening:
        about[delivery].add(epoch)
    for delivery, row in state.unflushed:
        about[delivery].add(row.epoch)
    return [_places(sorted(epochs - {DEAD}), slack) for epochs in about]


def _places(epochs: list[int], slack: int) -> Names:
    places, place = {DEAD: DEAD}, 0
    for index, epoch in enumerate(epochs):
        if index:
            place += min(epoch - epochs[index - 1], 1 + slack)
        places[epoch] = place
    return places


def _row(row: Row, names: Names, rank: Names) -> Row:
    owner, epoch = names[row.owner], rank[row.epoch]
    return row if owner == row.owner and epoch == row.epoch else row._replace(owner=owner, epoch=epoch)


def _worker(worker: Worker, names: Names, ranks: list[Names]) -> Worker:
    held = tuple(sorted([_token(one, names, ranks) for one in worker.held])) if worker.held else ()
    reply = tuple(sorted([_token(one, names, ranks) for one in worker.reply])) if worker.reply else ()
    return Worker(worker.mode, names[worker.me], worker.claim, reply, held)


def _token(held: Held, names: Names, ranks: list[Names]) -> Held:
    delivery, epoch, owner, phase, outcome, suspect, again, seen = held
    return Held(delivery, ranks[delivery][epoch], names[owner], phase, outcome, suspect, again, seen)

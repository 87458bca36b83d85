"""A violation told as a story: one sentence a step, and what it changed."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.invariants import name
from tests.model.model import Model
from tests.model.search import Violation, trace
from tests.model.state import NOBODY, Event, Held, Row, State

SENTENCES = {
    "publish": "somebody publishes; the commit is answered",
    "publish.refused": "somebody publishes another content under the same key and is refused",
    "publish.unanswered": "somebody publishes; it commits, and the reply is lost",
    "publish.repeated": "the publisher repeats the publish that was not answered",
    "fan out": "a route added later fans an old message out to {what}",
    "prune looks": "prune sees that the message has no delivery left",
    "prune message": "prune deletes the message",
    "prune entry": "prune deletes the effect entry",
    "register": "{who} takes a new id and registers its lease",
    "lapse": "the lease of {who} ends while it is paused",
    "lapse under renewal": "the lease of {who} ends while its renewal, begun in time, is not yet committed",
    "lapse of the dead": "the lease of a process that is gone ends",
    "renewal commits": "the renewal commits",
    "renewal fails": "the renewal is rolled back",
    "renew an ended lease": "{who} wakes and renews its ended lease",
    "renew finds nothing": "{who} wakes, renews 0 rows, and drops what it holds",
    "compare": "{who} finds that it owns {what} and does not hold it, and will release it",
    "crash": "{who} crashes",
    "hang": "the event loop of {who} hangs; its heartbeat goes on",
    "the heartbeat gives up": "the heartbeat of {who} sees a dead loop and ends the process",
    "claim asked": "{who} sends a claim",
    "claim commits": "the claim of {who} commits: {what}",
    "claim finds nothing": "the claim of {who} finds nothing due",
    "claim finds no worker row": "the claim of {who} finds no worker row and takes nothing",
    "claim answered": "{who} learns that it has claimed {what}",
    "claim's reply is lost": "the reply to the claim of {who} is lost",
    "claim adrift": "the connection of {who} breaks; its claim still runs in the backend",
    "adrift claim commits": "a claim that nobody waits for commits: {what}",
    "failover": "the database fails over and has forgotten the claim",
    "start": "{who} starts {what}",
    "look: Done before": "{who} reads in the ledger that {what} is done, and need not send it",
    "look: conflict": "{who} reads in the ledger that another content was sent under the key of {what}",
    "look: release": "{who} sees that another delivery has reserved the effect of {what}",
    "sent": "the destination takes {what} from {who}",
    "failed: Retry": "the destination refuses {what} for now",
    "failed: Abort": "the destination refuses {what} for good",
    "poison kills": "{what} kills {who}",
    "time out": "{who} times out {what}, which runs on",
    "obey cancel": "{who} is told that {what} is cancelled, and stops waiting for it",
    "stray sent": "{what}, which {who} could not stop, is taken by the destination after all",
    "stray ends": "{what}, which {who} could not stop, ends without effect",
    "settled": "{who} settles {what} as {outcome}",
    "released": "{who} releases {what}",
    "lost": "{who} brings {outcome} for {what} and is told Lost",
    "settle unanswered, committed": "{who} settles {what} as {outcome}; it commits, and the reply is lost",
    "settle unanswered, not committed": "{who} settles {what} as {outcome}; the commit fails, unanswered",
    "settled twice": "{who} repeats its settle of {what} ({outcome}), and it changes the row a second time",
    "resolved: it was committed": "{who} repeats its settle of {what}: 0 rows, and history has its epoch",
    "resolved: it was not committed": "{who} repeats its settle of {what}, and now it commits",
    "ledger written": "{who} writes the ledger entry of {what}",
    "reclaim": "reclaim buries ended leases and frees what has no owner",
    "reclaim skips": "reclaim buries ended leases and skips a row that a settle has locked",
    "reclaim buries": "reclaim deletes the worker rows that have ended (first statement)",
    "reclaim overdue": "reclaim frees {what}, which was claimed long ago",
    "drain": "{who} begins to drain",
    "last act begins": "the last act of {who} reads what it owns and waits for its worker row",
    "exit": "{who} exits",
    "cancel": "a person cancels {what}",
    "ask to cancel": "a person cancels {what}, which is running: its owner will be told",
    "replay": "a person replays {what}",
    "duplicate published": "a publisher repeats the message of {what}, finds it aborted, and will reopen it",
    "reopen": "the publisher reopens {what}",
    "nothing to reopen": "the publisher finds {what} no longer as it was, and reopens nothing",
}


def tell(model: Model, violation: Violation) -> str:
    """The whole story of a violation."""
    lines = [f"{number:3}. {line}" for number, line in enumerate(_lines(model, violation), 1)]
    return "\n".join((*lines, f"  => {violation.check}: {violation.text}"))


def _lines(model: Model, violation: Violation) -> Iterator[str]:
    for event, before, after in trace(model, violation):
        changes = "; ".join(_changes(before, after))
        yield sentence(event) + (f"   [{changes}]" if changes else "")


def sentence(event: Event) -> str:
    """One event in words."""
    what = " and ".join(map(name, event.deliveries))
    who = "nobody" if event.worker == NOBODY else f"worker {'ABC'[event.worker]}"
    outcome = event.token.outcome if isinstance(event.token, Held) else ""
    return SENTENCES[event.name].format(who=who, what=what, outcome=outcome)


def _changes(before: State, after: State) -> Iterator[str]:
    for delivery, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
        if old != new:
            yield f"{name(delivery)}: {_row(old, new)}"
    for old_entry, new_entry in zip(before.ledger, after.ledger, strict=True):
        if old_entry != new_entry:
            yield "effect entry: " + ("gone" if new_entry is None else f"{new_entry.state} ({new_entry.digest})")


def _row(old: Row, new: Row) -> str:
    shown = ("status", "epoch", "attempts", "lost", "replays", "cancel_requested", "reason", "effects")
    changed = [field for field in shown if getattr(old, field) != getattr(new, field)]
    if not changed:
        return "owned" if new.begun == old.begun else "started"
    return ", ".join(f"{field} {getattr(old, field)}→{getattr(new, field)}" for field in changed)

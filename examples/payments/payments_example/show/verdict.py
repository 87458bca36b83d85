"""What the show must have come to: compared with the tables, not with what anybody said."""

from __future__ import annotations

import msgspec
from sqlalchemy import Engine, text

from payments_example.show.story import Story


class Verdict(msgspec.Struct, frozen=True):
    """The numbers, and what is wrong with them: nothing, if all is well."""

    events: int
    payments: int
    late: int
    mails: int
    problems: tuple[str, ...]


def judged(engine: Engine, story: Story, mails: int) -> Verdict:
    """Every payment as its own events say, every event once, a mail about each change."""
    with engine.connect() as tx:
        payments = {row.intent: row for row in tx.execute(text("select intent, status, participant_id from payments"))}
        seen = {row.stripe_event_id: bool(row.applied) for row in tx.execute(text("select * from payment_events"))}
    problems = [f"{id} was lost" for id in sorted(story.ids - seen.keys())]
    problems += [f"{id} came from nowhere" for id in sorted(seen.keys() - story.ids)]
    for intent, end in story.ends.items():
        found = payments.get(intent)
        if found is None or found.status != end:
            problems.append(f"{intent} is {'nowhere' if found is None else found.status}, and should be {end}")
    changes = sum(seen.values())
    if mails != changes:
        problems.append(f"{mails} mails were written about {changes} changes")
    return Verdict(len(seen), len(payments), len(seen) - changes, mails, tuple(problems))

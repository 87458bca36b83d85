"""Publishing many messages in parts: while PostgreSQL stores one part, the next one is built.

All parts are one transaction. A draft that cannot be built ends it, so nothing is stored then (I1).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final, Protocol, cast

import msgspec
from msgspec.structs import replace

from todoku.core.message import Alike, Draft, Message
from todoku.store.columns import moment
from todoku.store.publish import Publishing, insert_labels, publish, record_gate_calls, store_data_keys
from todoku.store.publish_parameters import alike_parameters, batch_parameters
from todoku.store.sql import Row, Steps

PART: Final = 1_000
"""Messages in one statement. Fewer cost the server more each; of more, the first part is built while it waits."""


class Unbuilt(Protocol):
    """Messages that are to be published, which are built in parts while the transaction is open.

    Any error of building ends the transaction: nothing is stored.
    """

    def __len__(self) -> int: ...

    def build(self, start: int, stop: int) -> list[Draft]:
        """Returns the drafts of these messages."""

    def alike(self, start: int, stop: int) -> Alike | None:
        """Returns these messages if they differ in nothing but ids and payloads, and need the insert alone."""


class StoredParts(msgspec.Struct, frozen=True):
    """What was published: parts of messages that are alike, each with its time; then the others, with their drafts."""

    alike: list[tuple[Alike, datetime]]
    drafts: list[Draft]
    messages: list[Message]

    def all_messages(self) -> list[Message]:
        """Returns the messages in their order."""
        found = [
            Message(id=id, topic=some.draft.topic, key=some.draft.key, duplicate=False, created_at=created)
            for some, created in self.alike
            for id in some.ids
        ]
        return found + self.messages


def publish_parts(to: Publishing, many: Unbuilt) -> Steps[StoredParts]:
    """Stores messages on PostgreSQL. Otherwise as `publish`."""
    sent: list[tuple[Alike, list[Row]]] = []
    start = 0
    while start < len(many) and (some := many.alike(start, stop := min(start + PART, len(many)))) is not None:
        insert = to.one("publish", **alike_parameters(some), notify=to.notify)
        sent.append((some, (yield replace(insert, ahead=stop < len(many)))))
        start = stop
    drafts, messages = (yield from _publish_others(to, many, start)) if start < len(many) else ([], [])
    return StoredParts([(some, moment(cast("float", row[0]))) for some, (row,) in sent], drafts, messages)


def _publish_others(to: Publishing, many: Unbuilt, first: int) -> Steps[tuple[list[Draft], list[Message]]]:
    """Stores the messages from `first` on, which are not alike.

    Lanes are locked and keys of the ledger reserved in one order for the whole transaction. So from the first part on
    that has any, the rest is published at once; the parts before it hold no lock that another publisher waits for.
    """
    built: list[Draft] = []
    stored: list[tuple[list[Draft], list[Row]]] = []
    last: list[Message] = []
    for start in range(first, len(many), PART):
        drafts = many.build(start, min(start + PART, len(many)))
        built += drafts
        if any(map(_is_locked, drafts)):
            rest = many.build(start + PART, len(many))
            built += rest
            last = yield from publish(to, drafts + rest)
            break
        rows = yield from _insert(to, drafts, ahead=start + PART < len(many))
        stored.append((drafts, rows))
    parts = [(drafts, moment(cast("float", row[0]))) for drafts, (row,) in stored]
    return built, [_message(draft, created) for drafts, created in parts for draft in drafts] + last


def _is_locked(draft: Draft) -> bool:
    """Whether publishing takes a lock, or reserves a key."""
    return draft.idempotency is not None or any(leg.lane is not None for leg in draft.legs)


def _insert(to: Publishing, drafts: Sequence[Draft], *, ahead: bool) -> Steps[list[Row]]:
    """Inserts one part. Returns the list for the row of its insert, which has come unless the part is sent ahead."""
    insert = to.one("publish", **batch_parameters(drafts), notify=to.notify)
    labelled = [draft.id for draft in drafts if draft.labels is not None]
    before, after = [*store_data_keys(to, drafts), *record_gate_calls(to, drafts)], [*insert_labels(to, labelled)]
    statements, inserted = [*before, insert, *after], []
    for statement in statements:
        rows = yield replace(statement, ahead=ahead or statement is not statements[-1])
        if statement is insert:
            inserted = rows
    return inserted


def _message(draft: Draft, created: datetime) -> Message:
    return Message(id=draft.id, topic=draft.topic, key=draft.key, duplicate=False, created_at=created)

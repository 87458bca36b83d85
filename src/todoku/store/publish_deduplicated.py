"""Publishing messages that are deduplicated for a time, in one statement and one round trip to PostgreSQL.

Reserving a key, reading who has it and inserting the message are three statements elsewhere (`publish`), in a
transaction of five round trips. Here a message whose key is free is stored with it, and nothing of any other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import msgspec

from todoku.core.message import Draft, Idempotency, Message
from todoku.store.columns import moment
from todoku.store.publish import Publishing
from todoku.store.publish_parameters import array_literal, batch_parameters, json_text
from todoku.store.sql import Statement, Steps


def is_deduplicated(to: Publishing, draft: Draft) -> bool:
    """Whether `publish_deduplicated` may store this draft: it has a key for a time, and nothing to lock or label."""
    key = draft.idempotency
    if key is None or key.lasts is None or key.until_end or to.dialect != "postgresql":
        return False
    if draft.payload is None or draft.headers is None or draft.labels is not None or draft.sealed_with is not None:
        return False
    return all(leg.lane is None and leg.gate is None for leg in draft.legs)


def publish_deduplicated(to: Publishing, drafts: Sequence[Draft]) -> Steps[list[Message | None]]:
    """Stores those drafts whose keys are free, each with its deliveries and the entry of its key.

    Returns the messages in the order of the drafts. None: the key is taken, and nothing of this draft was stored. It is
    all that its transaction does.
    """
    first = {_ledger_key(draft): draft for draft in reversed(drafts)}  # a statement must not reserve a key twice
    ((created, taken, _),) = cast("list[tuple[float, list[str], int]]", (yield _statement(to, list(first.values()))))
    at, refused = moment(created), frozenset(taken)
    return [
        None
        if first[_ledger_key(draft)] is not draft or (refused and str(draft.id) in refused)
        else Message(id=draft.id, topic=draft.topic, key=draft.key, duplicate=False, created_at=at)
        for draft in drafts
    ]


def _ledger_key(draft: Draft) -> tuple[str, str]:
    key = cast("Idempotency", draft.idempotency)
    return key.scope, key.key_hash


def _statement(to: Publishing, drafts: Sequence[Draft]) -> Statement:
    kinds, numbers = _kinds(drafts)
    common = batch_parameters(kinds)
    keys = [cast("Idempotency", draft.idempotency) for draft in drafts]
    lives = [cast("Idempotency", draft.idempotency) for draft in kinds]
    reserved: list[dict[str, Any]] = [
        {"kind": number, "scope": key.scope, "lasts": key.lasts} for number, key in enumerate(lives)
    ]
    statement = to.one(
        "publish_deduplicated",
        ids="{" + ",".join([draft.id.hex for draft in drafts]) + "}",
        kinds=array_literal(numbers),
        payloads="[" + ",".join([cast("str", draft.payload) for draft in drafts]) + "]",
        headers="[" + ",".join([cast("str", draft.headers) for draft in drafts]) + "]",
        key_hashes=json_text([key.key_hash for key in keys]),
        digests=json_text([key.digest for key in keys]),
        common=common["common"],
        legs=common["legs"],
        reserved=json_text(reserved),
        notify=to.notify,
    )
    return msgspec.structs.replace(statement, alone=True)


def _kinds(drafts: Sequence[Draft]) -> tuple[list[Draft], list[int]]:
    """Returns a draft of each kind, without headers, and the number of the kind of each draft.

    Unlike in `publish`, headers are no part of a kind: those of events have ids of their own.
    """
    known: dict[object, int] = {}
    kinds: list[Draft] = []
    numbers: list[int] = []
    for draft in drafts:
        key = cast("Idempotency", draft.idempotency)
        common = (
            draft.legs, draft.topic, draft.type, draft.key, draft.content_type, draft.delay, draft.at, draft.expires,
            key.scope, key.lasts,
        )  # fmt: skip
        number = known.setdefault(common, len(kinds))
        if number == len(kinds):
            # `batch_parameters` would find equal kinds, too; the number as headers keeps them apart.
            kinds.append(msgspec.structs.replace(draft, headers=str(number), payload="null"))
        numbers.append(number)
    return kinds, numbers

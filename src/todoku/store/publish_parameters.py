"""The parameters of the statements that insert messages and deliveries into PostgreSQL: texts, for every driver.

What messages have in common, of a batch usually all but the payload, is sent and parsed once (decision 43).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.message import Alike, Draft, Idempotency, Leg

_NO_ID: Final = UUID(int=0)


def batch_parameters(drafts: Sequence[Draft]) -> dict[str, str]:
    """Returns the parameters of `publish`: an array of each column, and documents of what messages have in common."""
    kinds, numbers = _kinds(drafts)
    keys = [stored_key(draft) for draft in drafts]
    legs = [_leg_document(number, draft, leg) for number, draft in enumerate(kinds) for leg in draft.legs]
    return {
        "ids": "{" + ",".join([draft.id.hex for draft in drafts]) + "}",
        "kinds": array_literal(numbers),
        "payloads": "[" + ",".join([draft.payload or "null" for draft in drafts]) + "]",
        "payloads_bytes": _sparse([_base64(draft) for draft in drafts]),
        "key_hashes": _sparse([None if key is None else key.key_hash for key in keys]),
        "digests": _sparse([None if key is None else key.digest for key in keys]),
        "common": json_text([_common_document(number, draft) for number, draft in enumerate(kinds)]),
        "legs": json_text(legs),
    }


def alike_parameters(alike: Alike) -> dict[str, str]:
    """Returns the parameters of `publish` for messages of one kind: without a look at each of them."""
    number, draft = len(alike.ids), alike.draft
    return {
        "ids": "{" + b"".join([id.int.to_bytes(16) for id in alike.ids]).hex(",", 16) + "}",
        "kinds": "{" + ",".join("0" * number) + "}",
        "payloads": "[" + ",".join(alike.payloads) + "]",
        "payloads_bytes": "[]",
        "key_hashes": "[]",
        "digests": "[]",
        "common": json_text([_common_document(0, draft)]),
        "legs": json_text([_leg_document(0, draft, leg) for leg in draft.legs]),
    }


def single_document(draft: Draft) -> str:
    """Returns the parameter of `publish_one`: all columns of a message and of its only delivery."""
    rare = draft.key, draft.headers, draft.labels, draft.at, draft.idempotency
    if rare.count(None) == len(rare):
        stem = _usual_stem(draft.legs[0], draft.topic, draft.type, draft.content_type, draft.delay, draft.expires)
    else:
        stem = _stem(draft)
    own = f'{stem},"id":"{draft.id.hex}"'
    if draft.payload is not None:
        own += f',"payload":{draft.payload}'
    if draft.payload_bytes is not None:
        own += f',"payload_bytes":"{_base64(draft)}"'
    if (key := stored_key(draft)) is not None:
        own += "," + json_text({"key_hash": key.key_hash, "digest": key.digest})[1:-1]
    return own + "}"


@lru_cache(maxsize=64)
def _usual_stem(leg: Leg, topic: str, kind: str, content_type: str, delay: float, expires: float | None) -> str:
    """`_stem` of messages that have only their id and payload for themselves: it is written once."""
    common = Draft(id=_NO_ID, legs=(leg,), topic=topic, type=kind, content_type=content_type)
    return _stem(msgspec.structs.replace(common, delay=delay, expires=expires))


def _stem(draft: Draft) -> str:
    """The document of a message and its only delivery as far as others may have the same, without its last brace."""
    return json_text(_common_document(0, draft) | _leg_document(0, draft, draft.legs[0]))[:-1]


def _kinds(drafts: Sequence[Draft]) -> tuple[list[Draft], list[int]]:
    """Returns a draft of each kind, and the number of the kind of each draft: what is sent once for a kind is equal."""
    known: dict[object, int] = {}
    kinds: list[Draft] = []
    numbers: list[int] = []
    for draft in drafts:
        common = (
            draft.legs, draft.topic, draft.type, draft.key, draft.content_type, draft.headers, draft.labels,
            draft.delay, draft.at, draft.expires, draft.idempotency and _scope(draft),
        )  # fmt: skip
        number = known.setdefault(common, len(kinds))
        if number == len(kinds):
            kinds.append(draft)
        numbers.append(number)
    return kinds, numbers


def _scope(draft: Draft) -> str | None:
    key = stored_key(draft)
    return None if key is None else key.scope


def _base64(draft: Draft) -> str | None:
    return None if draft.payload_bytes is None else base64.b64encode(draft.payload_bytes).decode()


def _sparse(values: Sequence[str | None]) -> str:
    """A JSON array of texts, one for each message, or an empty one if no message has any."""
    return json_text(values) if any(value is not None for value in values) else "[]"


def _common_document(kind: int, draft: Draft) -> dict[str, object]:
    document: dict[str, object] = {
        "kind": kind,
        "topic": draft.topic,
        "type": draft.type,
        "content_type": draft.content_type,
    }
    if draft.key is not None:
        document["key"] = draft.key
    if draft.headers is not None:
        document["headers"] = msgspec.Raw(draft.headers.encode())
    if draft.labels is not None:
        document["labels"] = msgspec.Raw(draft.labels.encode())
    if (scope := _scope(draft)) is not None:
        document["scope"] = scope
    return document


def stored_key(draft: Draft) -> Idempotency | None:
    """The key to store with the message. None for a key with a limited lifetime: it must not skip a later effect."""
    return draft.idempotency if draft.idempotency is not None and draft.idempotency.lasts is None else None


def _leg_document(kind: int, draft: Draft, leg: Leg) -> dict[str, object]:
    document: dict[str, object] = {
        "kind": kind,
        "destination": leg.destination,
        "queue": leg.queue,
        "priority": leg.priority,
        "max_attempts": leg.max_attempts,
        "delay": draft.delay,
    }
    optional: dict[str, object] = {"lane": leg.lane, "gate": leg.gate, "timeout": leg.timeout}
    optional |= {"expires": draft.expires, "dead": leg.dead}
    optional["at"] = None if draft.at is None else draft.at.timestamp()
    return document | {name: value for name, value in optional.items() if value is not None}


def array_literal(numbers: Sequence[int]) -> str:
    """An array literal as text, which every driver accepts; the query casts it."""
    return "{" + ",".join(map(str, numbers)) + "}"


def json_text(value: object) -> str:
    """A document as text, which every driver accepts; the query casts it."""
    return msgspec.json.encode(value).decode()

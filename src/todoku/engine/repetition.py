"""Repetition: a delivery as a new message, with the same content or an edited one, to the same destination alone.

The new message has no idempotency key, or the ledger would call it done, and is no member of the batch of the first. A
label names the first message, `todoku.again_of:<id>` or `todoku.edited_of:<id>`, so that one is found by the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from todoku.core.ending import BATCH
from todoku.core.errors import CannotOpen, InvalidAct, InvalidMessage
from todoku.core.http_request import HTTP, SECRETS, HttpRequest, request_of
from todoku.core.identity import gate_id, lane_id
from todoku.core.message import Draft, Leg
from todoku.core.sealed import kind_of
from todoku.core.topic_pattern import Route
from todoku.engine.http import flow_control, request_queues
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.outbox import Outbox, new_id
from todoku.store.deliveries import Delivery
from todoku.store.messages import Repeatable, StoredMessage

AGAIN_OF: Final = "todoku.again_of:"
"""The label of a message that runs another one again, before the id of that."""

EDITED_OF: Final = "todoku.edited_of:"
"""The label of a message that runs another one again with an edited content, before the id of that."""

_FIELD_LABEL: Final = "payload."
"""Labels of searched fields begin with this (`core.search.field_label`)."""

RouteTo = Callable[[str], Route | None]
"""How the App sends messages to a destination; None: the App does not declare it."""


def again_drafts(
    outbox: Outbox, rows: Iterable[Repeatable], route_to: RouteTo
) -> tuple[list[tuple[int, Draft]], Counter[str]]:
    """Returns drafts that run succeeded deliveries again, each with the delivery's number; and why others cannot run.

    Blocks.
    """
    drafts: list[tuple[int, Draft]] = []
    refused: Counter[str] = Counter()
    for row in rows:
        try:
            drafts.append((row.delivery.id, again_draft(outbox, row.delivery, row.message, route_to)))
        except (CannotOpen, InvalidAct, InvalidMessage) as error:
            refused[str(error)] += 1
    return drafts, refused


class Replacement(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator has edited: the body, the headers of an HTTP request, or both. None: as it was."""

    body: bytes | None = None
    headers: dict[str, str] | None = None


def again_draft(
    outbox: Outbox, delivery: Delivery, message: StoredMessage, route_to: RouteTo, instead: Replacement | None = None
) -> Draft:
    """Returns the draft that runs a delivery again, encrypted if its message was.

    InvalidAct: the message has a key, and only the App that declares the destination knows whether its keys are ordered
    or limited. CannotOpen: it is encrypted, and its key is gone or not here. InvalidMessage: it breaks today's schema.
    """
    request = request_of(message.headers)
    sealed = kind_of(message.content_type)
    body, labels = _body(outbox, message, instead), _labels(message, instead)
    if request is not None and request.source is None:
        made = _request_draft(outbox, message, body, None if instead is None else instead.headers)
        made = msgspec.structs.replace(made, labels=labels)
        return outbox.sealer.seal_request(made, body=sealed is not None)
    content_type = message.content_type if sealed is None else sealed.inner
    is_text = content_type == "application/json" if sealed is not None else message.payload is not None
    made = Draft(
        id=new_id(),
        topic=message.topic,
        type=message.type,
        key=message.key,
        payload=body.decode() if is_text else None,
        payload_bytes=None if is_text else body,
        content_type=content_type,
        headers=_without(message.headers, BATCH),
        labels=labels,
        legs=(_leg(outbox, delivery, message, request, route_to),),
    )
    if request is not None:  # a callback: its body was made by todoku, and its secret headers belong to its source
        return made
    if sealed is None:
        return outbox.finished(made)
    return outbox.sealer.seal(outbox.searched.labelled(made, keyed=True) if outbox.searched.declared else made)


def _body(outbox: Outbox, message: StoredMessage, instead: Replacement | None) -> bytes:
    if instead is not None and instead.body is not None:
        return instead.body
    return stored_body(outbox, message)


def stored_body(outbox: Outbox, message: StoredMessage) -> bytes:
    """Returns the body of a stored message, decrypted. CannotOpen: its key is gone, or not here."""
    if message.payload is not None:
        return message.payload.encode()
    return outbox.opener.body(str(message.id), message.topic, message.content_type, message.payload_bytes or b"")


def _request_draft(outbox: Outbox, message: StoredMessage, body: bytes, headers: dict[str, str] | None) -> Draft:
    """The same request, with its secret headers in the clear: they are bound to the message that has them."""
    request, store = outbox.opener.request(message), outbox.store
    if headers is not None:
        request = msgspec.structs.replace(request, headers=headers)
    if request.queue is None and request.flow is not None:
        flow_control.ensure(store, request.flow)
    fifo = request.queue is not None and request_queues.ensure(store, request.queue) == 1
    trace = msgspec.json.decode(_without(message.headers, BATCH, HTTP, SECRETS) or "{}", type=dict[str, str])
    most = max(outbox.settings.max_payload_bytes, len(body))  # it was accepted before
    return request_draft(new_id(), request, body, Posting(trace=trace, fifo=fifo), max_payload_bytes=most)


def _leg(
    outbox: Outbox, delivery: Delivery, message: StoredMessage, request: HttpRequest | None, route_to: RouteTo
) -> Leg:
    name, key = delivery.destination, message.key
    if request is not None:
        return Leg(
            destination=name, queue=delivery.queue, max_attempts=request.retries + 1, timeout=request.timeout
        )  # fmt: skip
    if (route := route_to(name)) is None:
        if key is not None:
            raise InvalidAct(
                f"has a key, and {name} is not declared here: whether keys are ordered or limited is unknown",
                hint="name the App that declares it: --app module:attr",
            )
        route = Route(
            pattern="**", destination=name, queue=delivery.queue, max_attempts=outbox.settings.max_attempts
        )  # fmt: skip
    if route.key is not None:
        raise InvalidAct(
            f"is an event of the projection {name}: as a new event it would undo later ones of its key",
            hint="todoku projection rebuild, or publish the present state as a new event",
        )
    return Leg(
        destination=name,
        queue=route.queue,
        lane=lane_id(name, key) if route.ordered and key is not None else None,
        gate=gate_id(name, key) if route.per_key and key is not None else None,
        max_attempts=route.max_attempts,
        timeout=route.timeout,
    )


def _labels(message: StoredMessage, instead: Replacement | None) -> str:
    """Its labels, and one that names it. Those of searched fields are made anew for another payload."""
    before: list[str] = [] if message.labels is None else msgspec.json.decode(message.labels, type=list[str])
    dropped = (AGAIN_OF, EDITED_OF, *(() if instead is None else (_FIELD_LABEL,)))
    kept = [label for label in before if not label.startswith(dropped)]
    return msgspec.json.encode([*kept, f"{AGAIN_OF if instead is None else EDITED_OF}{message.id}"]).decode()


def _without(headers: str | None, *names: str) -> str | None:
    """The headers of a message without some; None: none are left."""
    if headers is None or not any(name in headers for name in names):
        return headers
    kept = {
        name: value for name, value in msgspec.json.decode(headers, type=dict[str, str]).items() if name not in names
    }
    return msgspec.json.encode(kept).decode() if kept else None

"""What follows the end of a request: a callback is published, and an endpoint that is gone is sent nothing any more.

In the transaction that ends it, whoever does: its worker, a reclaim, its expiry, a person (I1, I2).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence

import msgspec

from todoku.core.callback import Ended, callback_draft, callback_of
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import TOPIC, TRACE, HttpRequest, request_of
from todoku.core.identity import uuid7
from todoku.core.message import Draft
from todoku.core.sealed import kind_of
from todoku.core.status import Status
from todoku.store.database import Tx
from todoku.store.ended_delivery import Over
from todoku.store.reading import response

GONE = "HTTP_GONE"
"""The receiver says that there is nothing at this URL any more."""


def concerns(topic: str, headers: str | None, reason: str | None) -> bool:
    """Whether something may follow the end of this message. Cheap: it is asked of everything that is settled."""
    return topic == TOPIC and headers is not None and (reason == GONE or "callback" in headers)


def follow(tx: Tx, ended: Sequence[Over]) -> list[Draft]:
    """Disable endpoints that are gone. Returns the callbacks, to be published in this transaction."""
    requests = list(_requests(each for each in ended if concerns(each.topic, each.headers, each.reason)))
    gone = {(request.url, request.group) for each, request in requests if each.reason == GONE}
    for url, group in sorted(gone, key=repr):  # in one order, whoever else does the same (H11)
        if tx.rows("set_endpoint", url=url, group=group, state="disabled", reason=GONE):
            why = "the receiver says that it is gone (410)"
            tx.rows("audit", by="todoku", why=why, action="disable", targets=[f"endpoint:{url}"])
    wanted = [
        (each, request)
        for each, request in requests
        if callback_of(request, succeeded=each.status is Status.SUCCEEDED) is not None
    ]
    return list(_callbacks(tx, wanted)) if wanted else []


def _requests(ended: Iterator[Over]) -> Iterator[tuple[Over, HttpRequest]]:
    for each in ended:
        try:
            request = request_of(each.headers)
        except InvalidMessage:  # somebody else wrote this header: an end does not fail by it
            continue
        if request is not None:
            yield each, request


def _callbacks(tx: Tx, wanted: Sequence[tuple[Over, HttpRequest]]) -> Iterator[Draft]:
    """One message for each. Its body and the last answer are looked up only now."""
    rows = [{"message": each.message_id, "delivery": each.delivery_id} for each, _ in wanted]
    found = {row[0]: row[1:] for row in tx.rows("callback_sources", rows=rows)}
    for each, request in wanted:
        payload, raw, content_type, created_at, answered = found[each.delivery_id]
        succeeded = each.status is Status.SUCCEEDED
        to = callback_of(request, succeeded=succeeded)
        if to is None:
            continue
        ended = Ended(
            message_id=each.message_id, delivery_id=each.delivery_id, replay_count=each.replay_count, request=request,
            succeeded=succeeded, attempts=each.attempts, created_at=created_at,
            body=None if kind_of(content_type) is not None else (raw if payload is None else payload.encode()) or b"",
            response=each.response or (None if succeeded else response(answered)),
        )  # fmt: skip
        yield callback_draft(uuid7(time.time_ns() // 1_000_000, os.urandom(10)), ended, to, trace_of(each.headers))


def trace_of(headers: str | None) -> dict[str, str]:
    """Of a message's headers those that say which trace it belongs to: what follows belongs to the same."""
    found: dict[str, str] = {} if headers is None else msgspec.json.decode(headers)
    return {name: value for name, value in found.items() if name.lower() in TRACE}

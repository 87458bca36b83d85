"""The trace of a run: all of its attempts, and its undo, are in one, however many processes run them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import msgspec

from todoku.core.flow import RUN, UNDO_TOPIC
from todoku.core.message import Claimed
from todoku.core.msgspec_warmup import warm_up


class _Undone(msgspec.Struct):
    """The part of the payload of an undo that says which run it undoes."""

    run: str


warm_up(_Undone)


def run_of(claim: Claimed, headers: Mapping[str, str] | None) -> str | None:
    """Returns the id of the run whose trace an attempt is in; None: it is no attempt of a run, nor of its undo."""
    if headers is not None and RUN in headers:
        return claim.message_id
    if claim.topic != UNDO_TOPIC:
        return None
    try:
        return msgspec.json.decode(claim.payload or "", type=_Undone).run
    except msgspec.MsgspecError:  # not written by todoku
        return claim.message_id


def trace_ids(run: str) -> tuple[int, int]:
    """Returns the ids of a run's trace and of its first span. A digest, because samplers go by the bits of a trace id,
    and those of a message id are not evenly spread."""
    digest = hashlib.blake2b(run.encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16]), int.from_bytes(digest[16:])

"""What this process can execute: destinations by name, and how each of them is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, Literal

import msgspec

from todoku.core.backoff import Backoff
from todoku.core.destination import Destination, Outgoing
from todoku.core.errors import InvalidSetting
from todoku.core.message import Claimed
from todoku.engine.context import Context

__all__ = ["SEND_BATCH", "Destination", "Outgoing", "Registry", "Run", "Target", "outgoing"]

Run = Literal["loop", "thread", "process"]

SEND_BATCH: Final = 32
"""How many messages a batching destination is handed at once."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One destination that this process can execute: a handler (`call`) or a `sender`, never both.

    `call` is given the attempt's context and does everything else: it decodes the payload (what does not decode
    raises Abort("BAD_PAYLOAD", …)) and runs the handler. For `run="loop"` it returns an awaitable.
    """

    name: str
    queue: str
    backoff: Backoff
    run: Run = "loop"
    call: Callable[[Context], Any] | None = None
    sender: Destination | None = None
    batch: int = 1
    timeout: float | None = None
    """Seconds one attempt may take; None: `max_processing_sec`."""
    transactional: bool = False
    keep_result: bool = False
    reference: str | None = None
    """`module:qualname` of the handler, by which another process finds it (`run="process"`)."""


class Registry:
    """Targets by name."""

    def __init__(self) -> None:
        self._targets: dict[str, Target] = {}

    def add(self, target: Target) -> Target:
        """Register a target; a name can be taken once."""
        if target.name in self._targets:
            raise InvalidSetting(
                f"there are two destinations named {target.name!r}", hint="give one of them another name="
            )
        self._targets[target.name] = target
        return target

    def __getitem__(self, name: str) -> Target:
        return self._targets[name]

    def get(self, name: str) -> Target | None:
        """The target of that name, if there is one here."""
        return self._targets.get(name)

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())

    def __len__(self) -> int:
        return len(self._targets)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order they were registered."""
        return tuple(self._targets)


def outgoing(claim: Claimed) -> Outgoing:
    """A claimed delivery as its destination sees it."""
    headers = msgspec.json.decode(claim.headers, type=dict[str, str]) if claim.headers else {}
    body = claim.payload_bytes if claim.payload is None else claim.payload.encode()
    return Outgoing(
        message_id=claim.message_id,
        idempotency_key=f"{claim.message_id}:{claim.destination}",
        topic=claim.topic,
        key=claim.key,
        payload=body or b"",
        content_type=claim.content_type,
        headers=headers,
        attempt=claim.attempt,
        created_at=claim.created_at,
    )

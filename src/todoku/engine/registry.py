"""What this process can execute: destinations by name, and how each of them is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import msgspec

from todoku.core.backoff import Backoff
from todoku.core.destination import Destination, Outgoing
from todoku.core.ending import Hook
from todoku.core.errors import InvalidSetting
from todoku.core.failure import Retrying
from todoku.core.http_request import served_as
from todoku.core.limit import Limit
from todoku.core.message import USUAL_ATTEMPTS, Claimed
from todoku.core.sealed import inner_type
from todoku.engine.context import Context
from todoku.engine.encryption.secret_headers import with_secrets
from todoku.engine.jobs.schema import Schemas

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
    usual_attempts: int | None = None
    """How often to try a delivery whose publisher named no number: the worker's setting. None: this destination's
    declaration names one, or each of its messages does, so what is recorded counts."""
    transactional: bool = False
    keep_result: bool = False
    retrying: Retrying | None = None
    """Which exceptions of the handler are retried; None: as the classifier says."""
    per_key: Limit | None = None
    """How much of one key may run, of all workers together."""
    at_once: int | None = None
    """It sends over HTTP, from slots of its own: of one destination so many run at once here; None: it does not."""
    reference: str | None = None
    """`module:qualname` of the handler, by which another process finds it (`run="process"`)."""


class Registry:
    """Targets by name, and the schemas of what they are sent."""

    def __init__(self, schemas: Schemas | None = None) -> None:
        self.schemas = Schemas() if schemas is None else schemas
        self._targets: dict[str, Target] = {}
        self.hooks: list[Hook] = []
        """Those of the targets that are told how deliveries end, and of which."""
        self._around: list[Callable[[Target], Target]] = []

    def add(self, target: Target) -> Target:
        """Register a target; a name can be taken once."""
        self.free((target.name,))
        for around in self._around:
            target = around(target)
        self._targets[target.name] = target
        return target

    def wrap(self, around: Callable[[Target], Target]) -> None:
        """Change every target, those that are here and those to come: what a framework puts around each handler.

        The same one again changes nothing.
        """
        if around in self._around:
            return
        self._around.append(around)
        self._targets = {name: around(target) for name, target in self._targets.items()}

    def free(self, names: Sequence[str]) -> Sequence[str]:
        """These names, none of which is taken."""
        for place, name in enumerate(names):
            if name in self._targets or name in names[:place]:
                raise InvalidSetting(f"two destinations are named {name!r}", hint="give one of them another name=")
        return names

    def __getitem__(self, name: str) -> Target:
        return self._targets.get(name) or self._targets[served_as(name)]

    def get(self, name: str) -> Target | None:
        """The target of that name, if there is one here; of a host, the one that stands for every host."""
        return self._targets.get(name) or self._targets.get(served_as(name))

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())

    def __len__(self) -> int:
        return len(self._targets)

    def usual_attempts(self) -> dict[str, int]:
        """Destinations whose deliveries are tried another number of times than the default, where that is recorded."""
        usual = {target.name: target.usual_attempts for target in self}
        return {name: number for name, number in usual.items() if number is not None and number != USUAL_ATTEMPTS}

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in the order they were registered."""
        return tuple(self._targets)


def outgoing(claim: Claimed) -> Outgoing:
    """A claimed delivery as its destination sees it."""
    headers = msgspec.json.decode(claim.headers, type=dict[str, str]) if claim.headers else {}
    if claim.secrets is not None:
        headers = with_secrets(headers, claim.secrets)
    body = claim.payload_bytes if claim.payload is None else claim.payload.encode()
    return Outgoing(
        message_id=claim.message_id,
        idempotency_key=f"{claim.message_id}:{claim.destination}",
        topic=claim.topic,
        key=claim.key,
        payload=body or b"",
        content_type=inner_type(claim.content_type),
        headers=headers,
        attempt=claim.attempt,
        created_at=claim.created_at,
    )

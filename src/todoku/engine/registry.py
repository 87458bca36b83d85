"""The destinations that this process can execute, by name, and how each is run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.backoff import Backoff
from todoku.core.destination import Destination, Outgoing
from todoku.core.ending import Hook
from todoku.core.errors import InvalidSetting
from todoku.core.failure import Retrying
from todoku.core.http_request import QUEUE, SCHEMES, served_as
from todoku.core.limit import Limit
from todoku.core.message import USUAL_ATTEMPTS, Claimed
from todoku.core.sealed import inner_type
from todoku.core.settings import Settings
from todoku.core.topic_pattern import OnDead
from todoku.engine.context import Context
from todoku.engine.encryption.secret_headers import with_secrets
from todoku.engine.jobs.decoders import Schemas

__all__ = ["SEND_BATCH", "Companion", "Destination", "Outgoing", "Registry", "Run", "Target", "outgoing"]

Run = Literal["loop", "thread", "process"]

Companion = Callable[[Callable[[], UUID], threading.Event], None]
"""Runs until the event is set. The function returns the worker's present id, which changes when its lease is lost. An
exception ends the worker."""

SEND_BATCH: Final = 32
"""Messages that a batching destination gets in one call, at most."""


_ANOTHER_NAME: Final = 'give one of them another name: @box.job("other"), or name="other" of a consumer or a route'


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One destination that this process can execute: a handler (`call`) or a `sender`, never both.

    `call` takes the attempt's context, decodes the payload (raising Abort("BAD_PAYLOAD", …) if that fails) and runs the
    handler. For `run="loop"` it returns an awaitable.
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
    """`max_attempts` of the worker's settings, for deliveries whose publisher gave none. None: the destination or each
    of its messages declares a number, which is stored with the delivery."""
    transactional: bool = False
    keep_result: bool = False
    retrying: Retrying | None = None
    """Which exceptions of the handler are retried; None: the classifier decides."""
    per_key: Limit | None = None
    """The limit of one key, over all workers."""
    at_once: int | None = None
    """For targets that send over HTTP, which have their own pool: the concurrent requests of this worker to one host.
    None: not an HTTP target."""
    context: Callable[[Claimed, float, Any], Context] | None = None
    """Creates the context of an attempt, with the worker's executor, if it is more than a Context: that of a run."""
    reference: str | None = None
    """`module:qualname` of the handler. A child process imports it by this name (`run="process"`)."""


class Registry:
    """Targets by name, and the schemas of their messages."""

    def __init__(self, schemas: Schemas | None = None) -> None:
        self.schemas = Schemas() if schemas is None else schemas
        self._targets: dict[str, Target] = {}
        self.hooks: list[Hook] = []
        """The targets that are called when deliveries end, and for which deliveries."""
        self.on_dead: dict[str, OnDead] = {}
        """For destinations served here in order: what their dead letters do to later messages of the same key."""
        self.duties: list[Callable[[], object]] = []
        """What the workers do beside their own maintenance, at the interval of a reclaim. It may run in several workers
        at once."""
        self.companions: list[Companion] = []
        """What runs beside each worker that does not end when it is idle, in a thread each, while it takes work."""
        self.tidy: list[Callable[[], object]] = []
        """What a framework does in a thread before and after each plain function of a workflow, as Django closes stale
        connections."""
        self._around: list[Callable[[Target], Target]] = []

    def add(self, target: Target) -> Target:
        """Registers a target. InvalidSetting if its name is taken."""
        self.free((target.name,))
        for around in self._around:
            target = around(target)
        self._targets[target.name] = target
        return target

    def serve_http(self, sender: Destination, settings: Settings, *, batch: int) -> None:
        """Registers HTTP: every worker of every App sends requests, to any host."""
        for name in SCHEMES:
            self.add(
                Target(
                    name=name, queue=QUEUE, backoff=settings.backoff, sender=sender, batch=batch,
                    at_once=settings.http_per_host,
                )
            )  # fmt: skip

    def wrap(self, around: Callable[[Target], Target]) -> None:
        """Applies `around` to every target, present and future, such as a framework's wrapper of each handler.

        Adding the same function again has no effect.
        """
        if around in self._around:
            return
        self._around.append(around)
        self._targets = {name: around(target) for name, target in self._targets.items()}

    def free(self, names: Sequence[str]) -> Sequence[str]:
        """Returns the names. InvalidSetting if one is taken or given twice."""
        for place, name in enumerate(names):
            if name in self._targets or name in names[:place]:
                raise InvalidSetting(f"two destinations are named {name!r}", hint=_ANOTHER_NAME)
        return names

    def __getitem__(self, name: str) -> Target:
        return self._targets.get(name) or self._targets[served_as(name)]

    def get(self, name: str) -> Target | None:
        """Returns the target of that name, if there is one; for a host, the target that serves all hosts."""
        return self._targets.get(name) or self._targets.get(served_as(name))

    def __iter__(self) -> Iterator[Target]:
        return iter(self._targets.values())

    def __len__(self) -> int:
        return len(self._targets)

    def usual_attempts(self) -> dict[str, int]:
        """Returns `usual_attempts` by destination, where it differs from the default stored with deliveries."""
        usual = {target.name: target.usual_attempts for target in self}
        return {name: number for name, number in usual.items() if number is not None and number != USUAL_ATTEMPTS}

    @property
    def serves_runs(self) -> bool:
        """Whether a workflow is among the targets."""
        return any(target.context is not None for target in self)

    @property
    def listable(self) -> frozenset[str]:
        """The targets whose deliveries may be claimed by list: handlers that are no runs and have no transaction.

        The steps of a run, and what a transactional handler commits, are fenced by the row of the delivery.
        """
        return frozenset(
            target.name
            for target in self
            if target.call is not None and target.context is None and not target.transactional
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All names, in order of registration."""
        return tuple(self._targets)


def outgoing(claim: Claimed) -> Outgoing:
    """Builds the message for a destination from a claimed delivery."""
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
        sequence=None if claim.lane is None else claim.message_seq,
        worker=claim.worker,
    )

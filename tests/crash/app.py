"""The App that the crash tests run: one destination of each kind, each noting what arrives at the receiver.

Whoever runs it says by the environment where the receiver is (TODOKU_TEST_RECEIVER) and, if wanted, how long an
attempt takes (TODOKU_TEST_WORK, seconds) and which failpoint to arm once so many attempts have begun
(TODOKU_TEST_ARM=`settle.before_commit=kill@3`).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import todoku
from tests.support.receiver import Receiver
from todoku.store.failpoint import armed, stop
from todoku.testing.armed import arm_from

EFFECTS = "create table if not exists crash_effect (message text not null, destination text not null)"
TRANSACTIONAL = frozenset({"booked", "projected"})
EVENT = ("projected", "outside")
KINDS = ("plain", "keyed", "threaded", "booked", "lined", "flaky", "event")


class Workplace:
    """What the handlers of one process share."""

    def __init__(self) -> None:
        self.receiver = Receiver(Path(os.environ["TODOKU_TEST_RECEIVER"]))
        self.seconds = float(os.environ.get("TODOKU_TEST_WORK", "0.001"))
        mark = "?" if os.environ["TODOKU_DATABASE"].startswith("sqlite") else "%s"
        self._effect = f"insert into crash_effect (message, destination) values ({mark}, {mark})"
        self._arm, _, number = os.environ.get("TODOKU_TEST_ARM", "").partition("@")
        self._left = int(number or 0)
        if self._arm and not self._left:
            self.arm()

    def arm(self) -> None:
        """Arm the failpoints; one that stops the process stops it once."""
        for item in self._arm.split(","):
            name, _, action = item.partition("=")
            if action == "stop":
                _stop_once(name)
            else:
                arm_from({"TODOKU_FAILPOINTS": item})

    def arrived(self, ctx: todoku.Context) -> AbstractContextManager[None]:
        """Note the attempt; and arm the failpoint, if it is time."""
        self._left -= 1
        if self._left == 0:
            self.arm()
        claim = ctx.claim
        return self.receiver.attempt(
            claim.message_id, claim.destination, claim.attempt, epoch=claim.epoch, worker=str(claim.worker)
        )

    def take_effect(self, ctx: todoku.Context) -> None:
        """What I6 is about: a row in the transaction that was handed to the handler."""
        ctx.tx.execute(self._effect, (str(ctx.message_id), ctx.claim.destination))


def _stop_once(name: str) -> None:
    disarmed = ExitStack()

    def act() -> None:
        disarmed.close()
        stop()

    disarmed.enter_context(armed(name, act))


class Outside:
    """A destination that takes batches and is told no more than any destination is."""

    name = "outside"

    def __init__(self, place: Workplace) -> None:
        self._place = place

    async def send(self, batch: Sequence[todoku.Outgoing]) -> None:
        with ExitStack() as arrived:
            for message in batch:  # all of them begin now, whenever their turn comes
                arrived.enter_context(self._place.receiver.attempt(message.message_id, self.name, message.attempt))
            await asyncio.sleep(self._place.seconds)


def crash_app(database: str | None = None) -> todoku.App:
    """The App, and the handlers in it."""
    box, place = todoku.App(database), Workplace()
    options: dict[str, Any] = {"backoff": todoku.table(0.02)}

    @box.job(**options)
    async def plain(ctx: todoku.Context, n: int) -> None:
        with place.arrived(ctx):
            await asyncio.sleep(place.seconds)

    @box.job(**options)
    async def keyed(ctx: todoku.Context, n: int) -> None:
        with place.arrived(ctx):
            await asyncio.sleep(place.seconds)

    @box.job(**options)
    def threaded(ctx: todoku.Context, n: int) -> None:
        with place.arrived(ctx):
            time.sleep(place.seconds)

    @box.job(transactional=True, **options)
    def booked(ctx: todoku.Context, n: int) -> None:
        with place.arrived(ctx):
            place.take_effect(ctx)
            time.sleep(place.seconds)

    @box.job(ordered=True, **options)
    async def lined(ctx: todoku.Context, n: int) -> None:
        with place.arrived(ctx):
            await asyncio.sleep(place.seconds)

    @box.job(**options)
    async def flaky(ctx: todoku.Context, n: int) -> None:
        with place.arrived(ctx):
            await asyncio.sleep(place.seconds)
            if ctx.attempt == 1:
                raise todoku.Retry(after=0.02, reason="PLANNED")

    @box.on("crash.event", name="projected", transactional=True, **options)
    def projected(ctx: todoku.Context, event: dict[str, int]) -> None:
        with place.arrived(ctx):
            place.take_effect(ctx)

    box.route("crash.event", to=Outside(place))
    return box


def publish_next(box: todoku.App, n: int, tx: Any = None) -> tuple[str, tuple[str, ...], str | None]:
    """Publish the n-th message: each kind in turn. Returns its id, where it must arrive, and the key it was given.

    All have a key of their own, so that a publish whose reply was lost can be repeated; `plain` and `event` have none.
    """
    kind = KINDS[n % len(KINDS)]
    if kind == "event":
        return str(box.publish("crash.event", {"n": n}, tx=tx).id), EVENT, None
    key = None if kind == "plain" else f"key {n}"
    lane = f"lane {n % 3}" if kind == "lined" else None
    return str(box.jobs[kind].using(tx=tx, key=lane, idempotency_key=key).enqueue(n).id), (kind,), key

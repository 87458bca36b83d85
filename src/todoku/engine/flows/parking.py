"""When a run parks: none of its steps is under way, and everything that it still does waits (R9).

It waits for a time, a signal or children. Parking stops the function; when the run is woken, a new attempt calls it
again, and steps that are stored return at once.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

_TURNS: Final = 32
"""Turns of the event loop in which no step is asked for, begins or ends, after which everything that the run does is
known to wait. From one stored step to the next, a branch needs two turns for each nested `asyncio.gather` that ends
between them, and one for each that begins."""

_SOON: Final = 0.02
"""Seconds that a run waits in its slot instead of parking."""


class Parking:
    """What one attempt of a run does at the moment, in all of its branches. It belongs to one event loop.

    `park`: parks the run for so many seconds. `is_over`: whether the attempt is over, so that there is nothing to park.
    """

    def __init__(self, park: Callable[[float], None], is_over: Callable[[], bool]) -> None:
        self._park = park
        self._is_over = is_over
        self._busy = 0
        self._checking = 0
        self._activity = 0
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._loop = asyncio.get_running_loop()

    @property
    def is_busy(self) -> bool:
        """Whether a step is under way."""
        return self._busy > 0

    def note_step(self) -> None:
        """A branch asks for a step, which may be stored: so it does not wait."""
        self._settle_down()

    def begin(self) -> None:
        """A step is under way: until it ends, the run does not park."""
        self._busy += 1

    def end(self) -> None:
        """A step has ended."""
        self._busy -= 1
        self._settle_down()

    async def wait(self, seconds: float) -> None:
        """Waits: in the slot while other branches of the run go on, otherwise parked."""
        waiting: asyncio.Future[None] = self._loop.create_future()
        self._waiting[waiting] = time.monotonic() + seconds
        timer = None if math.isinf(seconds) else self._loop.call_later(max(seconds, 0.0), _resolve, waiting)
        self._settle_down()
        try:
            await waiting
        finally:
            self._waiting.pop(waiting, None)
            self._settle_down()  # if this branch ends here, the others that wait may park
            if timer is not None:
                timer.cancel()

    def cancel_waits(self) -> None:
        """Cancels everything that waits."""
        for waiting in list(self._waiting):
            waiting.cancel()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """The block begins when everything else that the run does waits; until its end the run does not park."""
        self._checking += 1
        try:
            await self._settled_down()
            yield
        finally:
            self._checking -= 1
            self._settle_down()  # the others that wait may park now

    async def _settled_down(self) -> None:
        activity = -1
        while activity != self._activity or self._busy:
            activity = self._activity
            for _ in range(_TURNS):
                await asyncio.sleep(0)
            if self._busy:
                await asyncio.sleep(_SOON)

    def _settle_down(self) -> None:
        self._activity += 1
        self._loop.call_soon(self._park_if_idle, self._activity, _TURNS)

    def _park_if_idle(self, activity: int, turns: int) -> None:
        if activity != self._activity or self._busy or self._checking or not self._waiting or self._is_over():
            return
        if turns:
            self._loop.call_soon(self._park_if_idle, activity, turns - 1)
            return
        left = min(self._waiting.values()) - time.monotonic()
        if left > _SOON:
            self._park(left)


def _resolve(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)

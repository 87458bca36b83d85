"""Checks passwords a few at a time, and slows down guessing without locking other people out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from cachetools import LRUCache

from todoku.api.auth import RateBuckets, TakeResult
from todoku.api.problem import Refused
from todoku.engine.sign_in.users import verify_user
from todoku.store.sessions import Person
from todoku.store.store import Store

_KNOWN: Final = 10_000
_MOST_WAITING: Final = 32
"""Passwords that wait to be checked; more are refused, so that a flood is not a queue."""

PAIR: Final = (1 / 30, 5)
ADDRESS: Final = (1 / 2, 50)
USER: Final = (1 / 10, 50)
"""Wrong passwords in a second, and in a burst: for a user from an address, from an address, and for a user from
addresses that never had the right one."""


class PasswordGate:
    """Checks passwords. For one event loop only.

    A person at an address from which the right password came before is held up by that person's own mistakes only:
    neither guesses from elsewhere nor guesses at other users from the same address count there, and such passwords are
    checked apart from the others.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._by_pair, self._by_address, self._by_user = (
            RateBuckets(rate=rate, size=size, clock=clock) for rate, size in (PAIR, ADDRESS, USER)
        )
        self._known: LRUCache[tuple[str, str], bool] = LRUCache(_KNOWN)
        # One hash takes a core and 46 MiB for a while: at most two at once, one of them for addresses that are known.
        self._for_known, self._for_others = asyncio.Semaphore(1), asyncio.Semaphore(1)
        self._waiting = 0

    async def check(self, name: str, password: str, address: str) -> Person | None:
        """Returns who has this name and password; None: nobody. Raises Refused (429) after too many wrong ones."""
        pair = (name, address)
        buckets = [(self._by_pair, f"{address} {name}")]
        if pair not in self._known:
            buckets += [(self._by_address, address), (self._by_user, name)]
        person = await self._verify(name, password, buckets, is_known=pair in self._known)
        if person is not None:
            self._known[pair] = True
            return person
        for bucket, key in buckets:
            bucket.take(key)
        return None

    async def _verify(
        self, name: str, password: str, buckets: list[tuple[RateBuckets, str]], *, is_known: bool
    ) -> Person | None:
        if self._waiting >= _MOST_WAITING and not is_known:
            raise too_often(1.0)
        self._waiting += 1
        try:
            async with self._for_known if is_known else self._for_others:
                for result in (bucket.peek(key) for bucket, key in buckets):  # others may have failed meanwhile
                    _refuse_unless(result)
                return await asyncio.to_thread(verify_user, self._store, name, password)
        finally:
            self._waiting -= 1


def _refuse_unless(result: TakeResult) -> None:
    if not result.ok:
        raise too_often(result.wait)


def too_often(wait: float) -> Refused:
    """The refusal after too many wrong passwords."""
    seconds = max(1, round(wait + 0.5))
    return Refused(
        429, "too many wrong passwords", hint=f"wait {seconds} s, or sign in with an API token",
        headers={"retry-after": str(seconds)},
    )  # fmt: skip

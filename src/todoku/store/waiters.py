"""Callers that wait for the end of a message's deliveries: in this process, and, on PostgreSQL, in others.

A settle looks here once for a batch, in memory. Only for a message whose end is awaited it does more: callers of this
process are woken after the commit, other processes get a notice with the commit. A notice that is missed delays a
caller until its next look at the database, and never loses a result (decision 29).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final

from todoku.core.errors import StoreError
from todoku.store.database import Database, Listener, Tx

ANNOUNCED_FOR: Final = 60.0
"""Seconds for which a worker remembers that another process waits; callers repeat their announcement before that."""

_MOST: Final = 100_000
"""Announcements that a worker remembers, at most. Callers beyond that only poll."""


class Waiters:
    """The callers that wait, for one database. Falsy while no caller waits. Thread-safe."""

    def __init__(self, database: Database, *, notify: bool) -> None:
        self._database = database
        self._notify = notify
        self._lock = threading.Lock()
        self._here: dict[str, list[Callable[[], None]]] = {}
        self._elsewhere: dict[str, float] = {}
        self._ended: set[str] = set()
        self._starting = threading.Lock()
        self._listener: Listener | None = None
        self._pid = 0

    def __bool__(self) -> bool:
        return bool(self._here or self._elsewhere)

    # ------------------------------------------------------------------------------------- for who waits

    @contextmanager
    def waiting(self, message_id: str, wake: Callable[[], None]) -> Iterator[None]:
        """Calls `wake`, from any thread, when a delivery of this message has ended: perhaps too often, or not at all.

        This process's own settles always do. Those of others do once `announce` has told them.
        """
        with self._lock:
            self._here.setdefault(message_id, []).append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._here[message_id].remove(wake)
                if not self._here[message_id]:
                    del self._here[message_id]

    def announce(self, message_id: str) -> bool:
        """Tells the workers of other processes that this one waits. False: no notices come here, so poll often."""
        if not self._notify:
            return False
        try:
            with self._starting:
                if self._listener is None or self._pid != os.getpid():  # a thread does not survive a fork
                    self._listener, self._pid = self._database.listen_for_ends(self._wake), os.getpid()
            if self._listener is not None:
                self._database.announce_wait(message_id)
        except StoreError:  # the caller's next look at the database reports it
            return False
        return self._listener is not None

    def close(self) -> None:
        """Stops listening."""
        with self._starting:
            listener, self._listener = self._listener, None
        if listener is not None and self._pid == os.getpid():
            listener.close()

    # ----------------------------------------------------------------------------------- for who settles

    def expect(self, message_id: str) -> None:
        """Remembers for a while that another process waits for this message."""
        now = time.monotonic()
        with self._lock:
            if len(self._elsewhere) >= _MOST:
                self._forget(now)
            if len(self._elsewhere) < _MOST:
                self._elsewhere[message_id] = now + ANNOUNCED_FOR

    def note(self, tx: Tx, message_ids: Collection[str]) -> None:
        """Call this in the transaction that ends deliveries of these messages, and `wake` after its commit."""
        ended = frozenset(message_ids)
        with self._lock:
            self._ended |= ended & self._here.keys()
            if self._elsewhere:
                self._forget(time.monotonic())
            elsewhere = sorted(ended & self._elsewhere.keys())
        if elsewhere:
            self._database.give_notice(tx, elsewhere)

    def wake(self) -> None:
        """Wakes the callers of this process whose messages were noted."""
        if self._ended:
            with self._lock:
                ended, self._ended = self._ended, set()
            for message_id in ended:
                self._wake(message_id)

    # ------------------------------------------------------------------------------------------- inside

    def _forget(self, now: float) -> None:
        """Drops announcements that have ended. The oldest are first, unless they were repeated."""
        self._elsewhere = {id: until for id, until in self._elsewhere.items() if until > now}

    def _wake(self, message_id: str) -> None:
        with self._lock:
            callers = tuple(self._here.get(message_id, ()))
        for wake in callers:
            wake()

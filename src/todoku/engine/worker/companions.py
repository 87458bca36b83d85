"""Companions of a worker: what runs in threads of its own beside it, for as long as it takes work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from uuid import UUID

from todoku.engine.observability.log import Log
from todoku.engine.registry import Companion, Registry
from todoku.engine.worker.worker_thread import OnFailure, create_thread


class Companions:
    """The threads of a registry's companions. `worker` returns the id of the worker's present lease."""

    def __init__(self, registry: Registry, worker: Callable[[], UUID], on_failure: OnFailure) -> None:
        self._companions = tuple(registry.companions)
        self._worker = worker
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._closed = False
        self._ending = threading.Event()
        self._ending.set()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Starts each in a thread, unless they run or were closed.

        One that was asked to end, and has not ended yet, is awaited in the new thread: it never runs twice at once.
        """
        with self._lock:
            if self._closed or not self._ending.is_set():
                return
            self._ending, earlier = threading.Event(), self._threads
            self._threads = [
                create_thread(
                    f"companion {place}",
                    partial(self._run, companion, earlier[place] if earlier else None, self._ending),
                    self._on_failure,
                )
                for place, companion in enumerate(self._companions)
            ]
            for thread in self._threads:
                thread.start()

    def end(self) -> None:
        """Asks them to end, and does not wait for it. They may be started again."""
        with self._lock:
            self._ending.set()

    def close(self, grace: float) -> None:
        """Ends them, and waits for it, at most `grace` seconds; logs those that have not ended by then."""
        with self._lock:
            self._closed = True
            self._ending.set()
        until = time.monotonic() + grace
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
            if thread.is_alive():
                Log(thread=thread.name).error("COMPANION_NOT_ENDED", waited=grace)

    def _run(self, companion: Companion, before: threading.Thread | None, ending: threading.Event) -> None:
        if before is not None:
            before.join()
        if not ending.is_set():
            companion(self._worker, ending)

"""Where a worker runs the plain functions of workflows: beside its pools of handlers, which do not wait for them.

The function of a workflow has a thread of its own while it runs; its slot in the event loop bounds how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from todoku.engine.worker.call_threads import CallThreads
from todoku.engine.worker.thread_pool import Errand

LEAST_STEPS: Final = 8
"""Plain steps that a worker runs at once, at least: one run may have several branches."""

_STORE_CALLS: Final = 4


class StepPools:
    """The threads of one worker's runs, and its processes, which it shares with handlers.

    `slots`: handlers of one kind that the worker runs at once. `tidy`: as in CallThreads.
    """

    def __init__(
        self, slots: int, lend_process: Callable[[Errand], None], tidy: Sequence[Callable[[], object]]
    ) -> None:
        most = max(slots, LEAST_STEPS)
        self.steps = CallThreads("step", most=most, kept=most, tidy=tidy)
        """For the functions of steps."""
        self.functions = CallThreads("workflow", tidy=tidy)
        """For the functions of workflows: a run that parks leaves no thread behind."""
        self.store = CallThreads("run", most=_STORE_CALLS, kept=_STORE_CALLS)
        """For what runs read and write."""
        self.lend_process = lend_process
        """Calls the errand with the process of a slot, once one is free."""

    def stop(self) -> None:
        """Ends the threads that have nothing to do."""
        for threads in (self.steps, self.functions, self.store):
            threads.stop()

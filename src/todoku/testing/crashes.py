"""Crashes of a worker in a test: kill -9 at a chosen point, and the end of its lease."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from typing import Final

from todoku.app import App
from todoku.core.errors import InvalidAct, InvalidSetting
from todoku.store.failpoint import NAMES, armed, kill

_TIMEOUT: Final = 60.0


def crash(box: App, *, at: str = "settle.before_commit") -> None:
    """Drains in another process, and kills that process (-9) when it first reaches `at`.

    `settle.before_commit`: the handlers ran, but it is not recorded. `settle.after_commit`: it is recorded, but the
    worker did not receive the reply. `claim.after_commit`: the worker owns deliveries whose handlers never started.
    These deliveries stay `sending` under a lease that has not ended, as after any crash; `lose_lease` ends it. The
    process is a fork: what handlers write to a database or file stays, what they change in memory is lost.
    """
    if at not in NAMES:
        raise InvalidSetting(f"{at!r} is not a failpoint", hint=f"use one of {', '.join(sorted(NAMES))}")
    if "fork" not in multiprocessing.get_all_start_methods():
        raise InvalidAct(
            "crash needs a fork, which Windows does not have", hint="run these tests in WSL or a container"
        )
    child = multiprocessing.get_context("fork").Process(target=_drain, args=(box, at))
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork in a process with threads. The child uses none of their locks and connections.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(_TIMEOUT)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"the worker neither reached {at} nor ended within {_TIMEOUT:g} s")
    if child.exitcode == 0:
        raise AssertionError(f"the worker ended without reaching {at}: check that a delivery was due")
    if child.exitcode != -signal.SIGKILL:
        raise AssertionError(f"the worker failed before it reached {at}: see its traceback on stderr")


def _drain(box: App, at: str) -> None:
    with armed(at, kill):
        box.drain()


def lose_lease(box: App) -> int:
    """Ends every lease as if it had run out. Returns the number of deliveries that this freed.

    A worker that still runs one of them can no longer settle it (I3), and the delivery runs again.
    """
    max_lost = box.settings.max_lost
    ended = [box.store.leases.end(worker.id, lost=True, max_lost=max_lost) for worker in box.store.leases.workers()]
    ended.append(box.store.leases.reclaim(max_lost=max_lost))
    return sum(one.freed + one.aborted for one in ended)

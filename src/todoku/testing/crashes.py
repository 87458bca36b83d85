"""What production does to a worker, on purpose: kill -9 at a chosen point, and the end of its lease."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from typing import Final

from todoku.app import App
from todoku.core.errors import InvalidSetting
from todoku.store.failpoint import NAMES, armed, kill

_LONGEST: Final = 60.0


def crash(box: App, *, at: str = "settle.before_commit") -> None:
    """Drain in a process of its own, and kill -9 that process where it first passes `at`.

    `settle.before_commit`: the handlers ran, and nobody knows. `settle.after_commit`: it is settled, and the worker did
    not hear it. `claim.after_commit`: it owns deliveries whose handlers never started. What it owned stays `sending`
    under a lease that has not ended, as after any crash; `lose_lease` ends it. The process is a fork: what handlers
    write to a database or file is there, what they change in memory is not.
    """
    if at not in NAMES:
        raise InvalidSetting(f"{at!r} is no failpoint", hint=f"one of: {', '.join(sorted(NAMES))}")
    child = multiprocessing.get_context("fork").Process(target=_drain, args=(box, at))
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads. The child uses no lock or connection that they could hold.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    child.join(_LONGEST)
    if child.exitcode is None:
        child.kill()
        child.join()
        raise AssertionError(f"the worker neither passed {at} nor came to an end in {_LONGEST:g} s")
    if child.exitcode == 0:
        raise AssertionError(f"the worker ended well and never passed {at}: was anything due?")
    if child.exitcode != -signal.SIGKILL:
        raise AssertionError(f"the worker failed by itself before it passed {at}: its traceback is on stderr")


def _drain(box: App, at: str) -> None:
    with armed(at, kill):
        box.drain()


def lose_lease(box: App) -> int:
    """End every lease there is, as if time had run out, and free what its worker held: how many deliveries.

    Whoever still runs one is a zombie from here on: its settle changes nothing (I3), and the delivery runs again.
    """
    most = box.settings.max_lost
    ended = [box.store.leases.end(worker.id, lost=True, max_lost=most) for worker in box.store.leases.workers()]
    ended.append(box.store.leases.reclaim(max_lost=most))
    return sum(one.freed + one.aborted for one in ended)

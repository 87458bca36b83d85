"""Named places where a test may let the store fail: lose a reply, kill the process, stop it.

Every write of the store passes `<operation>.before_commit` and `<operation>.after_commit`. Not armed, a failpoint costs
one look into an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from todoku.core.errors import DatabaseUnavailable, InvalidSetting

OPERATIONS: Final = frozenset(
    {
        "publish",
        "register",
        "renew",
        "set_state",
        "transact",
        "end_lease",
        "reclaim",
        "claim",
        "claim_suspect",
        "claim_lanes",
        "claim_gates",
        "settle",
        "release",
    }
    | {"replay", "cancel", "settle_by_hand", "purge", "clear_history", "set_queue", "set_limit", "set_breaker"}
    | {"set_on_abort", "announce", "expire", "follow", "prune", "count", "migrate", "rewrap", "shred", "copy"}
    | {"fire", "fail_schedule", "declare_schedules", "put_schedule", "pause_schedule", "remove_schedule"}
    | {"run_schedule", "put_queue", "put_group", "secrets", "api_key", "api_key_used", "take_alerts", "told_alert"}
)
NAMES: Final = frozenset(f"{name}.{side}_commit" for name in OPERATIONS for side in ("before", "after"))

_armed: dict[str, Callable[[], None]] = {}


def reach(name: str) -> None:
    """Pass a failpoint: nothing happens unless a test armed it."""
    if _armed and (action := _armed.get(name)) is not None:
        action()


@contextmanager
def armed(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Arm a failpoint for as long as the block runs."""
    _check(name)
    _armed[name] = action
    try:
        yield
    finally:
        del _armed[name]


def lose() -> None:
    """Fail as a broken connection does: the caller cannot know whether the commit happened."""
    raise DatabaseUnavailable("the connection broke at a failpoint", hint="a test armed it")


def kill() -> None:
    """End this process as kill -9 does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Freeze this process until somebody sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


_ACTIONS: Final[Mapping[str, Callable[[], None]]] = {"lose": lose, "kill": kill, "stop": stop}


def arm_from(environ: Mapping[str, str]) -> None:
    """Arm what TODOKU_FAILPOINTS says: `settle.after_commit=kill,claim.before_commit=lose`."""
    for item in filter(None, environ.get("TODOKU_FAILPOINTS", "").split(",")):
        name, _, action = item.strip().partition("=")
        _check(name)
        if action not in _ACTIONS:
            raise InvalidSetting(f"{action!r} is no failpoint action", hint=f"use one of {', '.join(_ACTIONS)}")
        _armed[name] = _ACTIONS[action]


def _check(name: str) -> None:
    if name not in NAMES:
        raise InvalidSetting(f"{name!r} is no failpoint", hint="see OPERATIONS in store/failpoint.py")

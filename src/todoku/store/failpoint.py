"""Failpoints: named places at which a test makes the store lose a reply, or kills or stops the process.

Every write of the store passes `<operation>.before_commit` and `<operation>.after_commit`. Only `todoku.testing` arms
them; a failpoint that is not armed costs one lookup in an empty dictionary.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
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
    | {"publish_by_hand", "record"}
    | {"repeat", "set_on_abort", "announce", "expire", "follow", "prune", "count", "migrate", "rewrap", "shred", "copy"}
    | {"fire", "fail_schedule", "declare_schedules", "put_schedule", "pause_schedule", "remove_schedule"}
    | {"http_run"}
    | {"run_schedule", "put_queue", "put_group", "secrets", "api_key", "api_key_used", "take_alerts", "told_alert"}
    | {"record_audit", "user", "session", "request_drain", "request_stacks", "answer_stacks", "clear_stacks"}
    | {"declare_projection", "admit_projection", "acknowledge_projection", "reject_projection", "stop_projection"}
    | {"set_projection", "begin_rebuild", "advance_rebuild", "switch_projection", "drop_projection"}
    | {"declare_capture", "take_capture", "release_capture", "begin_capture", "set_capture", "store_capture"}
    | {"stage_capture", "measure_capture", "restart_capture", "drop_capture"}
    | {"step", "heed", "rewind", "signal", "undo"}
)
NAMES: Final = frozenset(f"{name}.{side}_commit" for name in OPERATIONS for side in ("before", "after"))

_armed: dict[str, Callable[[], None]] = {}


def reach(name: str) -> None:
    """Passes a failpoint. Nothing happens unless a test armed it."""
    if _armed and (action := _armed.get(name)) is not None:
        action()


def arm(name: str, action: Callable[[], None]) -> None:
    """Arms a failpoint until the process ends. InvalidSetting: no write passes one of this name."""
    if name not in NAMES:
        raise InvalidSetting(f"{name!r} is not a failpoint", hint="see OPERATIONS in store/failpoint.py")
    _armed[name] = action


@contextmanager
def armed(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Arms a failpoint while the block runs. InvalidSetting, as `arm`."""
    arm(name, action)
    try:
        yield
    finally:
        del _armed[name]


def lose() -> None:
    """Fails as a broken connection does: the caller cannot know whether the commit happened."""
    raise DatabaseUnavailable("the connection broke at a failpoint", hint="a test armed it")


def kill() -> None:
    """Ends this process as kill -9 does: nothing is cleaned up."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop() -> None:
    """Stops this process until it receives SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)

"""Wraps handlers in what a framework needs around them: its context, its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from todoku.engine.context import Context
from todoku.engine.registry import Target

Call = Callable[[Context], Any]


def wrap_call(target: Target, wrap_sync: Callable[[Call], Call], wrap_async: Callable[[Call], Call]) -> Target:
    """Returns `target` with its handler wrapped: by `wrap_sync` or, if it is async, by `wrap_async`.

    Handlers that run in another process, and destinations that send, are not wrapped.
    """
    if target.call is None or target.run == "process":
        return target
    return msgspec.structs.replace(target, call=(wrap_async if target.run == "loop" else wrap_sync)(target.call))

"""What a framework puts around each handler: its context, its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from todoku.engine.context import Context
from todoku.engine.registry import Target

Call = Callable[[Context], Any]


def with_call(target: Target, plain: Callable[[Call], Call], awaits: Callable[[Call], Call]) -> Target:
    """`target` with its handler wrapped, by `plain` or, if it is async, by `awaits`.

    What runs in a process of its own is not here to be wrapped, and a destination that sends is no handler.
    """
    if target.call is None or target.run == "process":
        return target
    return msgspec.structs.replace(target, call=(awaits if target.run == "loop" else plain)(target.call))

"""Functions of upper layers that lower layers call by name: imports go down only, so they are registered here.

`todoku/__init__.py` registers them. It runs before any module of the package, and the functions import their layer when
they are first called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Shells(msgspec.Struct, frozen=True, kw_only=True):
    """What the layers above the App offer to it and to the integrations."""

    ingest_app: Callable[[Any], Any]
    """Makes the ASGI application of an App's sources: `App.ingest_app`."""

    metrics_app: Callable[[Any], Any]
    """Makes the ASGI application of an App's metrics: `App.metrics_app`."""

    web_app: Callable[[Any, Any], Any]
    """Makes the ASGI application of the dashboard: `App.web`."""

    command_line: Callable[[], None]
    """Runs the program `todoku` with `sys.argv`: for the command lines of frameworks."""


_registered: list[Shells] = []


def register_shells(shells: Shells) -> None:
    """Registers the functions, in place of those registered before."""
    _registered[:] = [shells]


def registered_shells() -> Shells:
    """The functions that were registered."""
    return _registered[0]

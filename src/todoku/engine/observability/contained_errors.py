"""Errors of telemetry are logged by their type, and never raised into the code that is observed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from todoku.engine.observability.log import Log

P = ParamSpec("P")
R = TypeVar("R")


def quietly(call: Callable[P, R]) -> Callable[P, R | None]:
    """Decorates a telemetry function: an exception is logged by its type, and None returned."""

    @wraps(call)
    def watched(*args: P.args, **kwargs: P.kwargs) -> R | None:
        try:
            return call(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - exporters and samplers are third-party code
            log_failure(call.__name__, error)
            return None

    return watched


def log_failure(call: str, error: Exception) -> None:
    """Logs that `call` failed, without the error's text, which may quote a payload."""
    Log().debug("TELEMETRY_FAILED", call=call, error_type=type(error).__name__)

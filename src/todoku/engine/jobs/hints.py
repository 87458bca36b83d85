"""The annotations of handlers, resolved once, when a handler is declared."""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any, get_type_hints

from todoku.core.errors import InvalidSetting
from todoku.engine.context import Context
from todoku.engine.encryption.secret_ref import SecretSources


class Hints:
    """The annotations of a function, resolved, and whether it takes the context first."""

    def __init__(self, function: Callable[..., Any], name: str, secrets: SecretSources | None = None) -> None:
        self.name = name
        self.secrets = secrets
        shape = inspect.signature(function)
        hints = _resolved(function, name)
        parameters = list(shape.parameters.values())
        first = parameters[0] if parameters else None
        kind = hints.get(first.name) if first is not None else None
        self.context: type[Context] | None = kind if isinstance(kind, type) and issubclass(kind, Context) else None
        self.takes_context = self.context is not None
        if first is not None and first.name == "ctx" and kind is None:
            raise InvalidSetting(f"{name}: ctx has no annotation", hint="write ctx: todoku.Context")
        if self.takes_context:
            parameters = parameters[1:]
        # For error messages: types by their names, also where annotations are postponed, without the return type.
        shown = [each.replace(annotation=hints.get(each.name, each.empty)) for each in parameters]
        self.shape = shape.replace(parameters=shown, return_annotation=shape.empty)
        self.parameters = parameters
        self.types = {each.name: hints.get(each.name, Any) for each in parameters}
        self.returns = hints.get("return", Any)


def _resolved(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Returns its type hints. Names of the calling function count too: tests declare classes and handlers there."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    try:
        return get_type_hints(called, localns=_callers_names(), include_extras=True)
    except NameError as error:
        raise InvalidSetting(
            f"the annotations of {name} cannot be read: {error}",
            hint="import it where the program runs, not only under TYPE_CHECKING",
        ) from None


def _callers_names() -> dict[str, Any]:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "todoku":
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}

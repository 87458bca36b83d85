"""Runs the program `todoku` inside the command line of a framework, after the framework is set up."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from todoku.app import App
from todoku.engine.context import Context
from todoku.engine.registry import Target
from todoku.shells import registered_shells

# ------------------------------------------------------------
# Wraps handlers in what a framework needs around them: its context, its connections.

Call = Callable[[Context], Any]


def wrap_call(target: Target, wrap_sync: Callable[[Call], Call], wrap_async: Callable[[Call], Call]) -> Target:
    """Returns `target` with its handler wrapped: by `wrap_sync` or, if it is async, by `wrap_async`.

    Handlers that run in another process, and destinations that send, are not wrapped.
    """
    if target.call is None or target.run == "process":
        return target
    return msgspec.structs.replace(target, call=(wrap_async if target.run == "loop" else wrap_sync)(target.call))


def run_program(box: App, arguments: Sequence[str], *, app: str) -> None:
    """Runs `todoku …` on this App and its database. Worker processes import it by the name `app`.

    Raises SystemExit unless the program ends with status 0.
    """
    environ = {"TODOKU_APP": app, "TODOKU_DATABASE": box.settings.database, "TODOKU_SCHEMA": box.settings.schema or ""}
    with _environment(environ), _argv(["todoku", *arguments]):
        try:
            registered_shells().command_line()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@contextmanager
def _environment(environ: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in environ}
    os.environ.update(environ)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _argv(argv: list[str]) -> Iterator[None]:
    before, sys.argv = sys.argv, argv
    try:
        yield
    finally:
        sys.argv = before

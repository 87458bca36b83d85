"""Running the program `todoku` from inside a framework's own command line, with the framework set up."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from todoku.app import App
from todoku.shells import registered_shells


def run_program(box: App, arguments: Sequence[str], *, app: str) -> None:
    """`todoku …` on this App and its database. `app` names it, so that worker processes find it, too.

    Raises SystemExit unless it ended well.
    """
    said = {"TODOKU_APP": app, "TODOKU_DATABASE": box.settings.database, "TODOKU_SCHEMA": box.settings.schema or ""}
    with _environment(said), _argv(["todoku", *arguments]):
        try:
            registered_shells().command_line()
        except SystemExit as end:
            if end.code not in (None, 0):
                raise


@contextmanager
def _environment(said: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
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

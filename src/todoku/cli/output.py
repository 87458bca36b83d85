"""How commands print: tables for people, one JSON object a line for programs, the same columns in the same order."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from todoku.core.control_characters import encode_json, escape_controls
from todoku.core.sealed import shown
from todoku.engine.diagnostics.masked_json import masked
from todoku.store.messages import Preview

_WIDE: Final = 1000
_LONGEST: Final = 60
_LEAST: Final = 6
_GAP: Final = 2
_LONG: Final = frozenset({"topic", "destination", "reason", "error", "payload", "told", "name"})
"""Columns that give way on a narrow terminal."""

_SPACES: Final = re.compile(r"(?:\r\n|[ \t\n])+")
"""What lies between the words of a text with several lines."""


def say(*lines: str, err: bool = False) -> None:
    """Print these lines, or an empty one. What a terminal would obey in them is shown instead."""
    click.echo("\n".join(map(escape_controls, lines)), err=err)


def print_document(text: str) -> None:
    """Print a text of todoku's own as it is, with its tabs and newlines."""
    click.echo(text, nl=False)


def print_json(row: Mapping[str, object]) -> None:
    """One object on a line of its own."""
    click.echo(encode_json(row).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table as wide as the terminal, long texts cut to fit; piped elsewhere nothing is cut or wrapped."""
    texts = [[Text(told(value)) for value in row] for row in rows]
    needed = [max(len(name), *(row[place].cell_len for row in texts), 0) for place, name in enumerate(columns)]
    gaps = _GAP * (len(columns) - 1)
    room = Console().width if sys.stdout.isatty() else _WIDE
    widths = fitted(needed, [name in _LONG for name in columns], room - gaps)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
    for row in texts:
        table.add_row(*row)
    Console(width=sum(widths) + gaps, markup=False, emoji=False, highlight=False).print(table, crop=False)


def fitted(needed: Sequence[int], gives: Sequence[bool], room: int) -> list[int]:
    """The width of each column: those that give way share what the others leave, the shortest first."""
    left = room - sum(width for width, soft in zip(needed, gives, strict=True) if not soft)
    widths = list(needed)
    soft = sorted((place for place, gives_way in enumerate(gives) if gives_way), key=lambda place: needed[place])
    for number, place in enumerate(soft):
        widths[place] = min(needed[place], max(_LEAST, left // (len(soft) - number)))
        left -= widths[place]
    return widths


def told(value: object) -> str:
    """A value as a person reads it in a table."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%SZ")
        case dict() | list():
            return encode_json(value).decode()
        case _:
            return escape_controls(_SPACES.sub(" ", str(value)).strip(" "))


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """The same rows either way."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, rows)


def preview(found: Preview | None, fields: Iterable[str], *, longest: int | None = _LONGEST) -> str | None:
    """A payload in one line: masked, then cut at `longest` characters; one that is no JSON or too large, its size."""
    if found is None:
        return None
    if found.payload is None:
        return shown(found.content_type, found.size)
    text = encode_json(masked(found.payload, fields)).decode()
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


@contextmanager
def progress(what: str, *, total: int | None = None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal for work that may take long, told how much is done; elsewhere nothing."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def nothing(text: str = "nothing matched") -> None:
    """Say that there was nothing, and exit 1."""
    say(f"todoku: {text}", err=True)
    sys.exit(1)

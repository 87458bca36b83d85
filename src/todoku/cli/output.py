"""How commands print: tables for people, one JSON object per line for programs."""

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
from todoku.core.sealed import payload_placeholder
from todoku.engine.diagnostics.masked_json import masked
from todoku.store.messages import Preview

_PIPED_WIDTH: Final = 1000
_PREVIEW_LENGTH: Final = 60
_NARROWEST: Final = 6
_GAP: Final = 2
_SHRINKABLE: Final = frozenset({"topic", "destination", "reason", "error", "payload", "told", "name"})
"""Columns that are cut on a narrow terminal."""

_SPACES: Final = re.compile(r"(?:\r\n|[ \t\n])+")
"""White space between the words of a text, which may have several lines."""


def say(*lines: str, err: bool = False) -> None:
    """Prints the lines, or an empty one. Control characters are shown, so that the terminal does not obey them."""
    click.echo("\n".join(map(escape_controls, lines)), err=err)


def print_document(text: str) -> None:
    """Prints a text from todoku itself unchanged, with its tabs and newlines."""
    click.echo(text, nl=False)


def print_json(row: Mapping[str, object]) -> None:
    """Prints one object on one line."""
    click.echo(encode_json(row).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table as wide as the terminal, and cuts long texts to fit. Piped output is neither cut nor wrapped."""
    texts = [[Text(format_value(value)) for value in row] for row in rows]
    needed = [max(len(name), *(row[place].cell_len for row in texts), 0) for place, name in enumerate(columns)]
    gaps = _GAP * (len(columns) - 1)
    room = Console().width if sys.stdout.isatty() else _PIPED_WIDTH
    widths = fit_widths(needed, [name in _SHRINKABLE for name in columns], room - gaps)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, width in zip(columns, widths, strict=True):
        table.add_column(name, width=width, no_wrap=True, overflow="ellipsis")
    for row in texts:
        table.add_row(*row)
    Console(width=sum(widths) + gaps, markup=False, emoji=False, highlight=False).print(table, crop=False)


def fit_widths(needed: Sequence[int], shrinks: Sequence[bool], room: int) -> list[int]:
    """The width of each column. Columns that may shrink share the room that the others leave, narrowest first."""
    left = room - sum(width for width, may_shrink in zip(needed, shrinks, strict=True) if not may_shrink)
    widths = list(needed)
    places = sorted((place for place, may_shrink in enumerate(shrinks) if may_shrink), key=lambda place: needed[place])
    for number, place in enumerate(places):
        widths[place] = min(needed[place], max(_NARROWEST, left // (len(places) - number)))
        left -= widths[place]
    return widths


def format_value(value: object) -> str:
    """Formats a value for a table."""
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
    """Prints the rows as JSON objects or as a table."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, rows)


def preview(found: Preview | None, fields: Iterable[str], *, longest: int | None = _PREVIEW_LENGTH) -> str | None:
    """A payload on one line: masked, then cut at `longest` characters. If it is not JSON, or too large: its size."""
    if found is None:
        return None
    if found.payload is None:
        return payload_placeholder(found.content_type, found.size)
    text = encode_json(masked(found.payload, fields)).decode()
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


@contextmanager
def progress(what: str, *, total: int | None = None, quiet: bool = False) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal, and nothing elsewhere. Yields the function that updates it."""
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def exit_not_found(text: str = "nothing matched") -> None:
    """Prints that nothing was found, and exits 1."""
    say(f"todoku: {text}", err=True)
    sys.exit(1)

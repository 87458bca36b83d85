"""How commands print: screens that fit a terminal for people, one JSON object per line for programs.

On a terminal, tables are cut at its width, times are relative and statuses have colours. Piped output has every column,
whole values and absolute times.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec
from rich.cells import cell_len, set_cell_size

from todoku.core.control_characters import encode_json, escape_controls
from todoku.core.duration import relative_time
from todoku.core.sealed import payload_placeholder
from todoku.daemon.terminal import paint
from todoku.engine.diagnostics.masked_json import masked
from todoku.store.messages import Preview

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_PREVIEW_LENGTH: Final = 60
_SPACES: Final = re.compile(r"(?:\r\n|[ \t\n])+")
"""White space between the words of a text, which may have several lines."""

UTC_TIMES: Final = "todoku.utc"
"""Key in the metadata of click's context: whether times are absolute on a terminal, too (`--utc`)."""


def say(*lines: str, err: bool = False) -> None:
    """Prints the lines, or an empty one. Control characters are shown, so that the terminal does not obey them."""
    click.echo("\n".join(map(escape_controls, lines)), err=err)


def say_wrapped(text: str, *, indent: int, label: str = "", meaning: str = "") -> None:
    """Prints a text behind its label, as `wrap_labelled` gives it."""
    click.echo(wrap_labelled(label, text, indent=indent, meaning=meaning))


def wrap_labelled(label: str, text: str, *, indent: int, meaning: str = "") -> str:
    """A text behind its label, wrapped between words at the width of a terminal; piped, on one line.

    `meaning` gives the label its colour. A word that is longer than the line, such as an id, is not broken.
    """
    lines = [escape_controls(text)]
    if on_terminal():
        room = max(20, terminal_width() - indent)
        lines = textwrap.wrap(lines[0], room, break_long_words=False, break_on_hyphens=False) or [""]
    head = paint(f"{escape_controls(label):<{indent}}", meaning, sys.stdout)
    return "\n".join([head + lines[0], *(" " * indent + line for line in lines[1:])])


def say_event(at: datetime, what: str, text: str) -> None:
    """Prints one event on one line, cut at the width of a terminal, where its time is that of the local clock."""
    if not on_terminal():
        say(f"{format_value(at)}  {what:<10} {text}")
        return
    when = format_value(at) if _wants_utc() else at.astimezone().strftime("%H:%M:%S")
    head = f"{when}  {escape_controls(what):<10} "
    body = cut(escape_controls(text), max(_LEAST["told"], terminal_width() - len(head)))
    click.echo(f"{when}  {paint(f'{escape_controls(what):<10}', what, sys.stdout)} {body}")


def say_title(text: str) -> None:
    """Prints an empty line and the title of a part of a screen."""
    click.echo("\n" + paint(escape_controls(text), "bold", sys.stdout))


def print_document(text: str) -> None:
    """Prints a text from todoku itself unchanged, with its tabs and newlines."""
    click.echo(text, nl=False)


def print_json(row: Mapping[str, object]) -> None:
    """Prints one object on one line."""
    click.echo(encode_json(row).decode())


def terminal_width() -> int:
    """The number of columns of the terminal."""
    return shutil.get_terminal_size().columns


# --------------------------------------------------------------------------------------------------------- values


def format_value(value: object) -> str:
    """Formats a value for a table or a sentence; a time is absolute."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%SZ")
        case dict() | list():
            return encode_json(value).decode()
        case _:
            return escape_controls(_SPACES.sub(" ", str(value)).strip(" "))


def format_time(at: datetime) -> str:
    """A time as screens show it: `3 min ago` on a terminal, absolute if it is piped or with `--utc`."""
    if not on_terminal() or _wants_utc():
        return format_value(at)
    return relative_time((datetime.now(UTC) - at).total_seconds())


def _wants_utc() -> bool:
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(UTC_TIMES))


def pretty_json(value: object) -> list[str]:
    """The lines of a JSON value, indented."""
    text = msgspec.json.format(encode_json(value), indent=2).decode()
    return text.split("\n")


def preview(found: Preview | None, fields: Iterable[str], *, longest: int | None = _PREVIEW_LENGTH) -> str | None:
    """A payload on one line: masked, then cut at `longest` characters. If it is not JSON, or too large: its size."""
    if found is None:
        return None
    if found.payload is None:
        return payload_placeholder(found.content_type, found.size)
    text = encode_json(masked(found.payload, fields)).decode()
    return text if longest is None or len(text) <= longest else f"{text[: longest - 1]}…"


# --------------------------------------------------------------------------------------------------------- tables

_GAP: Final = "  "
ROUTE: Final = "topic → destination"
_LEAST: Final = {
    ROUTE: len(ROUTE), "topic": 12, "destination": 12, "reason": 8, "error": 20, "payload": 16, "told": 20, "name": 14,
    "when": 8, "scopes": 12, "key": 8, "reader": 12, "table": 12,
}  # fmt: skip
"""How narrow these columns may become. All others, such as ids, are never cut."""

_GROWING: Final = (
    ("error", "told"),
    (ROUTE, "destination", "topic", "name", "reason", "when", "scopes", "key", "reader", "table"),
)
_ENOUGH: Final = 32
"""Errors get this much first, before a payload has any; then names what they need, errors the rest, payloads what is
left."""

_FIRST_TO_LEAVE: Final = (
    *("payload", "first", "local", "started", "alive", "missed", "last", "last_used_at", "revoked_at", "created_at"),
    *("example", "queue", "tz", "created", "snapshots_done", "committed_at", "tables", "retained_bytes", "reader"),
)  # fmt: skip
"""Columns that leave a terminal that is too narrow for them, in this order."""

_KEPT: Final = frozenset({"id", "delivery", "error", "told"})
"""Columns that stay though every row has the same value."""


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, keep: Collection[str] = ()) -> None:
    """Prints a table. On a terminal it fits the width: columns that say nothing leave, `keep` excepted; texts are cut.

    Piped output has all columns, and is neither cut nor wrapped.
    """
    cells = [[format_time(one) if isinstance(one, datetime) else format_value(one) for one in row] for row in rows]
    if not on_terminal():
        _print_cells(columns, cells, [_needed(columns, cells, place) for place in range(len(columns))])
        return
    places, note = _telling(columns, cells, keep)
    room, needed, gone = terminal_width(), {at: _needed(columns, cells, at) for at in places}, []
    while (widths := fit_widths([columns[at] for at in places], [needed[at] for at in places], room)) is None:
        leaving = next(at for name in _FIRST_TO_LEAVE for at in places if columns[at] == name)
        places.remove(leaving)
        gone.append(columns[leaving])
    _print_cells([columns[at] for at in places], [[row[at] for at in places] for row in cells], widths)
    note += [f"no room for {', '.join(gone)}"] if gone else []
    if note:
        lines = textwrap.wrap(f"({'; '.join(note)})", room, break_long_words=False, break_on_hyphens=False)
        click.echo("\n".join(paint(line, "faint", sys.stdout) for line in lines))


def _needed(columns: Sequence[str], cells: Sequence[Sequence[str]], place: int) -> int:
    return max(len(columns[place]), *(cell_len(row[place]) for row in cells), 0)


def _telling(
    columns: Sequence[str], cells: Sequence[Sequence[str]], keep: Collection[str]
) -> tuple[list[int], list[str]]:
    """The places of the columns that say something, and what the others say of all rows at once."""
    places, same = [0], []
    for at, name in enumerate(columns[1:], start=1):
        values = {row[at] for row in cells}
        if name in keep or (name in _KEPT and values != {"-"}):
            places.append(at)
        elif values <= {"-", ""}:
            continue
        elif len(cells) > 1 and len(values) == 1:
            same.append(f"{name} {values.pop()}")
        else:
            places.append(at)
    return places, [f"all: {', '.join(same)}"] if same else []


def fit_widths(columns: Sequence[str], needed: Sequence[int], room: int) -> list[int] | None:
    """The width of each column; None: they do not fit, and one that may leave is among them."""
    widths = [min(width, _LEAST.get(name, width)) for name, width in zip(columns, needed, strict=True)]
    left = room - len(_GAP) * (len(columns) - 1) - sum(widths)
    errors, names = _GROWING
    if left < 0 and any(name in _FIRST_TO_LEAVE for name in columns):
        return None
    if "payload" in columns and any(
        name in errors and widths[at] + left < min(needed[at], _ENOUGH) for at, name in enumerate(columns)
    ):
        return None
    for growing, most in ((errors, _ENOUGH), (names, room), (errors, room), (columns, room)):
        places = sorted((at for at, name in enumerate(columns) if name in growing), key=needed.__getitem__)
        for number, at in enumerate(places):
            more = min(needed[at], most) - widths[at]
            share = max(0, min(more, left // (len(places) - number)))
            widths[at], left = widths[at] + share, left - share
    return widths


def _print_cells(columns: Sequence[str], cells: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    head = _GAP.join(f"{cut(name, width):<{width}}" for name, width in zip(columns, widths, strict=True))
    lines = [paint(head.rstrip(), "bold", sys.stdout)]
    for row in cells:
        shown = [_cell(name, text, width) for name, text, width in zip(columns, row, widths, strict=True)]
        lines.append(_GAP.join(shown).rstrip())
    click.echo("\n".join(lines))


def _cell(column: str, text: str, width: int) -> str:
    shown = cut(text, width)
    meaning = text.rpartition(" ")[2] if column in _COLOURED else "faint" if text == "-" else ""
    return paint(shown, meaning, sys.stdout) + " " * (width - cell_len(shown))


_COLOURED: Final = frozenset({"status", "what"})
"""Columns whose values name a status, as `aborted` or `attempt 1 failed` do."""


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits the width, with an ellipsis."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def show_rows(columns: Sequence[str], rows: Iterable[Sequence[object]], *, as_json: bool) -> None:
    """Prints the rows as JSON objects or as a table."""
    if as_json:
        for row in rows:
            print_json(dict(zip(columns, row, strict=True)))
    else:
        print_table(columns, rows)


# ------------------------------------------------------------------------------------------------------- progress


@contextmanager
def progress(
    what: str, *, total: Callable[[], int | None] = lambda: None, quiet: bool = False
) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on a terminal, and nothing elsewhere. Yields the function that updates it.

    `total` counts what is to be done; it is called only if there is a bar. None: that is not known.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with progress_bar(what, total()) as (bar, task):
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def progress_bar(what: str, total: int | None) -> Iterator[tuple[Progress, TaskID]]:
    """Shows a bar on standard error: how much of the total is done, and for how long it has run."""
    from rich.console import Console  # noqa: PLC0415 - slow to import, and few commands have a bar
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar, bar.add_task(what, total=total)


def exit_not_found(text: str = "nothing matched") -> None:
    """Prints that nothing was found, and exits 1."""
    say(f"todoku: {text}", err=True)
    sys.exit(1)

"""Named queries: SQL is written as SQL, in `.sql` files, and looked up by name.

There is one file for each noun and database: `claims.py` has its queries in `sqlite/claims.sql` and
`postgres/claims.sql`, under the same names. A file is blocks of `-- name: x`, a comment that says why the query is
safe, and the query. `:name` is a bound parameter, `{name}` the text of another block, and `todoku_` the prefix of every
table, which `qualify` extends by a schema.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Literal, TypeVar

import msgspec

# ------------------------------------------------------------
# SQL statements as values, so that the same work runs on todoku's connection or on a caller's.

T = TypeVar("T")
Value = None | bool | int | float | str | bytes | list[int] | list[str]
Row = tuple[object, ...]


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement with `:name` parameters, and one mapping of values or many."""

    sql: str
    values: Mapping[str, Value] | Sequence[Mapping[str, Value]]
    alone: bool = False
    """Whether it is all that its transaction does, if that is not a caller's: it may be sent with the commit."""
    ahead: bool = False
    """Whether the work goes on before the database has answered. Its rows are added to the list that the work receives,
    and all are there when the next statement that is not ahead has returned."""


Steps = Generator[Statement, list[Row], T]
"""Work on a connection: a generator that yields statements, receives the rows of each, and returns T.

The work itself does no I/O, so `store.run`, `join.run` and `join.run_async` can drive it on any driver.
"""


ParamStyle = Literal["named", "pyformat", "format", "dollar"]

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)
_PARAMETER = re.compile(r"""'[^']*'|"[^"]*"|(?<![:\w]):([a-z]\w*)""")  # or a quoted string: no parameter
_FRAGMENT = re.compile(r"\{(\w+)\}")
_PREFIX = re.compile(r"(?<![\w.])todoku_(?=\w)")


def parse(text: str) -> dict[str, str]:
    """Returns the blocks of a `.sql` file by name, without comments and with fragments expanded."""
    pieces = _NAME.split(text)[1:]
    blocks = {name: _COMMENT.sub("", block).strip() for name, block in zip(pieces[::2], pieces[1::2], strict=True)}
    return {name: _expand(block, blocks) for name, block in blocks.items()}


def _expand(block: str, blocks: dict[str, str]) -> str:
    return _FRAGMENT.sub(lambda found: _expand(blocks[found[1]], blocks), block)


def qualify(sql: str, schema: str | None) -> str:
    """Returns `sql` with every todoku table and function qualified by `schema`."""
    if schema is None:
        return sql
    name = f"{quote(schema)}.todoku_"
    return _PREFIX.sub(lambda found: name.replace("'", "''") if sql[found.start() - 1] == "'" else name, sql)


def quote(identifier: str) -> str:
    """Returns `identifier` quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


@lru_cache(maxsize=1024)
def parameters(sql: str) -> tuple[str, ...]:
    """The names of the bound parameters, in order of appearance, repeated ones too."""
    return tuple(name for name in _PARAMETER.findall(sql) if name)


@lru_cache(maxsize=1024)
def numbered_parameters(sql: str) -> tuple[str, ...]:
    """The names of the bound parameters in the order of their numbers ($1, $2 …), each once."""
    return tuple(dict.fromkeys(parameters(sql)))


@lru_cache(maxsize=1024)
def restyle(sql: str, style: ParamStyle) -> str:
    """Returns `sql` with its parameters in the style of a driver."""
    if style == "named":
        return sql
    if style == "pyformat":
        return _PARAMETER.sub(lambda found: f"%({found[1]})s" if found[1] else found[0], sql.replace("%", "%%"))
    if style == "format":
        return _PARAMETER.sub(lambda found: "%s" if found[1] else found[0], sql.replace("%", "%%"))
    places = {name: f"${number}" for number, name in enumerate(numbered_parameters(sql), 1)}
    return _PARAMETER.sub(lambda found: places[found[1]] if found[1] else found[0], sql)


def load(package: str, schema: str | None = None) -> dict[str, str]:
    """Returns the queries of a backend by name, with `:name` parameters."""
    return {name: qualify(sql, schema) for name, sql in parse(query_text(package)).items()}


def query_text(package: str) -> str:
    """All `.sql` files of a backend as one text: a block may use fragments of another file."""
    found = sorted(
        (file for file in files(package).iterdir() if file.name.endswith(".sql")), key=lambda file: file.name
    )
    return "\n".join(file.read_text("utf-8") for file in found)

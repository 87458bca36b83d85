"""Makes Alembic ignore todoku's tables.

    # env.py
    context.configure(…, include_name=include_name)

To publish in a session or connection of SQLAlchemy, pass it as `tx=`; nothing here is needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "todoku_"


def include_name(name: str | None, type_: str, parent_names: Mapping[str, Any]) -> bool:
    """For Alembic's `include_name`: False for todoku's tables, which Alembic then does not read.

    Without it, autogenerate finds tables that are in none of your models, and writes a migration that drops them.
    """
    table = name if type_ == "table" else parent_names.get("table_name")
    return table is None or not str(table).startswith(_PREFIX)


def include_object(obj: Any, name: str | None, type_: str, _reflected: bool, _compare_to: Any) -> bool:
    """For Alembic's `include_object`, if your `include_name` does something else: False for todoku's tables."""
    table = name if type_ == "table" else getattr(getattr(obj, "table", None), "name", None)
    return table is None or not str(table).startswith(_PREFIX)

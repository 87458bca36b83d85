"""todoku's tables beside yours: Alembic leaves them alone.

    # env.py
    context.configure(…, include_name=include_name)

To join a session or connection nothing is needed from here: pass it as `tx=`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "todoku_"


def include_name(name: str | None, type_: str, parent_names: Mapping[str, Any]) -> bool:
    """For Alembic's `include_name`: False for what is todoku's, which is then not even read.

    Without it autogenerate finds tables that are in no model of yours, and writes a migration that drops them.
    """
    table = name if type_ == "table" else parent_names.get("table_name")
    return table is None or not str(table).startswith(_PREFIX)


def include_object(obj: Any, name: str | None, type_: str, _reflected: bool, _compare_to: Any) -> bool:
    """For Alembic's `include_object`, where `include_name` is taken: False for what is todoku's."""
    table = name if type_ == "table" else getattr(getattr(obj, "table", None), "name", None)
    return table is None or not str(table).startswith(_PREFIX)

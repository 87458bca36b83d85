"""The roles of people who use the dashboard, and the scope of the HTTP API that each of them has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, get_args

from todoku.core.errors import InvalidAct
from todoku.core.scope import Scope, allows

Role = Literal["viewer", "operator", "admin"]
"""A viewer reads, an operator also acts on deliveries, an admin may do everything."""

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""From the least to the most."""

SCOPE_OF: Final[dict[Role, Scope]] = {"viewer": "read", "operator": "operate", "admin": "admin"}


def role(given: object) -> Role:
    """Returns the role of this name; raises InvalidAct."""
    for each in ROLES:
        if each == given:
            return each
    raise InvalidAct(f"role cannot be {given!r}", hint="viewer, operator or admin")


def highest_role(given: Iterable[Role]) -> Role | None:
    """Returns the role among these that may do the most; None if there is none."""
    found = frozenset(given)
    return next((each for each in reversed(ROLES) if each in found), None)


def role_of_scopes(scopes: Iterable[str]) -> Role | None:
    """Returns the role that a token with these scopes has in the dashboard; None if it may not even read."""
    held = tuple(scopes)
    return highest_role(each for each in ROLES if allows(held, SCOPE_OF[each]))

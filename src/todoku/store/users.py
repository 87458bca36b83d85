"""People who sign in to the dashboard with a password, of which only a hash is stored."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

from todoku.core.errors import InvalidAct, NotThere
from todoku.core.role import Role, role
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.database import Database, Tx

_PAGE: Final = 1000


class UserRow(msgspec.Struct, frozen=True, kw_only=True):
    """A user with the hash of the password."""

    name: str
    hash: str
    role: Role
    disabled: bool
    created_at: datetime
    changed_at: datetime

    def __repr__(self) -> str:
        return f"<UserRow {self.name!r} {self.role}>"


class UserChange(msgspec.Struct, frozen=True, kw_only=True):
    """What to change of a user, and the name of the act in the audit. None: it stays."""

    action: str
    hash: str | None = None
    role: Role | None = None
    disabled: bool | None = None


class UserStore:
    """The users of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, name: str, hash: str, role: Role, signed: Signed) -> UserRow:
        """Stores a user. InvalidAct: the name is taken."""

        def work(tx: Tx) -> UserRow:
            if not (rows := tx.rows("add_user", name=name, hash=hash, role=role)):
                raise InvalidAct(f"there is a user {name!r} already", hint="`todoku users list` shows them")
            tx.rows("audit", by=signed.by, why=signed.why, action=f"create as {role}", targets=[f"user:{name}"])
            return _row(rows[0])

        return self._database.write("user", work)

    def by_name(self, name: str) -> UserRow | None:
        """The user of this name, disabled or not."""
        return next((_row(row) for row in self._database.read(lambda tx: tx.rows("user", name=name))), None)

    def rows(self, *, after: str = "", limit: int = _PAGE) -> tuple[UserRow, ...]:
        """Users by name, those after a name."""
        return tuple(map(_row, self._database.read(lambda tx: tx.rows("users", after=after, most=limit))))

    def change(self, name: str, change: UserChange, signed: Signed) -> UserRow:
        """Changes a user and ends all of that user's sessions, in one commit. NotThere: there is none."""

        def work(tx: Tx) -> UserRow:
            rows = tx.rows("change_user", name=name, hash=change.hash, role=change.role, disabled=change.disabled)
            if not rows:
                raise NotThere(f"there is no user {name!r}", hint="`todoku users list` shows them")
            tx.rows("end_sessions", kind="user", subject=name)
            tx.rows("audit", by=signed.by, why=signed.why, action=change.action, targets=[f"user:{name}"])
            return _row(rows[0])

        return self._database.write("user", work)


def _row(row: tuple[str, str, str, bool, float, float]) -> UserRow:
    name, hash, named, disabled, created, changed = row
    return UserRow(
        name=name,
        hash=hash,
        role=role(named),
        disabled=bool(disabled),
        created_at=moment(created),
        changed_at=moment(changed),
    )

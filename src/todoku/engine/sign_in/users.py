"""Users of the dashboard: create, list, change. Each change ends the user's sessions, and is audited."""

from __future__ import annotations

import unicodedata
from datetime import datetime
from typing import Final

import msgspec

from todoku.core.errors import InvalidAct, InvalidMessage, NotThere
from todoku.core.role import Role, role
from todoku.engine.publish import check_text
from todoku.engine.sign_in.passwords import check_password, hash_password, verify_password
from todoku.store.audit import Signed
from todoku.store.sessions import Person
from todoku.store.store import Store
from todoku.store.users import UserChange, UserRow

_LONGEST_NAME: Final = 255


class User(msgspec.Struct, frozen=True, kw_only=True):
    """A user, without the hash of the password."""

    name: str
    role: Role
    disabled: bool
    created_at: datetime
    changed_at: datetime


def create_user(store: Store, signed: Signed, *, name: str, password: str, role_name: object) -> User:
    """Creates a user. InvalidAct: the name is taken, or the password too short."""
    named = clean_name(name)
    check_password(password, named)
    return _user(store.users.add(named, hash_password(password), role(role_name), signed))


def list_users(store: Store) -> tuple[User, ...]:
    """Returns the first thousand users by name, disabled ones too."""
    return tuple(map(_user, store.users.rows()))


def find_user(store: Store, name: str) -> User:
    """Returns the user of this name. NotThere: there is none."""
    if (found := store.users.by_name(clean_name(name))) is None:
        raise NotThere(f"there is no user {name!r}", hint="`todoku users list` shows them")
    return _user(found)


def set_password(store: Store, signed: Signed, *, name: str, password: str) -> User:
    """Gives a user another password."""
    check_password(password, name)
    return _change(store, signed, name, UserChange(action="change password", hash=hash_password(password)))


def set_role(store: Store, signed: Signed, *, name: str, role_name: object) -> User:
    """Gives a user another role."""
    given = role(role_name)
    return _change(store, signed, name, UserChange(action=f"change role to {given}", role=given))


def set_disabled(store: Store, signed: Signed, *, name: str, disabled: bool) -> User:
    """Disables a user, who is signed out everywhere and cannot sign in, or enables one again."""
    return _change(store, signed, name, UserChange(action="disable" if disabled else "enable", disabled=disabled))


def verify_user(store: Store, name: str, password: str) -> Person | None:
    """Returns the person of this name and password. None: unknown, disabled or wrong, each in the same time.

    It blocks, and takes a core and 46 MiB for a while: the caller limits how many run at once.
    """
    try:
        found = store.users.by_name(clean_name(name))
    except (InvalidAct, InvalidMessage):
        found = None
    usable = found if found is not None and not found.disabled else None
    if not verify_password(None if usable is None else usable.hash, password) or usable is None:
        return None
    return Person(kind="user", subject=usable.name, name=usable.name, role=usable.role)


def clean_name(name: str) -> str:
    """Returns the name as it is stored (NFC, without spaces around it); raises unless it can be shown."""
    named = unicodedata.normalize("NFC", name).strip()
    check_text(named, "name of a user", _LONGEST_NAME)
    if not named.isprintable():
        raise InvalidAct(f"a user cannot be called {named!r}", hint="no line breaks or invisible characters")
    return named


def _change(store: Store, signed: Signed, name: str, change: UserChange) -> User:
    return _user(store.users.change(clean_name(name), change, signed))


def _user(row: UserRow) -> User:
    return User(
        name=row.name, role=row.role, disabled=row.disabled, created_at=row.created_at, changed_at=row.changed_at
    )

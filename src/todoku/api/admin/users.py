"""Users of the dashboard: list, create, change. Admins only."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Reasoned, signed
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.core.role import Role
from todoku.engine.sign_in import users as engine
from todoku.engine.sign_in.users import User

UserName = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
UserPassword = Annotated[str, Meta(min_length=12, max_length=1024)]


class Users(msgspec.Struct, frozen=True):
    """Users by name, the first thousand, without their passwords."""

    items: tuple[User, ...]


class ByUserName(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The user that the path names."""

    name: UserName


class NewUser(Reasoned, frozen=True, kw_only=True):
    """The name, the password and the role of a new user."""

    name: UserName
    password: UserPassword
    role: Role = "viewer"


class UserEdit(Reasoned, frozen=True, kw_only=True):
    """What to change of a user: exactly one of role, disabled and password."""

    role: Role | None = None
    disabled: bool | None = None
    password: UserPassword | None = None


@operation("GET", "/users", access="admin")
def list_users(context: RequestContext) -> Users:
    """Lists the users of the dashboard."""
    return Users(engine.list_users(context.store))


@operation("POST", "/users", access="admin", status=201)
def create_user(context: RequestContext, body: NewUser, by: str) -> User:
    """Creates a user of the dashboard."""
    return engine.create_user(
        context.store, signed(by, body), name=body.name, password=body.password, role_name=body.role
    )


@operation("PATCH", "/users/{name:path}", access="admin")
def change_user(context: RequestContext, where: ByUserName, body: UserEdit, by: str) -> User:
    """Changes a user's role or password, or disables the user. The user is signed out everywhere."""
    store, signature = context.store, signed(by, body)
    match (body.role, body.disabled, body.password):
        case (str() as role, None, None):
            return engine.set_role(store, signature, name=where.name, role_name=role)
        case (None, bool() as disabled, None):
            return engine.set_disabled(store, signature, name=where.name, disabled=disabled)
        case (None, None, str() as password):
            return engine.set_password(store, signature, name=where.name, password=password)
        case _:
            raise Refused(422, "the body is not acceptable: give exactly one of role, disabled and password")


OPERATIONS: Final = (list_users, create_user, change_user)

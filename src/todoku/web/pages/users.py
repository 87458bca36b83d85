"""People who sign in with a password: create, change, disable."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from todoku.api.admin import users as admin
from todoku.api.problem import Refused
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/users", access="admin")
def users(view: View) -> PageAnswer:
    """Shows all users."""
    return view.answer("users.html", admin.list_users.run(view.context))


@page("POST", "/users", access="admin")
def create_user(view: View) -> Redirect:
    """Creates a user."""
    fields = {name: view.form.get(name, "") for name in ("name", "password", "role")}
    body = _convert({**fields, "why": view.signed().why}, admin.NewUser)
    created = admin.create_user.run(view.context, body, view.viewer.name)
    return view.redirect("/users", "{name} can sign in now", name=created.name)


@page("POST", "/users/role", access="admin")
def change_role(view: View) -> Redirect:
    """Gives a user another role."""
    return _change(view, role=view.form.get("role", ""))


@page("POST", "/users/password", access="admin")
def change_password(view: View) -> Redirect:
    """Gives a user another password."""
    return _change(view, password=view.form.get("password", ""))


@page("POST", "/users/disabled", access="admin")
def change_disabled(view: View) -> Redirect:
    """Disables a user, or enables one again."""
    return _change(view, disabled={"yes": True, "no": False}.get(view.form.get("disabled", "")))


def _change(view: View, **what: object) -> Redirect:
    body = _convert({**what, "why": view.signed().why}, admin.UserEdit)
    where = _convert({"name": view.form.get("name", "")}, admin.ByUserName)
    changed = admin.change_user.run(view.context, where, body, view.viewer.name)
    return view.redirect("/users", "{name} was changed and is signed out", name=changed.name)


def _convert(values: dict[str, Any], kind: Any) -> Any:
    """Returns the parameters of the operation. Raises Refused (422), which quotes no password."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the form is not acceptable: {error}") from None


PAGES: Final = (users, create_user, change_role, change_password, change_disabled)

"""The viewer's own page: name, role, and signing out."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.core.role import Role
from todoku.web.page import page
from todoku.web.view import PageAnswer, View


class Account(msgspec.Struct, frozen=True):
    """What the dashboard knows of its viewer."""

    name: str
    role: Role | None
    has_session: bool
    read_only: bool


@page("GET", "/account", access="read")
def account(view: View) -> PageAnswer:
    """Shows who is signed in, and how to sign out."""
    viewer = view.viewer
    return view.answer("account.html", Account(viewer.name, viewer.role, viewer.has_session, viewer.read_only))


PAGES: Final = (account,)

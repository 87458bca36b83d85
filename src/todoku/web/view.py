"""The view of one request: what a page's function gets, and what it returns."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import msgspec

from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.core.scope import Scope
from todoku.engine import operations
from todoku.store.audit import Signed
from todoku.web.language import translate
from todoku.web.viewer import Viewer


class PageAnswer(msgspec.Struct, frozen=True):
    """A page: `value` rendered by a template, or as JSON if the request accepts that. `more` is for the template."""

    template: str
    value: Any
    more: dict[str, Any]
    status: int = 200


class Redirect(msgspec.Struct, frozen=True):
    """Sends the browser to another page of the dashboard, which shows the line `flash` once."""

    path: str
    flash: str = ""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A request to a page. `form` has the fields of a POST, `choices` all values of fields that are given often."""

    context: RequestContext
    viewer: Viewer
    language: str
    path: dict[str, str]
    query: dict[str, str]
    form: dict[str, str] = {}
    choices: dict[str, list[str]] = {}
    prefix: str = ""
    """The path below which the dashboard is mounted."""

    def answer(self, template: str, value: Any, *, status: int = 200, **more: Any) -> PageAnswer:
        """Returns the page: the template gets `value` and `more`."""
        return PageAnswer(template, value, more, status)

    def redirect(self, path: str, flash: str = "", **values: object) -> Redirect:
        """Returns a redirect to a path of the dashboard; `flash` is translated."""
        return Redirect(path, translate(self.language, flash, **values) if flash else "")

    def back(self, otherwise: str, flash: str = "", **values: object) -> Redirect:
        """Like `redirect`, to the page that the form names in its field `back`, if that is one of the dashboard."""
        return self.redirect(own_path(self.form.get("back", "")) or otherwise, flash, **values)

    def can(self, scope: Scope) -> bool:
        """Returns whether the viewer has this scope."""
        return self.viewer.can(scope)

    def signed(self) -> Signed:
        """Returns the author and the reason of an act: the viewer, and the form's field `why`."""
        return operations.sign(self.viewer.name, self.form.get("why", ""))

    def number(self, name: str) -> int:
        """Returns a number of the path. Raises Refused (404) if it is none that a delivery can have."""
        text = self.path[name]
        if not (text.isascii() and text.isdecimal() and len(text) < 19):
            raise Refused(404, f"there is no {text!r}", hint="deliveries have numbers")
        return int(text)


def own_path(text: str) -> str | None:
    """Returns a path of this site, or None for anything that leads elsewhere (`//evil`, `https:…`, `/\\evil`)."""
    parts = urlsplit(text)
    is_own = text.startswith("/") and not text.startswith(("//", "/\\")) and not (parts.scheme or parts.netloc)
    return text if is_own and text.isprintable() and "\\" not in text else None

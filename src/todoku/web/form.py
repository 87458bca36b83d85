"""Forms: the fields of a POST as the typed parameters of an admin operation."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from todoku.api.problem import Refused
from todoku.web.view import View

T = TypeVar("T")


def parse_form(view: View, kind: type[T], *names: str) -> T:
    """Returns these fields of the form as parameters; an empty one counts as left out. Raises Refused (422)."""
    given = {name: text for name in names if (text := view.form.get(name, "").strip())}
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the form is not acceptable: {error}", hint="go back and correct it") from None

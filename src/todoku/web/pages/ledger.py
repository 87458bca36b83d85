"""The ledger: whether a key was used, and what came of it."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.operation import convert_parameters
from todoku.api.admin.statistics import LedgerQuery, get_ledger_entry
from todoku.core.errors import NotThere
from todoku.web.page import page
from todoku.web.view import PageAnswer, View


@page("GET", "/ledger", access="read")
def ledger(view: View) -> PageAnswer:
    """Shows the entry of a key in a scope, once both are given."""
    given = {name: view.query.get(name, "").strip() for name in ("scope", "key")}
    if not any(given.values()):
        return view.answer("ledger.html", None, given=given)
    query = convert_parameters(given.items(), LedgerQuery, "query")
    try:
        found = get_ledger_entry.run(view.context, query)
    except NotThere:
        return view.answer("ledger.html", None, given=given, status=404)
    return view.answer("ledger.html", found, given=given)


PAGES: Final = (ledger,)

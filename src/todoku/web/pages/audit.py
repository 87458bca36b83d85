"""The audit: who did what, and why."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

from todoku.api.admin.operation import convert_parameters
from todoku.api.admin.statistics import AuditQuery, list_audit
from todoku.web.page import page
from todoku.web.view import PageAnswer, View

_FIELDS: Final = ("by", "action", "target")


@page("GET", "/audit", access="read")
def audit(view: View) -> PageAnswer:
    """Shows one page of the audit, newest first."""
    given = {name: text for name in (*_FIELDS, "cursor", "limit") if (text := view.query.get(name, "").strip())}
    found = list_audit.run(view.context, convert_parameters(given.items(), AuditQuery, "query"))
    following = None if found.next is None else "/audit?" + urlencode(given | {"cursor": found.next})
    return view.answer("audit.html", found, given=given, following=following, fields=_FIELDS)


PAGES: Final = (audit,)

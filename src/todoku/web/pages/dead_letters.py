"""Dead letters: in groups by cause, and one by one; what a viewer selects is run again or deleted."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.api.admin.deliveries import DeadGroups, DeadQuery, GroupQuery, list_dead_letters, list_reasons
from todoku.store.deliveries import Page as DeliveryPage
from todoku.web.page import page
from todoku.web.pages.acts import selection_of
from todoku.web.view import PageAnswer, View


class DeadLetterList(msgspec.Struct, frozen=True):
    """Dead letters in groups (null if a filter is given), and one page of them."""

    groups: DeadGroups | None
    letters: DeliveryPage


@page("GET", "/dead-letters", access="read")
def dead_letters(view: View) -> PageAnswer:
    """Shows groups by reason, destination and fingerprint, and the letters that the URL's filter selects."""
    query = selection_of(view.query, DeadQuery)
    chosen = {name: value for name, value in view.query.items() if name in FILTERS}
    groups = None if chosen else list_reasons.run(view.context, GroupQuery(by_fingerprint=True))
    letters = list_dead_letters.run(view.context, query)
    return view.answer(
        "dead_letters.html", DeadLetterList(groups, letters), chosen=chosen, fields=FIELDS, cursor=query.cursor
    )  # fmt: skip


FIELDS: Final = {
    "reason": "Reason",
    "destination": "Destination",
    "topic": "Topic",
    "queue": "Queue",
    "key": "Key",
    "label": "Label",
}
"""The fields of the filter form, and their English names."""

FILTERS: Final = (*FIELDS, "fingerprint", "message_id", "since", "until")

PAGES: Final = (dead_letters,)

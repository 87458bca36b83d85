"""The first page: how it goes, and what needs a look."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.api.admin.overview import OverviewQuery, get_overview
from todoku.api.problem import Refused
from todoku.engine.diagnostics.overview import Overview
from todoku.web.charts import Band
from todoku.web.page import page
from todoku.web.view import PageAnswer, View


@page("GET", "/", access="read", for_all=True)
def overview(view: View) -> PageAnswer:
    """Shows what arrives, ends, waits and fails."""
    try:
        query = msgspec.convert({"per": view.query.get("per", "minute")}, OverviewQuery)
    except msgspec.ValidationError:
        raise Refused(422, "`per` cannot be that", hint="?per=minute or ?per=hour") from None
    value = get_overview.run(view.context, query)
    condition = None if view.context.condition is None else view.context.condition()
    return view.answer(
        "overview.html", value, bands=_bands(value), arrived=_arrived(value), titles=_titles(value), condition=condition
    )


def _bands(value: Overview) -> tuple[Band, ...]:
    return (
        Band("succeeded", "succeeded", tuple(flow.succeeded for flow in value.flows)),
        Band("retried", "failed", tuple(flow.retried for flow in value.flows)),
        Band("failed", "aborted", tuple(flow.failed for flow in value.flows)),
    )


def _arrived(value: Overview) -> Band:
    return Band("arrived", "arrived", tuple(flow.arrived for flow in value.flows))


def _titles(value: Overview) -> tuple[str, ...]:
    shown = "%H:%M UTC" if value.per == "minute" else "%m-%d %H:%M UTC"
    return tuple(flow.at.strftime(shown) for flow in value.flows)


PAGES: Final = (overview,)

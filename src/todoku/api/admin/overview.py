"""The overview of the database."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Parameters
from todoku.api.request_context import RequestContext
from todoku.core.msgspec_warmup import warm_up
from todoku.engine.diagnostics.overview import Overview, overview
from todoku.engine.diagnostics.shared_numbers import Per


class OverviewQuery(Parameters, frozen=True, kw_only=True):
    """The stretches of the chart: the last 60 minutes, or the last 48 hours."""

    per: Per = "minute"


warm_up(OverviewQuery)


@operation("GET", "/overview", access="read")
def get_overview(context: RequestContext, query: OverviewQuery) -> Overview:
    """Returns arrivals and ends over time, the backlog and its ETA, durations, and what needs a look."""
    return overview(context.numbers, context.settings, query.per)


OPERATIONS: Final = (get_overview,)

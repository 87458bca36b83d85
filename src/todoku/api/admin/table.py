"""The table of all operations of the admin API, from which its routes and its OpenAPI document are built."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from todoku.api.admin import (
    acts,
    captures,
    deliveries,
    diagnostics,
    endpoints,
    message_acts,
    messages,
    overview,
    projections,
    queues,
    runs,
    schedules,
    search,
    statistics,
    tokens,
    users,
    workers,
)
from todoku.api.admin.openapi import document
from todoku.api.admin.operation import Operation, operation, route
from todoku.api.auth import GuardedRoute
from todoku.api.request_context import RequestContext


@operation("GET", "/openapi.json", access="open")
def get_openapi() -> dict[str, Any]:
    """Returns this OpenAPI document."""
    return openapi_document()


TABLE: Final[tuple[Operation, ...]] = (
    *overview.OPERATIONS,
    *messages.OPERATIONS,
    *message_acts.OPERATIONS,
    *deliveries.OPERATIONS,
    *deliveries.DEAD_LETTER_OPERATIONS,
    *acts.OPERATIONS,
    *search.OPERATIONS,
    *queues.OPERATIONS,
    *schedules.OPERATIONS,
    *runs.OPERATIONS,
    *captures.OPERATIONS,
    *projections.OPERATIONS,
    *endpoints.OPERATIONS,
    *workers.OPERATIONS,
    *statistics.OPERATIONS,
    *diagnostics.OPERATIONS,
    *tokens.OPERATIONS,
    *users.OPERATIONS,
    get_openapi,
)


@cache
def openapi_document() -> dict[str, Any]:
    """Returns the OpenAPI document; it is built once."""
    return document(TABLE)


def admin_routes(context: RequestContext) -> list[GuardedRoute]:
    """Returns the routes of the admin API."""
    return [route(each, context) for each in TABLE]

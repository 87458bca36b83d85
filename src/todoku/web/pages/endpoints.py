"""Endpoints: how destinations and hosts do, URL groups with enable and disable, and the rotation of signing keys."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.api.admin.endpoints import (
    EndpointBody,
    EndpointsQuery,
    disable_endpoint,
    enable_endpoint,
    list_endpoints,
    list_groups,
    rotate_signing_keys,
)
from todoku.api.admin.parameters import Reasoned
from todoku.api.problem import Refused
from todoku.web.form import parse_form
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/endpoints", access="read")
def endpoints(view: View) -> PageAnswer:
    """Shows destinations and URL groups."""
    search = view.query.get("search", "").strip()
    try:
        query = msgspec.convert({"search": search} if search else {}, EndpointsQuery)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the search is not acceptable: {error}", hint="search for a part of a name") from None
    groups = list_groups.run(view.context).items
    rotatable = view.context.settings.signing_keys is None
    value = list_endpoints.run(view.context, query)
    return view.answer("endpoints.html", value, groups=groups, search=search, rotatable=rotatable)


@page("POST", "/endpoints/enable", access="operate")
def enable(view: View) -> Redirect:
    """Enables an endpoint of a URL group."""
    body = parse_form(view, EndpointBody, "url", "group", "why")
    enable_endpoint.run(view.context, body, view.viewer.name)
    return view.back("/endpoints", "{url} is enabled", url=body.url)


@page("POST", "/endpoints/disable", access="operate")
def disable(view: View) -> Redirect:
    """Disables an endpoint of a URL group."""
    body = parse_form(view, EndpointBody, "url", "group", "why")
    disable_endpoint.run(view.context, body, view.viewer.name)
    return view.back("/endpoints", "{url} is disabled", url=body.url)


@page("POST", "/endpoints/rotate", access="admin")
def rotate(view: View) -> PageAnswer:
    """Rotates the signing keys, and shows them once."""
    keys = rotate_signing_keys.run(view.context, parse_form(view, Reasoned, "why"), view.viewer.name)
    return view.answer("signing_keys.html", keys)


PAGES: Final = (endpoints, enable, disable, rotate)

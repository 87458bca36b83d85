"""URL groups and their endpoints: list, enable, disable."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Reasoned, Text, signed
from todoku.api.admin.shown_requests import masked_headers
from todoku.api.request_context import RequestContext
from todoku.core.address_guard import check_url
from todoku.engine.http import url_groups
from todoku.engine.http.url_groups import Group


class Groups(msgspec.Struct, frozen=True):
    """URL groups with their endpoints, by name. Values of sensitive headers are replaced by `***`."""

    items: tuple[Group, ...]


class EndpointBody(Reasoned, frozen=True, kw_only=True):
    """An endpoint by its URL. Without `group`: in every group that contains it."""

    url: Text
    group: Text | None = None


class EndpointSet(msgspec.Struct, frozen=True, kw_only=True):
    """The new state of an endpoint. `changed`: whether an endpoint had another state before."""

    url: str
    group: str | None
    enabled: bool
    changed: bool


@operation("GET", "/groups", access="read")
def list_groups(context: RequestContext) -> Groups:
    """Lists URL groups with their endpoints."""
    fields = frozenset(context.settings.mask_fields)
    found = url_groups.list_groups(context.store)
    return Groups(tuple(msgspec.structs.replace(one, headers=masked_headers(one.headers, fields)) for one in found))


@operation("POST", "/endpoints/enable", access="operate")
def enable_endpoint(context: RequestContext, body: EndpointBody, by: str) -> EndpointSet:
    """Enables an endpoint, from the next publish on."""
    url = check_url(body.url)
    changed = url_groups.enable(context.store, url, signed(by, body), group=body.group)
    return EndpointSet(url=url, group=body.group, enabled=True, changed=changed)


@operation("POST", "/endpoints/disable", access="operate")
def disable_endpoint(context: RequestContext, body: EndpointBody, by: str) -> EndpointSet:
    """Disables an endpoint: messages published to its group become dead letters there."""
    url = check_url(body.url)
    changed = url_groups.disable(context.store, url, body.why, signed(by, body), group=body.group)
    return EndpointSet(url=url, group=body.group, enabled=False, changed=changed)


OPERATIONS: Final = (list_groups, enable_endpoint, disable_endpoint)

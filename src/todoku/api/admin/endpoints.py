"""Destinations and hosts with their health; URL groups and their endpoints: list, enable, disable; signing keys."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Parameters, Reasoned, Text, signed
from todoku.api.admin.shown_requests import masked_headers
from todoku.api.request_context import RequestContext
from todoku.core.address_guard import check_url
from todoku.core.msgspec_warmup import warm_up
from todoku.engine.diagnostics.endpoint_health import EndpointHealth, endpoint_health, needs_look_first
from todoku.engine.http import signing_keys, url_groups
from todoku.engine.http.url_groups import Group


class EndpointsQuery(Parameters, frozen=True, kw_only=True):
    """Selects destinations whose name contains `search`."""

    search: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=500, description="The largest number of items to return.")] = 100


warm_up(EndpointsQuery)


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Destinations and hosts: those with an open breaker first, then those that fail. `total`: with those left out."""

    items: tuple[EndpointHealth, ...]
    total: int


class SigningKeyPair(msgspec.Struct, frozen=True, kw_only=True):
    """The keys in force, for the receivers: they try the current one, then the next."""

    current: str
    next: str


class Groups(msgspec.Struct, frozen=True):
    """URL groups with their endpoints, by name. Values of sensitive headers are replaced by `***`."""

    items: tuple[Group, ...]


class EndpointBody(Reasoned, frozen=True, kw_only=True):
    """An endpoint by its URL. Without `group`: in every group that contains it."""

    url: Text
    group: Text | None = None


warm_up(EndpointBody)


class EndpointSet(msgspec.Struct, frozen=True, kw_only=True):
    """The new state of an endpoint. `changed`: whether an endpoint had another state before."""

    url: str
    group: str | None
    enabled: bool
    changed: bool


@operation("GET", "/endpoints", access="read")
def list_endpoints(context: RequestContext, query: EndpointsQuery) -> Endpoints:
    """Lists destinations and hosts with their success rates, response times and breakers."""
    found = [one for one in endpoint_health(context.numbers) if query.search is None or query.search in one.name]
    return Endpoints(items=tuple(sorted(found, key=needs_look_first)[: query.limit]), total=len(found))


@operation("POST", "/signing-keys/rotate", access="admin")
def rotate_signing_keys(context: RequestContext, body: Reasoned, by: str) -> SigningKeyPair:
    """Signs with the next key and creates a new next one; receivers that know both accept requests throughout."""
    keys = signing_keys.rotate(context.store, context.settings, signed(by, body))
    return SigningKeyPair(current=keys.current, next=keys.next)


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


OPERATIONS: Final = (list_endpoints, list_groups, enable_endpoint, disable_endpoint, rotate_signing_keys)

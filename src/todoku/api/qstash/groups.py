"""`/v2/topics`: URL groups, under their former name."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.qstash.answers import empty_response, json
from todoku.api.qstash.parsing import LARGEST, Query, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.address_guard import check_url
from todoku.core.duration import milliseconds
from todoku.core.errors import InvalidMessage, NotThere
from todoku.core.http_request import check_headers, is_forwardable
from todoku.core.redaction import redact_headers
from todoku.engine.http import names, url_groups
from todoku.engine.http.url_groups import EndpointName, Group


class Endpoints(msgspec.Struct, frozen=True):
    """Endpoints to add or remove."""

    endpoints: list[EndpointName]


class Defaults(msgspec.Struct, frozen=True):
    """Default headers of messages to a group."""

    headers: dict[str, str]


class GroupEndpoints:
    """The endpoints of URL groups."""

    def __init__(self, context: RequestContext) -> None:
        self._store = context.store
        self._masters = context.settings.master_keys

    async def add(self, request: Request) -> Response:
        """Creates a group, or adds endpoints to it."""
        body = decode_json(await read_body(request, limit=LARGEST), Endpoints)
        named = [_check_with_url(one, number) for number, one in enumerate(body.endpoints)]
        who = signed(request, "upsert")
        await asyncio.to_thread(url_groups.put, self._store, segment(request, "group"), named, who)
        return empty_response()

    async def remove_endpoints(self, request: Request) -> Response:
        """Removes endpoints from a group; without endpoints, the group is removed too."""
        Query(request, ())
        body = decode_json(await read_body(request, limit=LARGEST), Endpoints)
        named = [_check_endpoint(one, number) for number, one in enumerate(body.endpoints)]
        who = signed(request, "remove")
        await asyncio.to_thread(url_groups.remove, self._store, segment(request, "group"), named, who)
        return empty_response()

    async def set_defaults(self, request: Request) -> Response:
        """Sets the default headers of a group's messages."""
        body = decode_json(await read_body(request, limit=LARGEST), Defaults)
        for name in body.headers:
            if not is_forwardable(name):
                raise InvalidMessage(f"headers cannot have {name[:64]!r}", hint="todoku sets this header itself")
        who, name = signed(request, "set headers"), segment(request, "group")
        await asyncio.to_thread(
            url_groups.set_headers, self._store, name, check_headers(body.headers), who, self._masters
        )
        return empty_response()

    def list_all(self, _: Request) -> Response:
        """Lists all groups."""
        return json([_body(group) for group in url_groups.list_groups(self._store)])

    def get(self, request: Request) -> Response:
        """Returns one group."""
        name = segment(request, "group")
        if (found := url_groups.get(self._store, name)) is None:
            raise NotThere(f"there is no URL group {name!r}", hint=f"POST /v2/topics/{name}/endpoints creates it")
        return json(_body(found))

    def remove(self, request: Request) -> Response:
        """Removes a group; does nothing if it does not exist."""
        refuse_query_and_body(request)
        url_groups.delete(self._store, segment(request, "group"), signed(request, "delete"))
        return empty_response()


def _check_with_url(endpoint: EndpointName, number: int) -> EndpointName:
    if endpoint.url is None:
        raise InvalidMessage(f"endpoint {number} has no url", hint='{"url": "https://example.com/hook"}')
    return _check_endpoint(endpoint, number)


def _check_endpoint(endpoint: EndpointName, number: int) -> EndpointName:
    """Returns the endpoint with its normalized URL. InvalidMessage: the URL or the name is not valid."""
    url = None if endpoint.url is None else check_url(endpoint.url, what=f"url of endpoint {number}")
    return EndpointName(url, names.check_name(endpoint.name, f"name of endpoint {number}") if endpoint.name else None)


def _body(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "createdAt": milliseconds(group.created_at),
        "updatedAt": milliseconds(group.updated_at),
        "endpoints": [_endpoint(one) for one in group.endpoints],
    } | ({"headers": redact_headers(group.headers)} if group.headers else {})


def _endpoint(one: url_groups.Endpoint) -> dict[str, str]:
    disabled = {} if one.enabled else {"disabled": one.reason or "by hand"}
    return {"url": one.url} | ({} if one.name is None else {"name": one.name}) | disabled

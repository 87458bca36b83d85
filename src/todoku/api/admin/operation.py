"""One operation of the admin API: a function whose annotations declare its parameters and its response.

Parameters are recognised by name: `context`; `where` (from the path), `query` and `body`, which are structs that refuse
unknown fields; `by`, the name of the token, and `scopes`, what it may do. The function runs in a thread and may block.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Access, GuardedRoute, bearer_of
from todoku.api.body import read_json, refuse_body
from todoku.api.problem import NO_STORE, Refused
from todoku.api.request_context import RequestContext
from todoku.core.control_characters import encode_json

PREFIX: Final = "/api/v1"
_CONVERTOR: Final = re.compile(r"\{(\w+):path\}")

T = TypeVar("T")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """The function that serves a method and path, with everything the OpenAPI document says about it."""

    method: str
    path: str
    access: Access
    status: int
    name: str
    summary: str
    run: Callable[..., Any]
    parameters: dict[str, Any]
    response: Any

    @property
    def documented_path(self) -> str:
        """The path as the OpenAPI document shows it."""
        return PREFIX + _CONVERTOR.sub(r"{\1}", self.path)


def operation(
    method: str, path: str, *, access: Access, status: int = 200
) -> Callable[[Callable[..., Any]], Operation]:
    """Declares a function as an operation. The first line of its docstring is the summary."""

    def declare(run: Callable[..., Any]) -> Operation:
        hints = get_type_hints(run, include_extras=True)
        response = hints.pop("return")
        return Operation(
            method=method,
            path=path,
            access=access,
            status=status,
            name=run.__name__,
            summary=(run.__doc__ or "").strip().splitlines()[0],
            run=run,
            parameters=hints,
            response=response,
        )

    return declare


def route(declared: Operation, context: RequestContext) -> GuardedRoute:
    """Returns the route that serves an operation."""

    async def endpoint(request: Request) -> Response:
        arguments = await _arguments(declared, request, context)
        result = await asyncio.to_thread(declared.run, **arguments)
        return Response(encode_json(result), declared.status, NO_STORE, "application/json")

    endpoint.__name__ = declared.name
    return GuardedRoute(
        PREFIX + declared.path, endpoint, methods=[declared.method], access=declared.access, gate=context.gate
    )


async def _arguments(declared: Operation, request: Request, context: RequestContext) -> dict[str, Any]:
    parameters, arguments = declared.parameters, dict[str, Any]()
    for name, kind in parameters.items():
        match name:
            case "context":
                arguments[name] = context
            case "by":
                arguments[name] = bearer_of(request).name
            case "scopes":
                arguments[name] = bearer_of(request).scopes
            case "where":
                arguments[name] = convert_parameters(request.path_params.items(), kind, "path")
            case "query":
                arguments[name] = convert_parameters(request.query_params.multi_items(), kind, "query")
            case "body":
                arguments[name] = await read_json(request, kind)
            case _:
                raise TypeError(f"an operation has no parameter {name}")
    if "body" not in parameters and declared.method != "GET":
        refuse_body(request)
    if "query" not in parameters and request.scope["query_string"]:
        raise Refused(422, "the query is not acceptable: this operation takes no parameters in it")
    return arguments


def convert_parameters(items: Iterable[tuple[str, str]], kind: type[T], where: str) -> T:
    """Converts texts to the struct. Raises Refused (422) that names the wrong value."""
    values: dict[str, str] = {}
    for name, value in items:
        if name in values:
            raise Refused(422, f"the {where} is not acceptable: `{name}` is given twice")
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the {where} is not acceptable: {error}") from None

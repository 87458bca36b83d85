"""One operation of the admin API: a function whose annotations say what it is asked with, and what it answers.

Its parameters are told by name: `context`; `where` from the path, `query` and `body` of the request, all three typed
structs that refuse what they do not know; `by`, the name of the token. It runs in a thread, and may block.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, get_type_hints

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Access, Guarded, bearer_of
from todoku.api.body import read_json, refuse_body
from todoku.api.problem import NOT_STORED, Refused
from todoku.api.request_context import RequestContext
from todoku.core.control_characters import encode_json

PREFIX: Final = "/api/v1"
_CONVERTOR: Final = re.compile(r"\{(\w+):path\}")

T = TypeVar("T")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """What is served at a method and path, and everything its description says."""

    method: str
    path: str
    access: Access
    status: int
    name: str
    summary: str
    run: Callable[..., Any]
    asked: dict[str, Any]
    answer: Any

    @property
    def shown_path(self) -> str:
        """The path as the description has it."""
        return PREFIX + _CONVERTOR.sub(r"{\1}", self.path)


def operation(
    method: str, path: str, *, access: Access, status: int = 200
) -> Callable[[Callable[..., Any]], Operation]:
    """Declare a function as an operation. The first line of its docstring is the summary."""

    def declared(run: Callable[..., Any]) -> Operation:
        hints = get_type_hints(run, include_extras=True)
        answer = hints.pop("return")
        return Operation(
            method=method,
            path=path,
            access=access,
            status=status,
            name=run.__name__,
            summary=(run.__doc__ or "").strip().splitlines()[0],
            run=run,
            asked=hints,
            answer=answer,
        )

    return declared


def route(declared: Operation, context: RequestContext) -> Guarded:
    """The route that serves an operation."""

    async def endpoint(request: Request) -> Response:
        given = await _given(declared, request, context)
        done = await asyncio.to_thread(declared.run, **given)
        return Response(encode_json(done), declared.status, NOT_STORED, "application/json")

    endpoint.__name__ = declared.name
    return Guarded(
        PREFIX + declared.path, endpoint, methods=[declared.method], access=declared.access, gate=context.gate
    )


async def _given(declared: Operation, request: Request, context: RequestContext) -> dict[str, Any]:
    asked, given = declared.asked, dict[str, Any]()
    for name, kind in asked.items():
        match name:
            case "context":
                given[name] = context
            case "by":
                given[name] = bearer_of(request).name
            case "where":
                given[name] = _converted(request.path_params.items(), kind, "path")
            case "query":
                given[name] = _converted(request.query_params.multi_items(), kind, "query")
            case "body":
                given[name] = await read_json(request, kind)
            case _:
                raise TypeError(f"an operation has no parameter {name}")
    if "body" not in asked and declared.method != "GET":
        refuse_body(request)
    if "query" not in asked and request.scope["query_string"]:
        raise Refused(422, "the query is not acceptable: there is nothing to be said in it here")
    return given


def _converted(items: Iterable[tuple[str, str]], kind: type[T], where: str) -> T:
    """Texts as this struct. Refused: 422, with the name of what is wrong."""
    values: dict[str, str] = {}
    for name, value in items:
        if name in values:
            raise Refused(422, f"the {where} is not acceptable: `{name}` is there twice")
        values[name] = value
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, f"the {where} is not acceptable: {error}") from None

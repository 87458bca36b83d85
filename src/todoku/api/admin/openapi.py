"""The description of the admin API (OpenAPI 3.1), made of what is served: the same structs, the same table."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import msgspec

from todoku.api.admin.operation import Operation
from todoku.api.problem import MEDIA_TYPE, Problem

_REF: Final = "#/components/schemas/{name}"
_PLACES: Final = {"where": "path", "query": "query"}
_REFUSALS: Final = {
    "400": "The request is no HTTP, or its body no JSON.",
    "401": "No token, or one that is not known.",
    "403": "The token has not the scope.",
    "404": "What it is about is not there.",
    "408": "The body came too slowly.",
    "409": "It cannot be done as things are.",
    "413": "The body is too large.",
    "414": "The URL is too long.",
    "415": "The body is not application/json, or it is compressed.",
    "422": "Something that was said is not acceptable; `detail` names it.",
    "429": "Too many requests, or too many wrong tokens; Retry-After says how long to wait.",
    "431": "There are too many headers, or they are too large.",
    "503": "The database is not there, or busy; Retry-After says how long to wait.",
}
_WITH_BODY: Final = ("400", "408", "413", "415")

Json = dict[str, Any]


def document(operations: Sequence[Operation]) -> Json:
    """The whole description."""
    kinds = [Problem, *_kinds(operations)]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    paths: dict[str, Json] = {}
    for each in operations:
        paths.setdefault(each.shown_path, {})[each.method.lower()] = _operation(each, schemas)
    apart = {kind.__name__ for each in operations for name, kind in each.asked.items() if name in _PLACES}
    bodies = {each.asked["body"].__name__ for each in operations if "body" in each.asked}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "todoku admin API",
            "version": _version(),
            "description": "Errors are problem details (RFC 9457) that also carry `error`. Acts are signed with the "
            "name of the token.",
        },
        "paths": paths,
        "components": {
            # What is in paths and queries is told parameter by parameter.
            "schemas": {name: schema for name, schema in schemas.items() if name in bodies or name not in apart},
            "responses": {status: _refusal(text) for status, text in _REFUSALS.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(operations: Sequence[Operation]) -> list[Any]:
    asked = [kind for each in operations for name, kind in each.asked.items() if name in ("where", "query", "body")]
    return list(dict.fromkeys([*asked, *(each.answer for each in operations)]))


def _operation(each: Operation, schemas: Json) -> Json:
    refused = {status for status in _REFUSALS if status not in ("404", "409", *_WITH_BODY)}
    if each.access == "open":
        refused -= {"401", "403", "429"}
    if "where" in each.asked or each.name == "get_ledger_entry":
        refused |= {"404"}
    if "by" in each.asked:
        refused |= {"409"}
    if "body" in each.asked:
        refused |= set(_WITH_BODY)
    content = {"application/json": {"schema": _ref(each.answer)}}
    described: Json = {
        "operationId": each.name,
        "summary": each.summary,
        "tags": [each.path.split("/")[1]],
        "parameters": [one for name in _PLACES if name in each.asked for one in _parameters(name, each, schemas)],
        "responses": {str(each.status): {"description": each.summary, "content": content}}
        | {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(refused)},
        "security": [] if each.access == "open" else [{"token": []}],
        "x-scope": each.access,
    }
    if "body" in each.asked:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(each.asked["body"])}},
        }
    return described


def _parameters(name: str, each: Operation, schemas: Json) -> list[Json]:
    struct = schemas[each.asked[name].__name__]
    required = struct.get("required", [])
    return [
        {"name": field, "in": _PLACES[name], "required": field in required, "schema": _said(schema)}
        for field, schema in struct["properties"].items()
    ]


def _said(schema: Json) -> Json:
    """What can stand in a path or query: what is left out there is null, and cannot be written."""
    kept = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    if "anyOf" in kept:
        some = [one for one in kept.pop("anyOf") if one != {"type": "null"}]
        return kept | (some[0] if len(some) == 1 else {"anyOf": some})
    return kept


def _ref(kind: Any) -> Json:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _refusal(text: str) -> Json:
    return {"description": text, "content": {MEDIA_TYPE: {"schema": _ref(Problem)}}}


def _version() -> str:
    try:
        return version("todoku")
    except PackageNotFoundError:  # run from a checkout that nobody installed
        return "0"

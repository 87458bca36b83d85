"""The OpenAPI 3.1 document of the admin API, built from the structs and the table that also serve requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from todoku.api.admin.operation import Operation
from todoku.api.problem import MEDIA_TYPE, Problem
from todoku.engine.installed_version import installed_version

_REF: Final = "#/components/schemas/{name}"
_PLACES: Final = {"where": "path", "query": "query"}
_BY_KEY: Final = frozenset({"get_ledger_entry", "get_keyed_run", "signal_keyed_run"})
"""Operations that name what they are about in the query: it may not exist."""

_REFUSALS: Final = {
    "400": "The request is not valid HTTP, or its body is not JSON.",
    "401": "The token is missing or unknown.",
    "403": "The token lacks the required scope.",
    "404": "The resource does not exist.",
    "408": "The body did not arrive in time.",
    "409": "The operation conflicts with the current state.",
    "413": "The body is too large.",
    "414": "The URL is too long.",
    "415": "The body is not application/json, or it is compressed.",
    "422": "A parameter or field is not acceptable; `detail` names it.",
    "429": "Too many requests, or too many wrong tokens; Retry-After says how long to wait.",
    "431": "There are too many headers, or they are too large.",
    "503": "The database is unavailable or busy; Retry-After says how long to wait.",
}
_WITH_BODY: Final = ("400", "408", "413", "415")

Json = dict[str, Any]


def document(operations: Sequence[Operation]) -> Json:
    """Builds the OpenAPI document."""
    kinds = [Problem, *_kinds(operations)]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    paths: dict[str, Json] = {}
    for each in operations:
        paths.setdefault(each.documented_path, {})[each.method.lower()] = _operation(each, schemas)
    flattened = {kind.__name__ for each in operations for name, kind in each.parameters.items() if name in _PLACES}
    bodies = {each.parameters["body"].__name__ for each in operations if "body" in each.parameters}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "todoku admin API",
            "version": installed_version(),
            "description": "Errors are problem details (RFC 9457) that also carry `error`. The audit records each "
            "change under the name of the token.",
        },
        "paths": paths,
        "components": {
            # Structs of paths and queries are listed as single parameters instead.
            "schemas": {name: schema for name, schema in schemas.items() if name in bodies or name not in flattened},
            "responses": {status: _refusal(text) for status, text in _REFUSALS.items()},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(operations: Sequence[Operation]) -> list[Any]:
    parameters = [
        kind for each in operations for name, kind in each.parameters.items() if name in ("where", "query", "body")
    ]
    return list(dict.fromkeys([*parameters, *(each.response for each in operations)]))


def _operation(each: Operation, schemas: Json) -> Json:
    refused = {status for status in _REFUSALS if status not in ("404", "409", *_WITH_BODY)}
    if each.access == "open":
        refused -= {"401", "403", "429"}
    if "where" in each.parameters or each.name in _BY_KEY:
        refused |= {"404"}
    if "by" in each.parameters:
        refused |= {"409"}
    if "body" in each.parameters:
        refused |= set(_WITH_BODY)
    content = {"application/json": {"schema": _ref(each.response)}}
    description: Json = {
        "operationId": each.name,
        "summary": each.summary,
        "tags": [each.path.split("/")[1]],
        "parameters": [one for name in _PLACES if name in each.parameters for one in _parameters(name, each, schemas)],
        "responses": {str(each.status): {"description": each.summary, "content": content}}
        | {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(refused)},
        "security": [] if each.access == "open" else [{"token": []}],
        "x-scope": each.access,
    }
    if "body" in each.parameters:
        description["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(each.parameters["body"])}},
        }
    return description


def _parameters(name: str, each: Operation, schemas: Json) -> list[Json]:
    struct = schemas[each.parameters[name].__name__]
    required = struct.get("required", [])
    return [
        {"name": field, "in": _PLACES[name], "required": field in required, "schema": _parameter_schema(schema)}
        for field, schema in struct["properties"].items()
    ]


def _parameter_schema(schema: Json) -> Json:
    """Returns the schema without null: a path or query leaves a value out instead."""
    fields = {name: value for name, value in schema.items() if not (name == "default" and value is None)}
    if "anyOf" in fields:
        kinds = [one for one in fields.pop("anyOf") if one != {"type": "null"}]
        return fields | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})
    return fields


def _ref(kind: Any) -> Json:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _refusal(text: str) -> Json:
    return {"description": text, "content": {MEDIA_TYPE: {"schema": _ref(Problem)}}}

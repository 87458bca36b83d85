"""JSON Schemas of handlers and events, and what is wrong with a payload, field by field: for forms and editors."""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.engine.encryption.secret_ref import Ref
from todoku.engine.jobs.decoders import decoder, describe
from todoku.engine.jobs.hints import Hints
from todoku.engine.publish import encode

Json = dict[str, Any]

_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def json_schema(kind: Any) -> Json:
    """Returns the JSON Schema of a type; {}: anything, or a type that has no schema."""
    if kind is Any:
        return {}
    try:
        return msgspec.json.schema(kind, schema_hook=_foreign_schema)
    except TypeError:
        return _adapted_schema(kind)


def _foreign_schema(kind: type) -> Json:
    if kind is Ref:
        return {"type": "string", "description": "The name of a secret."}
    if callable(schema := getattr(kind, "model_json_schema", None)):
        found: Json = schema()
        return found
    raise NotImplementedError  # the answer of a schema hook that does not know the type


def _adapted_schema(kind: Any) -> Json:
    try:
        from pydantic import PydanticSchemaGenerationError, TypeAdapter  # noqa: PLC0415 - optional
        from pydantic.errors import PydanticInvalidForJsonSchema  # noqa: PLC0415 - optional
    except ImportError:
        return {}
    try:
        return TypeAdapter(kind).json_schema()
    except (PydanticSchemaGenerationError, PydanticInvalidForJsonSchema):
        return {}


def arguments_schema(hints: Hints) -> Json:
    """Returns the JSON Schema of a job's arguments: an object with a property per parameter."""
    properties: dict[str, Json] = {}
    for each in hints.parameters:
        schema = json_schema(hints.types[each.name])
        match each.kind:
            case inspect.Parameter.VAR_KEYWORD:
                continue
            case inspect.Parameter.VAR_POSITIONAL:
                properties[each.name] = {"type": "array", "items": schema}
            case _:
                properties[each.name] = schema | _default(each)
    required = [each.name for each in hints.parameters if _is_required(each)]
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in hints.parameters)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": open_ended}


def _default(parameter: inspect.Parameter) -> Json:
    if parameter.default is parameter.empty:
        return {}
    try:
        return {"default": msgspec.json.decode(encode(parameter.default))}
    except InvalidMessage:  # a default need not be JSON: it is never stored
        return {}


def _is_required(parameter: inspect.Parameter) -> bool:
    return parameter.default is parameter.empty and parameter.kind not in _VARIABLE


def argument_problems(hints: Hints, text: str) -> dict[str, str]:
    """Returns what is wrong with the payload of a job, by parameter; "" is the payload as a whole."""
    try:
        document = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        return {"": describe(error)}
    known = {each.name: each for each in hints.parameters if each.kind is not inspect.Parameter.VAR_KEYWORD}
    found = {name: "is required" for name, each in known.items() if _is_required(each) and name not in document}
    open_ended = len(known) < len(hints.parameters)
    for name, raw in document.items():
        if (parameter := known.get(name)) is None:
            found |= {} if open_ended else {name: "there is no such argument"}
        elif (problem := _problem(_kind(hints, parameter), raw)) is not None:
            found[name] = problem
    return found


def _kind(hints: Hints, parameter: inspect.Parameter) -> Any:
    kind = hints.types[parameter.name]
    return types.GenericAlias(list, (kind,)) if parameter.kind is inspect.Parameter.VAR_POSITIONAL else kind


def kind_problem(kind: Any, text: str) -> str | None:
    """Returns why this JSON text cannot be decoded as a type; None: it can."""
    return _problem(kind, msgspec.Raw(text.encode()))


def _problem(kind: Any, raw: msgspec.Raw) -> str | None:
    try:
        decoder(kind, "")(raw)
    except msgspec.DecodeError as error:
        return describe(error)
    except InvalidSetting:  # a type that only its declaration can decode, by the secrets it has
        return None
    return None


def call_arguments(hints: Hints, document: Any) -> tuple[list[Any], dict[str, Any]]:
    """Returns positional and named arguments for a payload: by position only where a parameter needs it."""
    if not isinstance(document, Mapping):
        raise InvalidMessage(f"{hints.name}: its arguments are an object", hint=f"it takes {hints.shape}")
    named = dict(document)
    args: list[Any] = []
    last = max((place for place, each in enumerate(hints.parameters) if _by_position(each)), default=-1)
    for each in hints.parameters[: last + 1]:
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = named.pop(each.name, [])
            if rest and not isinstance(rest, list):
                raise InvalidMessage(f"{hints.name}: {each.name} is a list", hint=f"it takes {hints.shape}")
            args += rest
        elif each.name in named:
            args.append(named.pop(each.name))
        else:
            break
    return args, named


def _by_position(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)

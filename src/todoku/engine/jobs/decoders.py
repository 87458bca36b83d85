"""Decoders from JSON to annotated types, built once per type. Their errors name the field."""

from __future__ import annotations

import re
import types
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Abort, Done, Retry, Snooze
from todoku.engine.encryption.secret_ref import Ref, SecretSources

_OUTCOMES: Final = (Done, Retry, Abort, Snooze)
_AT: Final = re.compile(r"(?P<what>.*) - at `\$?\.?(?P<where>.*)`", re.DOTALL)


def describe(error: Exception) -> str:
    """Returns the text of a msgspec error with the field in front."""
    if match := _AT.fullmatch(str(error)):
        return f"{match['where']}: {match['what']}" if match["where"] else match["what"]
    return str(error)


def at(name: str, decode: Callable[[Any], Any], raw: Any) -> Any:
    """Decodes one value; an error carries its name."""
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(f"{name}: {describe(error)}") from None


def decoder(kind: Any, name: str, secrets: SecretSources | None = None) -> Callable[[str | bytes | msgspec.Raw], Any]:
    """Returns a decoder of JSON as `kind`: by msgspec, or by pydantic for its types. `secrets` resolves a Ref."""
    secrets = secrets or SecretSources()
    try:
        _refuse_unknown(kind)
        return msgspec.json.Decoder(kind, dec_hook=partial(_foreign, secrets)).decode
    except TypeError as error:
        if (adapted := _adapted(kind, secrets)) is not None:
            return adapted
        raise InvalidSetting(
            f"{name}: {error}", hint="use plain types, dataclasses, msgspec structs, or models with pydantic installed"
        ) from None


def _refuse_unknown(kind: Any) -> None:
    for part in get_args(kind):
        _refuse_unknown(part)
    if not isinstance(kind, type) or kind is Ref or hasattr(kind, "model_validate_json"):
        return
    if isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
        raise TypeError(f"{kind.__name__} cannot be read from JSON")


def result_decoder(kind: Any, name: str, secrets: SecretSources | None = None) -> Callable[[str], Any]:
    """Returns a decoder of stored results, by the return annotation without its outcomes."""
    if get_origin(kind) in (Union, types.UnionType):
        left = [each for each in get_args(kind) if each not in _OUTCOMES]
        kind = Union[tuple(left)] if left else Any  # noqa: UP007 - made of a list
    return decoder(Any if kind in _OUTCOMES else kind, name, secrets)


def _foreign(secrets: SecretSources, kind: type, value: Any) -> Any:
    """Decodes a type that msgspec does not know: a pydantic model, or a Ref from its id."""
    if isinstance(value, kind):
        return value
    with secrets.near():
        return Ref(value) if kind is Ref else _model(kind, value)


def _model(kind: type, value: Any) -> Any:
    if (validate := getattr(kind, "model_validate_json", None)) is None:
        raise TypeError(f"{kind.__name__} cannot be read from JSON")
    try:
        return validate(msgspec.json.encode(value))
    except ValueError as error:
        raise ValueError(_describe_pydantic(error)) from None


def _describe_pydantic(error: ValueError) -> str:
    if not callable(errors := getattr(error, "errors", None)):
        return str(error)
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'it'}: {each['msg']}" for each in errors())


class Adapted:
    """A decoder by pydantic, for types that msgspec refuses (a union of a model and a number)."""

    def __init__(self, adapter: Any, secrets: SecretSources) -> None:
        self._adapter = adapter
        self._secrets = secrets

    def __call__(self, text: Any) -> Any:
        """Returns the value, or raises msgspec's ValidationError."""
        try:
            with self._secrets.near():
                return self._adapter.validate_json(bytes(text) if isinstance(text, msgspec.Raw) else text)
        except ValueError as error:
            raise msgspec.ValidationError(_describe_pydantic(error)) from None


def _adapted(kind: Any, secrets: SecretSources) -> Adapted | None:
    try:
        from pydantic import PydanticSchemaGenerationError, TypeAdapter  # noqa: PLC0415 - optional
    except ImportError:
        return None
    try:
        return Adapted(TypeAdapter(kind), secrets)
    except PydanticSchemaGenerationError:
        return None

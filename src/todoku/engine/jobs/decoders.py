"""Decoders from JSON to annotated types, built once per type. Their errors name the field."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Retry, Snooze
from todoku.core.topic_pattern import matches, pattern
from todoku.engine.encryption.secret_ref import Ref, SecretSources

# ------------------------------------------------------------
# JSON Schemas by topic: a payload that breaks its schema is refused at publish, and aborted if it is stored.

_MAX_TOPICS: Final = 1024
"""Topics whose schemas are cached, so that patterns are not matched again. A program with more starts over."""


class Schemas:
    """The schemas of an App."""

    def __init__(self) -> None:
        self.declared: list[tuple[str, Any]] = []
        self._of_topic: dict[str, tuple[Any, ...]] = {}

    def declare(self, topic: str, schema: Mapping[str, Any] | str) -> None:
        """Declares the schema of a topic, or of a pattern: a mapping, or JSON text."""
        pattern(topic)
        self.declared.append((topic, _validator(topic, schema)))
        self._of_topic.clear()

    def check(self, topic: str, text: str) -> None:
        """Raises InvalidMessage if this payload breaks a schema of its topic."""
        if (problem := self._problem(topic, text)) is not None:
            raise InvalidMessage(
                f"{topic} breaks its schema: {problem}", hint="publish a payload that fits, or correct the schema"
            )

    def refused(self, claim: Claimed) -> Abort | None:
        """Returns the outcome of a delivery whose payload breaks a schema; None: it fits."""
        if claim.payload is None or (problem := self._problem(claim.topic, claim.payload)) is None:
            return None
        return Abort("BAD_PAYLOAD", f"{claim.topic} breaks its schema: {problem}")

    def _problem(self, topic: str, text: str) -> str | None:
        validators = self._validators(topic)
        if not validators:
            return None
        value = json.loads(text)
        for validator in validators:
            for error in validator.iter_errors(value):
                where = ".".join(map(str, error.instance_path))
                return f"{where}: {error.message}" if where else str(error.message)
        return None

    def _validators(self, topic: str) -> tuple[Any, ...]:
        found = self._of_topic.get(topic)
        if found is None:
            found = tuple(validator for text, validator in self.declared if matches(text, topic))
            if len(self._of_topic) >= _MAX_TOPICS:
                self._of_topic.clear()
            self._of_topic[topic] = found
        return found


def _validator(topic: str, schema: Mapping[str, Any] | str) -> Any:
    try:
        import jsonschema_rs  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidSetting(
            "a JSON Schema needs jsonschema-rs, which is not installed", hint='pip install "todoku[jsonschema]"'
        ) from error
    try:
        parsed = json.loads(schema) if isinstance(schema, str) else dict(schema)
        # Values are masked: the problem goes into errors and logs, the payload does not. Nothing is fetched.
        return jsonschema_rs.validator_for(parsed, mask="it", validate_formats=True, offline=True)
    except (ValueError, TypeError) as error:  # not JSON, or no schema
        first = str(error).strip().splitlines()[0]
        raise InvalidSetting(f"{topic} has no valid JSON Schema: {first}", hint="see json-schema.org") from None


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

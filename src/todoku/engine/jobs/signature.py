"""The signatures of handlers: arguments are encoded as one JSON object, and decoded from it.

A payload is checked by decoding it the way the handler will, so a stored payload can be decoded by the same version. A
decoder is built once per handler: an attempt costs one pass over its payload.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.message import Claimed
from todoku.core.outcome import Abort
from todoku.engine.context import Context
from todoku.engine.jobs.decoders import Adapted, at, decoder, describe
from todoku.engine.jobs.hints import Hints
from todoku.engine.jobs.schema import argument_problems, arguments_schema, call_arguments, json_schema
from todoku.engine.publish import SCALARS, Encoded, encode, scalars_json

_POSITIONAL: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

_BY_NAME: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Signature(Protocol):
    """How arguments are stored, and how a handler is called with them."""

    def encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Encoded:
        """Returns the payload of these arguments. InvalidMessage names a missing, extra or wrong argument."""

    def caller(self, function: Callable[..., Any]) -> Callable[[Context], Any]:
        """Returns a function that decodes a payload and calls `function`; it raises Abort("BAD_PAYLOAD") first."""

    def problems(self, text: str) -> dict[str, str]:
        """Returns what is wrong with this payload (JSON text), by parameter; "" is the whole. {}: it can be decoded."""

    def schema(self) -> dict[str, Any]:
        """Returns the JSON Schema of payloads."""

    def call_arguments(self, document: Any) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of `encoded` for a payload, as JSON values. InvalidMessage: it is not an object."""


class Arguments:
    """The signature of a job: one JSON object, {parameter: value}. Defaults are not stored unless they were given."""

    def __init__(self, hints: Hints) -> None:
        self._hints = hints
        kinds = {each.kind: each for each in hints.parameters}
        self._rest = kinds.get(inspect.Parameter.VAR_POSITIONAL)
        self._extra = kinds.get(inspect.Parameter.VAR_KEYWORD)
        self._named = [each for each in hints.parameters if each is not self._extra]
        self._positional = [each.name for each in hints.parameters if each.kind in _POSITIONAL]
        self._required = frozenset(each.name for each in self._named if each.default is each.empty)
        self._is_plain = all(each.kind in _BY_NAME for each in hints.parameters)
        self._scalars = self._scalar_types()
        self._adapted: dict[str, Callable[[Any], Any]] = {}
        self._decode = decoder(self._record(), hints.name, hints.secrets)
        extra = self._extra
        self._decode_extra = decoder(hints.types[extra.name], hints.name, hints.secrets) if extra else None

    def encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Encoded:
        """As Signature.encoded."""
        if not kwargs and args and tuple(map(type, args)) == self._scalars:  # so its decoder accepts them
            flat = scalars_json(dict(zip(self._positional, args, strict=True)))
            if flat is not None:
                return Encoded(flat)
        text = _encoded(self._document(args, kwargs), self._hints.name)
        try:
            if self._adapted or self._extra is not None:
                self._arguments(text)
            else:
                self._decode(text)
        except msgspec.ValidationError as error:
            raise InvalidMessage(
                f"{self._hints.name}: {describe(error)}", hint=f"it takes {self._hints.shape}"
            ) from None
        return Encoded(text)

    def _scalar_types(self) -> tuple[type, ...]:
        """The types of the parameters if all are scalars that may be given by place; (): they are not."""
        types = tuple(self._hints.types[each.name] for each in self._named)
        if self._is_plain and len(types) == len(self._positional) and all(isinstance(each, type) for each in types):
            return types if SCALARS.issuperset(types) else ()
        return ()

    def _document(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the arguments by name, in the order of the parameters."""
        if self._is_plain and not kwargs and len(args) == len(self._positional) == len(self._named):
            return dict(zip(self._positional, args, strict=True))
        if self._is_plain and len(args) <= len(self._positional):  # what `bind` returns, at a fifth of its cost
            document = dict(zip(self._positional, args, strict=False))
            for each in self._named[len(args) :] if kwargs else ():
                if each.name in kwargs:
                    document[each.name] = kwargs[each.name]
            if len(document) == len(args) + len(kwargs) and self._required <= document.keys():
                return document
        try:
            bound = self._hints.shape.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidMessage(f"{self._hints.name}: {error}", hint=f"it takes {self._hints.shape}") from None
        document = dict(bound.arguments)
        if self._extra is not None:
            document |= document.pop(self._extra.name, {})
        return document

    def caller(self, function: Callable[..., Any]) -> Callable[[Context], Any]:
        """As Signature.caller. Common shapes take a shorter way, because every attempt takes it."""
        if self._extra is None and not self._adapted and all(each.kind in _POSITIONAL for each in self._named):
            return self._plain_caller(function)

        def call(context: Context) -> Any:
            args, kwargs = readable(self._arguments, context.claim, self._hints.shape)
            return function(context, *args, **kwargs) if self._hints.takes_context else function(*args, **kwargs)

        return call

    def decoded(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments of a payload, by position and by name. msgspec.DecodeError: it does not fit."""
        return self._arguments(text)

    def problems(self, text: str) -> dict[str, str]:
        """As Signature.problems."""
        try:
            self._arguments(text)
        except msgspec.DecodeError as error:
            return argument_problems(self._hints, text) or {"": describe(error)}
        return {}

    def schema(self) -> dict[str, Any]:
        """As Signature.schema."""
        return arguments_schema(self._hints)

    def call_arguments(self, document: Any) -> tuple[list[Any], dict[str, Any]]:
        """As Signature.call_arguments."""
        return call_arguments(self._hints, document)

    def _plain_caller(self, function: Callable[..., Any]) -> Callable[[Context], Any]:
        decode, values = self._decode, msgspec.structs.astuple
        takes_context = self._hints.takes_context

        def call(context: Context) -> Any:
            payload = context.claim.payload
            try:
                args = values(decode(payload))  # type: ignore[arg-type]  # None is no payload, which is reported below
            except (msgspec.DecodeError, TypeError) as error:
                raise unreadable(context.claim, error, self._hints.shape) from None
            return function(context, *args) if takes_context else function(*args)

        return call

    def _record(self) -> type[msgspec.Struct]:
        """Returns a record with a field per parameter. Fields are numbered, because a parameter may have any name."""
        fields: list[Any] = []
        for place, each in enumerate(self._named):
            kind = self._kind(each)
            if each is self._rest:
                fields.append((f"p{place}", kind, ()))
            elif each.default is each.empty:
                fields.append((f"p{place}", kind))
            else:
                fields.append((f"p{place}", kind, msgspec.field(default_factory=_giving(each.default))))
        names = {f"p{place}": each.name for place, each in enumerate(self._named)}
        required_first = sorted(fields, key=len)  # keyword-only parameters may have their defaults in any order
        return msgspec.defstruct(
            "Arguments", required_first if self._keyword_only() else fields, rename=names, gc=False,
            forbid_unknown_fields=self._extra is None,
        )  # fmt: skip

    def _kind(self, parameter: inspect.Parameter) -> Any:
        """Returns the type of its field. A type that msgspec refuses stays raw, and is decoded separately."""
        kind = self._hints.types[parameter.name]
        kind = types.GenericAlias(tuple, (kind, ...)) if parameter is self._rest else kind
        decode = decoder(kind, f"{self._hints.name}, {parameter.name}", self._hints.secrets)
        if isinstance(decode, Adapted) and parameter is not self._extra:
            self._adapted[parameter.name] = decode
            return msgspec.Raw
        return kind

    def _keyword_only(self) -> bool:
        return any(each.kind is inspect.Parameter.KEYWORD_ONLY for each in self._named)

    def _arguments(self, text: str) -> tuple[list[Any], dict[str, Any]]:
        """Returns the positional and keyword arguments of a payload, for any shape of function."""
        record = self._decode(text)
        values = {each.name: getattr(record, f"p{place}") for place, each in enumerate(self._named)}
        for name, decode in self._adapted.items():
            if isinstance(values[name], msgspec.Raw):  # else it is the default
                values[name] = at(name, decode, values[name])
        args = [values.pop(name) for name in self._positional]
        if self._rest is not None:
            args += values.pop(self._rest.name)
        if self._extra is not None and self._decode_extra is not None:
            known = {each.name for each in self._named}
            for name, raw in msgspec.json.decode(text, type=dict[str, msgspec.Raw]).items():
                if name not in known:
                    values[name] = at(name, self._decode_extra, raw)
        return args, values


class OneEvent:
    """The signature of a consumer: the payload is the event. `kind`: its type if the annotation gives none."""

    def __init__(self, hints: Hints, kind: Any) -> None:
        self._hints = hints
        self._takes_event = bool(hints.parameters)
        required = [each for each in hints.parameters[1:] if each.default is each.empty and each.kind in _POSITIONAL]
        if required or (hints.parameters and hints.parameters[0].kind not in _POSITIONAL):
            raise InvalidSetting(
                f"{hints.name} takes {hints.shape}", hint="a consumer takes one event, after ctx if it has that"
            )
        said = hints.types[hints.parameters[0].name] if hints.parameters else Any
        self._kind = kind if said is Any else said
        self._decode = decoder(self._kind, hints.name, hints.secrets)

    def encoded(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Encoded:
        """As Signature.encoded."""
        try:
            bound = list(self._hints.shape.bind(*args, **kwargs).arguments.values())
        except TypeError as error:
            raise InvalidMessage(f"{self._hints.name}: {error}", hint=f"it takes {self._hints.shape}") from None
        text = encode(bound[0] if bound else None)
        try:
            self._decode(text)
        except msgspec.ValidationError as error:
            raise InvalidMessage(
                f"{self._hints.name}: {describe(error)}", hint=f"it takes {self._hints.shape}"
            ) from None
        return Encoded(text)

    def caller(self, function: Callable[..., Any]) -> Callable[[Context], Any]:
        """As Signature.caller."""
        takes_context, takes_event = self._hints.takes_context, self._takes_event

        def call(context: Context) -> Any:
            event = (self._event(context.claim),) if takes_event else ()
            return function(context, *event) if takes_context else function(*event)

        return call

    def problems(self, text: str) -> dict[str, str]:
        """As Signature.problems."""
        try:
            self._decode(text)
        except msgspec.DecodeError as error:
            return {"": describe(error)}
        return {}

    def schema(self) -> dict[str, Any]:
        """As Signature.schema."""
        return json_schema(self._kind)

    def call_arguments(self, document: Any) -> tuple[list[Any], dict[str, Any]]:
        """As Signature.call_arguments."""
        return [document] if self._takes_event else [], {}

    def _event(self, claim: Claimed) -> Any:
        if claim.payload is None and self._kind in (Any, bytes):
            return claim.payload_bytes
        return readable(self._decode, claim, self._hints.shape)


def readable(decode: Callable[[str], Any], claim: Claimed, takes: inspect.Signature) -> Any:
    """Returns the decoded payload, or raises Abort("BAD_PAYLOAD")."""
    try:
        return decode(claim.payload)  # type: ignore[arg-type]  # None is no JSON, which `unreadable` reports
    except (msgspec.DecodeError, TypeError) as error:
        raise unreadable(claim, error, takes) from None


def unreadable(claim: Claimed, error: Exception, takes: inspect.Signature) -> Abort:
    """Returns the outcome of an attempt whose payload cannot be decoded; the handler has not run.

    It names both signatures, of the message and of the handler: one of them is from another deploy.
    """
    if claim.payload is None:
        return Abort("BAD_PAYLOAD", f"{claim.destination} takes JSON, and this message is {claim.content_type}")
    return Abort("BAD_PAYLOAD", f"{claim.destination}: {describe(error)}; sent {_shape(claim.payload)}, takes {takes}")


def _shape(text: str) -> str:
    """Returns the names and types in a payload, never its values: "(user_id: str, hobby: null)"."""
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return "no JSON"
    if isinstance(value, dict):
        return f"({', '.join(f'{name}: {_KINDS[type(item)]}' for name, item in value.items())})"
    return _KINDS[type(value)]


_KINDS: Final = {
    str: "str", int: "int", float: "float", bool: "bool", list: "list", dict: "dict", type(None): "null",
}  # fmt: skip


def _encoded(document: dict[str, Any], name: str) -> str:
    """Returns the document as JSON. InvalidMessage names the parameter that cannot be encoded."""
    try:
        return encode(document)
    except InvalidMessage as error:
        for parameter, value in document.items():
            try:
                encode(value)
            except InvalidMessage as its:
                raise InvalidMessage(f"{name}: {parameter}: {its}") from None
        raise InvalidMessage(f"{name}: {error}") from None


def _giving(default: Any) -> Callable[[], Any]:
    return lambda: default

"""Event classes: each has a topic, and a field that is the key of its messages."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.topic_pattern import check_topic


class DataclassLike(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


class ModelLike(Protocol):
    """An instance of a pydantic model."""

    @property
    def model_fields_set(self) -> set[str]:
        """The fields that were set."""


Event = DataclassLike | ModelLike | msgspec.Struct
"""The classes that `@box.event` takes."""

E = TypeVar("E", bound=type[Any])


class EventKind(msgspec.Struct, frozen=True):
    """An event class: its topic, and the field that is the key of its messages."""

    kind: type[Any]
    topic: str
    key: str | None

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of its fields."""
        return _fields(self.kind)

    @property
    def stored_fields(self) -> tuple[str, ...]:
        """The names of its fields in payloads: a msgspec struct may rename them."""
        return getattr(self.kind, "__struct_encode_fields__", self.fields)

    def key_of(self, event: Any) -> str | None:
        """Returns the key of one event. InvalidMessage: it is None."""
        if self.key is None:
            return None
        value = getattr(event, self.key)
        if value is None:
            raise InvalidMessage(
                f"{self.kind.__name__}.{self.key} is None, and it is the key",
                hint="give it a value, or publish(event, key=…, tx=…)",
            )
        return str(value)


class EventClasses:
    """The event classes of an App."""

    def __init__(self) -> None:
        self._kinds: dict[type[Any], EventKind] = {}

    def __iter__(self) -> Iterator[EventKind]:
        return iter(self._kinds.values())

    def declare(self, topic: str, key: str | None) -> Callable[[E], E]:
        """The decorator `@box.event(topic, key=…)`."""
        check_topic(topic)

        def declared(kind: E) -> E:
            fields = _fields(kind)
            if key is not None and key not in fields:
                raise InvalidSetting(f"{kind.__name__} has no field {key!r}", hint=f"one of: {', '.join(fields)}")
            for other in self._kinds.values():
                if other.topic == topic and other.kind is not kind:
                    raise InvalidSetting(
                        f"{other.kind.__name__} and {kind.__name__} both have the topic {topic!r}",
                        hint="one event class a topic",
                    )
            self._kinds[kind] = EventKind(kind, topic, key)
            return kind

        return declared

    def of(self, kind: type[Any]) -> EventKind:
        """Returns the declaration of a class, or of the nearest of its ancestors. InvalidMessage: there is none."""
        for ancestor in kind.__mro__:
            if (found := self._kinds.get(ancestor)) is not None:
                return found
        raise InvalidMessage(
            f"{kind.__name__} is not an event of this App", hint="declare it: @box.event('its.topic'), or pass a topic"
        )

    def split(self, event: Any, payload: object, key: str | None = None) -> tuple[str, object, str | None]:
        """Returns (topic, payload, key) of an event, or of a topic and its payload. A given `key` goes first."""
        if isinstance(event, str):
            return event, payload, key
        if payload is not None:
            raise InvalidMessage(
                "an event is its own payload", hint="publish(event, tx=…) or publish(topic, payload, tx=…)"
            )
        kind = self.of(type(event))
        return kind.topic, event, kind.key_of(event) if key is None else key


def _fields(kind: type[Any]) -> tuple[str, ...]:
    """Returns the field names of an event class. InvalidSetting: it cannot be one."""
    if not inspect.isclass(kind):
        raise InvalidSetting(f"{kind!r} cannot be an event", hint="put @box.event on a class")
    if dataclasses.is_dataclass(kind):
        return tuple(field.name for field in dataclasses.fields(kind))
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if isinstance(fields := getattr(kind, "model_fields", None), Mapping):
        return tuple(fields)
    raise InvalidSetting(
        f"{kind.__name__} cannot be an event",
        hint="use a dataclass (@box.event above @dataclass), a msgspec struct or a pydantic model",
    )

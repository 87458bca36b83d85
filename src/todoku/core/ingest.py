"""Ingested events: the received request, the contract of verifiers, and the templates that yield topics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol, runtime_checkable

import msgspec

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.message import MAX_KEY_LENGTH
from todoku.core.topic_pattern import check_topic

_FIELD: Final = re.compile(r"\{([^{}]*)\}")
_PATH: Final = re.compile(r"[^.\s{}]+(\.[^.\s{}]+)*")
_INVALID: Final = re.compile(r"[^A-Za-z0-9_:\-]+")
_SEPARATOR: Final = re.compile(r"[./]+")


class ReceivedRequest(msgspec.Struct, frozen=True):
    """A request from a source: its headers (names in lower case), and its body, byte for byte."""

    headers: Mapping[str, str]
    body: bytes


class Identity(msgspec.Struct, frozen=True):
    """The id that a source gives an event, the same each time it sends it, and the event's type, if it has one."""

    id: str
    type: str | None = None


class Challenge(msgspec.Struct, frozen=True):
    """A request by which a source checks that the endpoint exists. The response is `text`."""

    text: str


@runtime_checkable
class ReferencedSecret(Protocol):
    """A secret that is stored elsewhere and fetched when it is needed."""

    async def aget(self) -> str:
        """Fetches the secret."""


Secret = str | ReferencedSecret


class Verifier(Protocol):
    """Verifies the signatures of one source. It is a value: verifying reads no clock and does no I/O."""

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets in use, the newest first; during a rotation there are two."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Names (in lower case) of the headers that are stored with the message."""

    def key(self, secret: str, /) -> bytes:
        """Returns the HMAC key of a secret; raises InvalidSetting."""

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], now: float, /) -> int | None:
        """Returns the index of the key that signed the request, at most 300 s from `now` (unix seconds), or None.

        Every signature is compared with every key, in constant time.
        """

    def identity(self, arrived: ReceivedRequest, event: object, /) -> Identity | Challenge:
        """Returns the id and type of the event, from its headers or its JSON; raises InvalidMessage if it has no id."""


def value_at(path: str, event: object) -> object:
    """Returns the value at a path of names and indexes (`data.object.id`, `items.0.sku`) in JSON, or None."""
    here: Any = event
    for part in path.split("."):
        if isinstance(here, dict):
            here = here.get(part)
        elif isinstance(here, list) and part.isdecimal() and int(part) < len(here):
            here = here[int(part)]
        else:
            return None
    return here


def text_at(path: str, event: object) -> str | None:
    """Returns the string or integer at a path, as text; None: there is none."""
    value = value_at(path, event)
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def check_path(path: object, what: str) -> str:
    """Returns `path` if it is a path into JSON; raises InvalidSetting, which names it as `what`."""
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise InvalidSetting(f"{what} cannot be {path!r}", hint="names with dots between them: data.object.id")
    return path


class Template(msgspec.Struct, frozen=True):
    """A topic with placeholders that are filled in from each event: `stripe.{type}`, `github.{type}.{action}`."""

    text: str
    paths: tuple[str, ...]

    def topic(self, identity: Identity, event: object) -> str:
        """Returns the topic of an event. A placeholder is a path into its JSON; `{type}` is the type in `identity`,
        if it has one.

        Characters that a topic cannot contain become `_`, and a slash becomes a dot: `orders/create` is
        `orders.create`.
        """
        if not self.paths:
            return self.text
        if self.paths == ("type",) and identity.type:  # the usual case, cached
            return _fill_in_type(self.text, identity.type)
        return _FIELD.sub(lambda field: _segments(_fill_in(field[1], identity, event)), self.text)


@lru_cache(maxsize=1024)
def _fill_in_type(text: str, type: str) -> str:
    return text.replace("{type}", _segments(type))


def template(text: object) -> Template:
    """Parses a template; raises InvalidSetting."""
    if not isinstance(text, str):
        raise InvalidSetting(f"topic cannot be {text!r}", hint='a topic, or a template like "stripe.{type}"')
    paths = tuple(check_path(path, f"{{{path}}} in the topic") for path in _FIELD.findall(text))
    try:
        check_topic(_FIELD.sub("x", text))
    except InvalidMessage as error:
        raise InvalidSetting(f"topic: {error}", hint='a topic, or a template like "stripe.{type}"') from None
    return Template(text, paths)


def _fill_in(path: str, identity: Identity, event: object) -> str:
    value = identity.type if path == "type" and identity.type else text_at(path, event)
    if value is None:
        raise InvalidMessage(
            f"the event has no {path!r}, which its topic needs", hint="it must be a string or an integer"
        )
    return value


def _segments(value: str) -> str:
    return ".".join(_INVALID.sub("_", part) for part in _SEPARATOR.split(value) if part) or "_"


def check_event_id(value: str | None, where: str) -> str:
    """Returns an event id that can be an idempotency key; raises InvalidMessage, which says `where` it was expected."""
    if value is None or not value.isprintable() or not 0 < len(value) <= MAX_KEY_LENGTH:
        hint = f"1 to {MAX_KEY_LENGTH} printable characters"
        raise InvalidMessage(f"the event has no usable id: {where}", hint=hint)
    return value

"""What comes in from outside: a request that a source signed, who says it is whose, and what of it names a topic."""

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
_OTHER: Final = re.compile(r"[^A-Za-z0-9_:\-]+")
_BETWEEN: Final = re.compile(r"[./]+")


class Arrived(msgspec.Struct, frozen=True):
    """A request as it came: its headers (names in lower case), and its body byte for byte."""

    headers: Mapping[str, str]
    body: bytes


class Identity(msgspec.Struct, frozen=True):
    """What a source calls one of its events: the same id each time it is sent, and its type if there is one."""

    id: str
    type: str | None = None


class Challenge(msgspec.Struct, frozen=True):
    """A question of the source instead of an event: whether somebody is here. It is answered with `text`."""

    text: str


@runtime_checkable
class ReferencedSecret(Protocol):
    """A secret that is kept elsewhere, and asked for when it is needed."""

    async def aget(self) -> str:
        """The secret, now."""


Secret = str | ReferencedSecret


class Verifier(Protocol):
    """How a source signs. A value: verifying reads no clock and asks nobody."""

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Those in use, the newest first: while one is replaced by another, both."""

    @property
    def kept(self) -> tuple[str, ...]:
        """Headers (in lower case) that the message takes along: what the body does not tell."""

    def key(self, secret: str) -> bytes:
        """What a secret signs with, or InvalidSetting."""

    def signed_by(self, arrived: Arrived, keys: Sequence[bytes], now: float) -> int | None:
        """Which of the keys signed exactly this, at most 300 s from `now` (unix seconds); None: none did.

        Every signature is compared with every key, in a time that tells nothing of how much was right.
        """

    def identity(self, arrived: Arrived, event: object) -> Identity | Challenge:
        """What the event is called, by its headers or its JSON; InvalidMessage: it has no name."""


def found(path: str, event: object) -> object:
    """What is at a path of names and numbers (`data.object.id`, `items.0.sku`) in JSON; None: nothing."""
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
    """A text or a whole number at a path, as text; None: there is none."""
    value = found(path, event)
    if isinstance(value, str):
        return value or None
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else None


def checked_path(path: object, what: str) -> str:
    """A path into JSON, or InvalidSetting naming `what`."""
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        raise InvalidSetting(f"{what} cannot be {path!r}", hint="names with dots between them: data.object.id")
    return path


class Template(msgspec.Struct, frozen=True):
    """A topic with parts that each event fills in: `stripe.{type}`, `github.{type}.{action}`."""

    text: str
    paths: tuple[str, ...]

    def topic(self, identity: Identity, event: object) -> str:
        """The topic of an event. `{type}` is what its source calls its type, else and otherwise a path into its JSON.

        What a topic cannot hold becomes `_`, a slash a dot: `orders/create` is `orders.create`.
        """
        if not self.paths:
            return self.text
        if self.paths == ("type",) and identity.type:  # as nearly all are
            return _of_type(self.text, identity.type)
        return _FIELD.sub(lambda field: _words(_filled(field[1], identity, event)), self.text)


@lru_cache(maxsize=1024)
def _of_type(text: str, type: str) -> str:
    return text.replace("{type}", _words(type))


def template(text: object) -> Template:
    """A checked template, or InvalidSetting."""
    if not isinstance(text, str):
        raise InvalidSetting(f"topic cannot be {text!r}", hint='a topic, or a template like "stripe.{type}"')
    paths = tuple(checked_path(path, f"{{{path}}} in the topic") for path in _FIELD.findall(text))
    try:
        check_topic(_FIELD.sub("x", text))
    except InvalidMessage as error:
        raise InvalidSetting(f"topic: {error}", hint='a topic, or a template like "stripe.{type}"') from None
    return Template(text, paths)


def _filled(path: str, identity: Identity, event: object) -> str:
    value = identity.type if path == "type" and identity.type else text_at(path, event)
    if value is None:
        raise InvalidMessage(f"the event has no {path!r}, and its topic needs it", hint="a text or a whole number")
    return value


def _words(value: str) -> str:
    return ".".join(_OTHER.sub("_", part) for part in _BETWEEN.split(value) if part) or "_"


def checked_id(value: str | None, where: str) -> str:
    """An event id that can be a key, or InvalidMessage naming where it was looked for."""
    if value is None or not value.isprintable() or not 0 < len(value) <= MAX_KEY_LENGTH:
        hint = f"1 to {MAX_KEY_LENGTH} printable characters"
        raise InvalidMessage(f"the event has no id that can be used: {where}", hint=hint)
    return value

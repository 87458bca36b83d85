"""Texts that name secrets instead of containing them: `secret://provider/path`, alone or in braces within a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from todoku.core.errors import InvalidSetting

SECRET_SCHEME: Final = "secret://"  # noqa: S105 - the scheme
_NAMED: Final = re.compile(r"secret://(?P<provider>[A-Za-z][A-Za-z0-9_.-]{0,63})/(?P<path>[^\x00-\x1f\x7f{}]{1,1024})")
_BRACES: Final = re.compile(r"\{(secret://[^{}]*)\}")
_HINT: Final = "write secret://provider/path, or {secret://provider/path} within a longer text"


def names_secret(text: str) -> bool:
    """Whether a text names a secret, or was meant to."""
    return SECRET_SCHEME in text


def secret_id(url: str) -> str:
    """Returns the id of `secret://provider/path`, which is `provider:path`; raises InvalidSetting."""
    if (named := _NAMED.fullmatch(url)) is None:
        raise InvalidSetting("a text that begins with secret:// names no provider and path", hint=_HINT)
    return f"{named['provider']}:{named['path']}"


def secret_ids(text: str) -> tuple[str, ...]:
    """Returns the ids of all secrets that a text names; raises InvalidSetting."""
    if text.startswith(SECRET_SCHEME):
        return (secret_id(text),)
    if names_secret(_BRACES.sub("", text)):
        raise InvalidSetting("a text has secret:// in it without braces", hint=_HINT)
    return tuple(secret_id(url) for url in _BRACES.findall(text))


def with_secrets(text: str, values: Mapping[str, str]) -> str:
    """Returns the text with the value of each secret, by id, in its place. Within a URL, values are percent-encoded."""
    if text.startswith(SECRET_SCHEME):
        return values[secret_id(text)]
    in_url = "://" in _BRACES.sub("", text)

    def value(found: re.Match[str]) -> str:
        plain = values[secret_id(found[1])]
        return quote(plain, safe="") if in_url else plain

    return _BRACES.sub(value, text)

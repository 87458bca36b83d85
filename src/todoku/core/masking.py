"""Masks values in logs and previews: the values of fields with sensitive names are replaced by `***`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from todoku.core.http_headers import is_secret

STARS: Final = "***"
MASKED: Final = (
    "password", "passwd", "passphrase", "secret", "token", "authorization", "api_key", "apikey", "private_key",
    "credential", "cookie", "email", "phone", "iban", "card", "card_number", "cvc", "cvv", "ssn",
)  # fmt: skip
"""The default of the setting `mask_fields`."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def mask(value: object, fields: frozenset[str]) -> object:
    """Replaces, at every depth, the values of fields whose names contain one of `fields` as whole words.

    `token` covers `Access-Token`, `accessToken` and `tokens`; `card` does not cover `discard`.
    """
    if isinstance(value, Mapping):
        return {
            name: STARS if item is not None and is_sensitive(str(name), fields) else mask(item, fields)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask(item, fields) for item in value]
    return value


@lru_cache(maxsize=4096)
def is_sensitive(name: str, fields: frozenset[str]) -> bool:
    """Whether the value of a field called `name` is masked: `fields` has its words, or it is a secret header.

    A name with a dash is taken for a header. So a field `primary_key` is shown, and a header `X-Signing-Key` is not.
    """
    if "-" in name and is_secret(name):
        return True
    joined = _joined_words(name)
    return any(f"-{field}-" in joined for field in (_joined_words(field)[1:-1] for field in fields) if field)


def words(name: str) -> list[str]:
    """Splits a name into lower-case words in the singular: `userEmails` is `user`, `email`."""
    return [word.lower().removesuffix("s") for word in _WORD.findall(name)]


def _joined_words(name: str) -> str:
    """Returns the words of a name between dashes: `userEmails` is `-user-email-`."""
    return "-" + "".join(f"{word}-" for word in words(name))

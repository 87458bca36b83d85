"""What nobody may read over somebody's shoulder: values of telling field names become stars, in logs and previews."""

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
    """`value` with stars in place of whatever a field holds whose name has one of `fields` in it, word by word.

    `token` covers `Access-Token`, `accessToken` and `tokens`; `card` does not cover `discard`. Mappings and sequences
    are gone through at every depth; whatever else is there is left as it is.
    """
    if isinstance(value, Mapping):
        return {
            name: STARS if item is not None and telling(str(name), fields) else mask(item, fields)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [mask(item, fields) for item in value]
    return value


@lru_cache(maxsize=4096)
def telling(name: str, fields: frozenset[str]) -> bool:
    """Whether a field called `name` holds what is to be masked: by its words, or as the secret header it may be.

    Only headers have dashes in their names. So a field `primary_key` is shown, and a header `X-Signing-Key` is not.
    """
    if "-" in name and is_secret(name):
        return True
    words = _words(name)
    return any(f"-{field}-" in words for field in (_words(field)[1:-1] for field in fields) if field)


def words(name: str) -> list[str]:
    """The words of a name, without case and plural: `userEmails` is `user`, `email`."""
    return [word.lower().removesuffix("s") for word in _WORD.findall(name)]


def _words(name: str) -> str:
    """Its words between dashes: `userEmails` is `-user-email-`."""
    return "-" + "".join(f"{word}-" for word in words(name))

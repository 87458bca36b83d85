"""Guesses which fields contain personal data, from their names only, never from values."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from todoku.core.masking import words

_PERSONAL: Final = (
    "mail", "email", "phone", "telephone", "tel", "mobile", "fax", "address", "addresses", "street", "zipcode",
    "postcode", "birth", "birthday", "birthdate", "dob", "gender", "iban", "card", "cvc", "cvv", "ssn", "passport",
    "password", "passwd", "passphrase", "secret", "token", "salary", "surname", "firstname", "lastname", "fullname",
    "username", "nickname", "patient", "diagnosis", "shimei", "namae", "jusho", "juusho", "jyusho", "denwa", "keitai",
    "tanjobi", "tanjoubi", "seinengappi", "yubin", "yuubin", "furigana", "koza", "kouza", "seibetsu", "kojin",
    "mynumber",
)  # fmt: skip
_WORDS: Final = frozenset(word.removesuffix("s") for word in _PERSONAL)

_BEFORE_NAME: Final = (
    "first", "last", "full", "given", "family", "middle", "maiden", "nick", "user", "customer", "client", "person",
    "contact", "sender", "recipient", "member", "patient", "employee", "owner", "display", "legal", "holder",
)  # fmt: skip
"""Words before `name` that make it a person's name. A bare `name` counts as one, too; `file_name` does not."""

_JAPANESE: Final = re.compile(
    "氏名|名前|姓|住所|電話|携帯|生年月日|誕生日|郵便番号|メール|パスワード|口座|カード番号|マイナンバー|"
    "フリガナ|ふりがな|性別|個人|暗証番号|保険証"
)
_MAX_DEPTH: Final = 20


def personal_fields(value: object) -> list[str]:
    """Returns the field names in a JSON value that look personal, at every depth, sorted and without repetition."""
    return sorted({name for name in _names(value, _MAX_DEPTH) if looks_personal(name)})


@lru_cache(maxsize=4096)
def looks_personal(name: str) -> bool:
    """Whether a field of this name probably contains personal data."""
    parts = words(name)
    if any(part in _WORDS for part in parts) or _JAPANESE.search(name):
        return True
    return any(part == "name" and (place == 0 or parts[place - 1] in _BEFORE_NAME) for place, part in enumerate(parts))


def _names(value: object, depth: int) -> Iterator[str]:
    if depth and isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _names(item, depth - 1)
    elif depth and isinstance(value, list):
        for item in value:
            yield from _names(item, depth - 1)

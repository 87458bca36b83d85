"""Which field names look personal: a guess from the name alone, never from a value."""

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

_WHOSE: Final = (
    "first", "last", "full", "given", "family", "middle", "maiden", "nick", "user", "customer", "client", "person",
    "contact", "sender", "recipient", "member", "patient", "employee", "owner", "display", "legal", "holder",
)  # fmt: skip
"""What makes somebody's `name` of a name; a bare `name` is taken for one, a `file_name` is not."""

_KANJI: Final = re.compile(
    "氏名|名前|姓|住所|電話|携帯|生年月日|誕生日|郵便番号|メール|パスワード|口座|カード番号|マイナンバー|"
    "フリガナ|ふりがな|性別|個人|暗証番号|保険証"
)
_DEEPEST: Final = 20


def personal_fields(value: object) -> list[str]:
    """The names in a JSON value that look personal, at every depth, sorted and once each."""
    return sorted({name for name in _names(value, _DEEPEST) if looks_personal(name)})


@lru_cache(maxsize=4096)
def looks_personal(name: str) -> bool:
    """Whether a field called so holds something about a person."""
    parts = words(name)
    if any(part in _WORDS for part in parts) or _KANJI.search(name):
        return True
    return any(part == "name" and (place == 0 or parts[place - 1] in _WHOSE) for place, part in enumerate(parts))


def _names(value: object, depth: int) -> Iterator[str]:
    if depth and isinstance(value, dict):
        for name, item in value.items():
            yield str(name)
            yield from _names(item, depth - 1)
    elif depth and isinstance(value, list):
        for item in value:
            yield from _names(item, depth - 1)

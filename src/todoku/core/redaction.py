"""Redaction: values that the publisher wants hidden are shown as digests wherever a request is displayed.

With a master key, the same headers are not stored as plain text either: they are removed from the request and sealed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

import msgspec

from todoku.core.http_request import Callback, HttpRequest, is_secret
from todoku.core.sealed import parse_master_sealed

# ------------------------------------------------------------
# Masks values in logs and previews: the values of fields with sensitive names are replaced by `***`.

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


# ------------------------------------------------------------
# Guesses which fields contain personal data, from their names only, never from values.

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


_CONTENT_TYPE: Final = "Content-Type"
_FIELD: Final = re.compile(r"body|header|header\[([^\[\]\s]{1,256})\]", re.IGNORECASE)


REDACTED: Final = "REDACTED"
"""Prefix of every redacted value."""


def redact_value(value: bytes) -> str:
    """Returns the text to show instead of a value. It reveals only whether two values are equal."""
    return f"{REDACTED}:{hashlib.sha256(value).hexdigest()}"


def redact_request(request: HttpRequest) -> HttpRequest:
    """Returns the request as it may be displayed. Headers that are secret by their names are always redacted."""
    return msgspec.structs.replace(
        request,
        headers=redact_headers(request.headers, request.redact),
        callback=_redact_callback(request.callback, request.redact),
        failure_callback=_redact_callback(request.failure_callback, request.redact),
    )


def split_secret_headers(headers: dict[str, str], redact: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits headers into those to store, with empty values for secret ones, and the values of the secret ones.

    The content type is never secret.
    """
    names = _redacted_names(headers, redact) - {_CONTENT_TYPE}
    secrets = {name: value for name, value in headers.items() if name in names and value}
    return headers | dict.fromkeys(secrets, ""), secrets


def strip_secret_headers(request: HttpRequest) -> HttpRequest:
    """Returns the request with empty values for the secret headers, also in its callbacks."""
    return msgspec.structs.replace(
        request,
        headers=split_secret_headers(request.headers, request.redact)[0],
        callback=_strip_callback(request.callback, request.redact),
        failure_callback=_strip_callback(request.failure_callback, request.redact),
    )


def _strip_callback(callback: Callback | None, redact: tuple[str, ...]) -> Callback | None:
    if callback is None:
        return None
    return msgspec.structs.replace(callback, headers=split_secret_headers(callback.headers, redact)[0])


def _redact_callback(callback: Callback | None, redact: tuple[str, ...]) -> Callback | None:
    if callback is None or not callback.headers:
        return callback
    return msgspec.structs.replace(callback, headers=redact_headers(callback.headers, redact), sealed=None)


def redact_headers(headers: dict[str, str], redact: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns headers as they may be displayed."""
    redacted_names = _redacted_names(headers, redact)
    return {name: _redact_value(value) if name in redacted_names else value for name, value in headers.items()}


def _redact_value(value: str) -> str:
    """Returns the text to show instead of a header. A sealed or empty value has no digest."""
    return redact_value(value.encode()) if value and parse_master_sealed(value) is None else REDACTED


def _redacted_names(headers: dict[str, str], redact: tuple[str, ...]) -> set[str]:
    names = {found[1].lower() for field in redact if (found := _FIELD.fullmatch(field)) and found[1]}
    everything = any(field.lower() == "header" for field in redact)
    return {name for name in headers if everything or is_secret(name) or name.lower() in names}


def redact_response_headers(headers: dict[str, str], redact: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns headers of a response as they may be displayed. The field `header` means only those of the request."""
    return redact_headers(headers, tuple(field for field in redact if field.lower() != "header"))


def is_redacted(value: str) -> bool:
    """Whether this text was shown instead of a value."""
    return value == REDACTED or value.startswith(f"{REDACTED}:")


def redact_body(request: HttpRequest, body: bytes) -> bytes:
    """Returns the body as it may be displayed."""
    return redact_value(body).encode() if redacts_body(request) else body


def redacts_body(request: HttpRequest) -> bool:
    """Whether the publisher wants the body redacted."""
    return any(field.lower() == "body" for field in request.redact)

"""Passwords: hashed by argon2id, and checked in the same time whether the user exists or not."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from todoku.core.errors import CannotStart, InvalidAct

if TYPE_CHECKING:
    from argon2 import PasswordHasher

SHORTEST: Final = 12
LONGEST: Final = 1024
_ROUNDS: Final = 2
_KIBIBYTES: Final = 46 << 10
"""The cost of a hash: twice OWASP's least, on one core, so that guessing leaves the other cores to workers."""


def check_password(text: str, name: str) -> None:
    """InvalidAct unless this may be the password of the user of this name."""
    if not SHORTEST <= len(text) <= LONGEST:
        raise InvalidAct(
            f"the password has {len(text)} characters", hint=f"{SHORTEST} to {LONGEST} are allowed; spaces are fine"
        )
    if text.casefold() == name.casefold() or len(set(text)) < 4:
        raise InvalidAct("the password is easy to guess", hint="use a few random words, or a password manager")


def hash_password(text: str) -> str:
    """Returns the stored form of a password. It takes a core for a tenth of a second and 46 MiB."""
    return _hasher().hash(text)


def verify_password(hash: str | None, text: str) -> bool:
    """Returns whether the password has this hash. None (there is no such user) takes as long, and is False."""
    from argon2.exceptions import InvalidHashError, VerificationError  # noqa: PLC0415 - the extra `server`

    if len(text) > LONGEST:
        return False
    try:
        _hasher().verify(_dummy() if hash is None else hash, text)
    except (VerificationError, InvalidHashError):
        return False
    return hash is not None


@cache
def _hasher() -> PasswordHasher:
    try:
        from argon2 import PasswordHasher  # noqa: PLC0415 - the extra `server`
    except ImportError as error:
        raise CannotStart(
            "passwords need argon2-cffi, which is not installed", hint='run pip install "todoku[server]"'
        ) from error
    return PasswordHasher(time_cost=_ROUNDS, memory_cost=_KIBIBYTES, parallelism=1)


@cache
def _dummy() -> str:
    return _hasher().hash("no user has this password")

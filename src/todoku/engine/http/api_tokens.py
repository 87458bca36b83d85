"""API tokens: shown once when they are made, stored as a hash, checked without a query each time."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from cachetools import TTLCache

from todoku.core.errors import InvalidAct, InvalidMessage, StoreError
from todoku.core.identity import base62
from todoku.core.scope import Scope, Secret, allows, known, scopes
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log
from todoku.engine.outbox import new_id
from todoku.engine.publish import check_text
from todoku.store.audit import Signed
from todoku.store.store import Store
from todoku.store.tokens import TokenRow

REMEMBERED: Final = 5.0
"""Seconds for which a check is remembered: so long a token that was revoked may still open something."""

KNOWN: Final = 10_000
UNKNOWN: Final = 4096
"""Limits of the two caches. A caller that repeats a wrong token costs no query."""

USED_EVERY: Final = 60.0
"""Seconds between two writes of the time at which one token was last used."""

_LONGEST_NAME: Final = 255
_LONGEST: Final = 512
_FIRST: Final = Signed("todoku", "there was no token")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as people see it: never the token itself. `prefix` is how it begins. `id` None: the setting's."""

    id: UUID | None
    name: str
    prefix: str
    scopes: tuple[Scope, ...]
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    last_used_at: datetime | None = None
    alive: bool = True

    def allows(self, scope: Scope) -> bool:
        """Whether it may do this."""
        return self.alive and allows(self.scopes, scope)


OF_SETTINGS: Final = Token(id=None, name="TODOKU_TOKEN", prefix="", scopes=("admin",))
"""The token that is a setting: an admin's, without a row."""


def create(
    store: Store, signed: Signed, *, name: str, scopes: Iterable[object], lasts: float | None = None
) -> tuple[Token, str]:
    """A new token and its text, which is nowhere else from now on. `lasts`: seconds until it ends by itself."""
    id, text, checked = _made(name, scopes)
    if lasts is not None and not 0 < lasts <= 10 * 365 * 86_400.0:
        raise InvalidAct(f"expires cannot be {lasts:g} s", hint="more than 0, and ten years at the most")
    row = store.tokens.add(id, name, hashed(text), checked, signed, lasts=lasts)
    return _token(row), text


def first(store: Store, settings: Settings) -> str | None:
    """The text of an admin token that was made because there was none at all, nor one in the settings; else None.

    One of all processes that ask at the same time is given it, to show it once.
    """
    if settings.token is not None:
        return None
    id, text, checked = _made("first", ("admin",))
    return text if store.tokens.add_first(id, "first", hashed(text), checked, _FIRST) is not None else None


def listed(store: Store) -> tuple[Token, ...]:
    """Every token there is, revoked ones too, the oldest first."""
    return tuple(map(_token, store.tokens.rows()))


def find(store: Store, what: str) -> Token:
    """The token of an id, a prefix or a name. InvalidAct: there is none, or several are called so."""
    found = [each for each in listed(store) if what in (str(each.id), each.prefix, each.name)]
    alive = [each for each in found if each.revoked_at is None] or found
    if len(alive) != 1:
        number = "no token" if not alive else f"{len(alive)} tokens"
        hint = "`todoku tokens list` shows them" if not alive else "give the prefix instead of the name"
        raise InvalidAct(f"{number} called {what!r}", hint=hint)
    return alive[0]


def revoke(store: Store, id: UUID, signed: Signed) -> Token:
    """It opens nothing any more, from the next few seconds on. InvalidAct: there is none, or it was revoked."""
    return _token(store.tokens.revoke(id, signed))


class TokenChecker:
    """Checks tokens for one process, and remembers what it found for a few seconds. Thread-safe; it blocks."""

    def __init__(self, store: Store, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._setting = settings.token
        self._lock = threading.Lock()  # a TTLCache changes when it is read, too
        # Two caches, so that no number of wrong tokens evicts a right one.
        self._known: TTLCache[str, Token] = TTLCache(KNOWN, REMEMBERED, timer=monotonic)
        self._unknown: TTLCache[str, bool] = TTLCache(UNKNOWN, REMEMBERED, timer=monotonic)
        self._used: TTLCache[UUID, bool] = TTLCache(KNOWN, USED_EVERY, timer=monotonic)

    def check(self, text: str) -> Token | None:
        """The live token of this text; None: there is none, or it was revoked or has expired. StoreError."""
        is_cached, token = self.recall(text)
        if is_cached:
            return token
        if token is None:
            token = self._look_up(hashed(text))
        if token is not None:
            self._note(token)
        return token

    def recall(self, text: str) -> tuple[bool, Token | None]:
        """Whether `check` needs no query, and its answer then: an event loop can do without a thread."""
        if not 0 < len(text) <= _LONGEST:
            return True, None
        if self._setting is not None and Secret(text) == self._setting:
            return True, OF_SETTINGS
        hash = hashed(text)
        with self._lock:
            try:  # for a known token half the time of TTLCache.get, and this is done for every request
                known = self._known[hash]
            except KeyError:
                return hash in self._unknown, None
            return known.id in self._used, known

    def _look_up(self, hash: str) -> Token | None:
        row = self._store.tokens.by_hash(hash)
        token = _token(row) if row is not None and row.alive else None
        with self._lock:
            if token is None:
                self._unknown[hash] = True
            else:
                self._known[hash] = token
        return token

    def _note(self, token: Token) -> None:
        """When it was last used is for people: not worth a write more than once a minute, nor a failed request."""
        with self._lock:
            if token.id is None or token.id in self._used:
                return
            self._used[token.id] = True
        try:
            self._store.tokens.record_use(token.id, every=USED_EVERY)
        except StoreError as error:
            Log().debug("DUTY_FAILED", duty="tokens", error=str(error))


def hashed(text: str) -> str:
    """How a token is stored. Plain SHA-256 is enough: a token is chance, not a password that people choose."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """InvalidMessage unless a token may have this name, which is printed beside every act done with the token."""
    check_text(name, "name of a token", _LONGEST_NAME)
    if not name.isprintable():
        raise InvalidMessage(f"a token cannot be called {name!r}", hint="no line breaks or invisible characters")


def _made(name: str, given: Iterable[object]) -> tuple[UUID, str, tuple[Scope, ...]]:
    checked = scopes(given)
    check_name(name)
    id = new_id()
    return id, f"{_prefix(id)}_{base62(os.urandom(24))}", checked


def _prefix(id: UUID) -> str:
    """How the token with this id begins: enough for people to tell it from others, of no use to anybody else."""
    return f"todoku_{id.hex[-8:]}"


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        prefix=_prefix(row.id),
        scopes=known(row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        alive=row.alive,
    )

"""API tokens: shown once when created, stored as a hash, checked through a cache."""

from __future__ import annotations

import base64
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
from todoku.core.scope import Scope, Secret, allows, known_scopes, scopes
from todoku.core.settings import Settings
from todoku.engine.observability.log import Log
from todoku.engine.outbox import new_id
from todoku.engine.publish import check_text
from todoku.store.audit import Signed
from todoku.store.store import Store
from todoku.store.tokens import TokenRow

CACHE_SECONDS: Final = 5.0
"""Seconds for which the result of a check is cached, and a revoked token may still be accepted."""

KNOWN: Final = 10_000
UNKNOWN: Final = 4096
"""Limits of the two caches. A caller that repeats a wrong token costs no query."""

USED_EVERY: Final = 60.0
"""Seconds between two writes of the time at which one token was last used."""

_LONGEST_NAME: Final = 255
_LONGEST: Final = 512
_FIRST: Final = Signed("todoku", "there was no token")


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its text. `prefix`: its first characters. `id` None: the token of the settings."""

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
        """Returns whether the token is alive and has the scope."""
        return self.alive and allows(self.scopes, scope)


OF_SETTINGS: Final = Token(id=None, name="TODOKU_TOKEN", prefix="", scopes=("admin",))
"""The token of the settings: an admin's, without a row."""


def create(
    store: Store,
    signed: Signed,
    *,
    name: str,
    scopes: Iterable[object],
    lasts: float | None = None,
    upstash: bool = False,
) -> tuple[Token, str]:
    """Creates a token. Returns it and its text, which is not stored. `lasts`: seconds until it expires.

    `upstash`: its text has the form of a token of QStash, in which `@upstash/workflow` reads an id of its user.
    """
    id, text, checked = _new_token(name, scopes)
    text = _as_of_upstash(id, text) if upstash else text
    if lasts is not None and not 0 < lasts <= 10 * 365 * 86_400.0:
        raise InvalidAct(f"expires cannot be {lasts:g} s", hint="use more than 0 and at most ten years")
    row = store.tokens.add(id, name, hash_token(text), checked, signed, lasts=lasts)
    return _token(row), text


def create_first(store: Store, settings: Settings) -> str | None:
    """Creates an admin token if there is none, neither stored nor in the settings. Returns its text, else None.

    Of several concurrent processes, only one gets the text and can show it.
    """
    if settings.token is not None:
        return None
    id, text, checked = _new_token("first", ("admin",))
    return text if store.tokens.add_first(id, "first", hash_token(text), checked, _FIRST) is not None else None


def list_tokens(store: Store) -> tuple[Token, ...]:
    """Returns all tokens including revoked ones, oldest first."""
    return tuple(map(_token, store.tokens.rows()))


def find(store: Store, what: str) -> Token:
    """Returns the token with this id, prefix or name. InvalidAct: none or several have it."""
    found = [each for each in list_tokens(store) if what in (str(each.id), each.prefix, each.name)]
    alive = [each for each in found if each.revoked_at is None] or found
    if len(alive) != 1:
        number = "no token" if not alive else f"{len(alive)} tokens"
        hint = "`todoku tokens list` lists the tokens" if not alive else "give the prefix instead of the name"
        raise InvalidAct(f"{number} called {what!r}", hint=hint)
    return alive[0]


def revoke(store: Store, id: UUID, signed: Signed) -> Token:
    """Revokes a token; caches expire within `CACHE_SECONDS`. InvalidAct: it does not exist or is revoked already."""
    return _token(store.tokens.revoke(id, signed))


class TokenChecker:
    """Checks tokens for one process and caches the results for `CACHE_SECONDS`. Thread-safe; it blocks."""

    def __init__(self, store: Store, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._setting = settings.token
        self._lock = threading.Lock()  # reading a TTLCache changes it, too
        # Two caches, so that no number of wrong tokens evicts a right one.
        self._known: TTLCache[str, Token] = TTLCache(KNOWN, CACHE_SECONDS, timer=monotonic)
        self._unknown: TTLCache[str, bool] = TTLCache(UNKNOWN, CACHE_SECONDS, timer=monotonic)
        self._used: TTLCache[UUID, bool] = TTLCache(KNOWN, USED_EVERY, timer=monotonic)

    def check(self, text: str) -> Token | None:
        """Returns the token of this text; None if it is unknown, revoked or expired. StoreError."""
        is_cached, token = self.recall(text)
        if is_cached:
            return token
        if token is None:
            token = self._look_up(hash_token(text))
        if token is not None:
            self._note_use(token)
        return token

    def recall(self, text: str) -> tuple[bool, Token | None]:
        """Returns (True, the result of `check`) if that needs no query, so that an event loop needs no thread."""
        if not 0 < len(text) <= _LONGEST:
            return True, None
        if self._setting is not None and Secret(text) == self._setting:
            return True, OF_SETTINGS
        hash = hash_token(text)
        with self._lock:
            try:  # takes half the time of TTLCache.get for a known token; this runs for every request
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

    def _note_use(self, token: Token) -> None:
        """Stores the time of the last use, at most once a minute. A failure is only logged: the time is informative."""
        with self._lock:
            if token.id is None or token.id in self._used:
                return
            self._used[token.id] = True
        try:
            self._store.tokens.record_use(token.id, every=USED_EVERY)
        except StoreError as error:
            Log().debug("DUTY_FAILED", duty="tokens", error=str(error))


def hash_token(text: str) -> str:
    """Returns the stored form of a token. Plain SHA-256 is enough, since tokens are random, not chosen by people."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_name(name: str) -> None:
    """InvalidMessage unless the name can be printed: it is shown with every audited action of the token."""
    check_text(name, "name of a token", _LONGEST_NAME)
    if not name.isprintable():
        raise InvalidMessage(f"a token cannot be called {name!r}", hint="no line breaks or invisible characters")


def _new_token(name: str, given: Iterable[object]) -> tuple[UUID, str, tuple[Scope, ...]]:
    checked = scopes(given)
    check_name(name)
    id = new_id()
    return id, f"{_prefix(id)}_{base62(os.urandom(24))}", checked


def _as_of_upstash(id: UUID, secret: str) -> str:
    return base64.b64encode(msgspec.json.encode({"UserID": _prefix(id), "Password": secret})).decode()


def _prefix(id: UUID) -> str:
    """Returns the first characters of the token with this id: they identify it and reveal nothing of its secret."""
    return f"todoku_{id.hex[-8:]}"


def _token(row: TokenRow) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        prefix=_prefix(row.id),
        scopes=known_scopes(row.scopes),
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        last_used_at=row.last_used_at,
        alive=row.alive,
    )

"""Sessions: a random id that only the browser has; the database has its hash, the person and the token of forms."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec
from cachetools import TTLCache

from todoku.core.errors import StoreError
from todoku.core.role import role_of_scopes
from todoku.core.settings import Settings
from todoku.engine.http.api_tokens import Token, hash_token
from todoku.engine.observability.log import Log
from todoku.store.audit import Signed
from todoku.store.sessions import Person, SessionRow
from todoku.store.store import Store

_KNOWN: Final = 10_000
_SEEN_EVERY: Final = 60.0
"""Seconds between two writes of the time at which a session was last used."""

_LONGEST_ID: Final = 64
_WITH: Final = {
    "user": "with a password",
    "token": "with an API token",
    "setting": "with the token of the settings",
    "oidc": "through the OpenID provider",
}


class OpenedSession(msgspec.Struct, frozen=True):
    """A session that was just opened. `id` is for the browser's cookie, and is stored nowhere."""

    id: str
    csrf: str

    def __repr__(self) -> str:
        return "<OpenedSession>"


class Sessions:
    """The sessions of one database, as one process uses them. Thread-safe; it blocks."""

    def __init__(self, store: Store, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store, self._settings = store, settings
        self._idle = settings.web_idle_sec
        self._lock = threading.Lock()
        self._every = min(_SEEN_EVERY, self._idle / 4)
        self._seen: TTLCache[str, bool] = TTLCache(_KNOWN, self._every, timer=monotonic)

    def open(self, person: Person, *, replaces: str | None = None) -> OpenedSession:
        """Opens a session with a new id. The session with the id `replaces`, of the same browser, ends."""
        opened = OpenedSession(secrets.token_urlsafe(32), secrets.token_urlsafe(24))
        self._store.sessions.add(
            hash_id(opened.id),
            person,
            opened.csrf,
            Signed(person.name, _WITH[person.kind]),
            lasts=self._settings.web_session_sec,
            replaces=None if replaces is None else hash_id(replaces),
        )
        return opened

    def find(self, id: str) -> SessionRow | None:
        """Returns the session of this id; None if there is none, or it has ended."""
        if not 0 < len(id) <= _LONGEST_ID:
            return None
        hash = hash_id(id)
        found = self._store.sessions.by_hash(hash, idle=self._idle)
        if found is None or not self._is_current(found.person):
            return None
        self._note_use(hash)
        return found

    def end(self, id: str) -> None:
        """Ends a session; without one, nothing happens."""
        self._store.sessions.end(hash_id(id))

    def end_all(self, person: Person) -> int:
        """Ends all sessions of a person. Returns how many."""
        return self._store.sessions.end_all(person)

    def _is_current(self, person: Person) -> bool:
        """Whether the token of the settings is still the one that a person signed in with."""
        if person.kind != "setting":
            return True
        token = self._settings.token
        return token is not None and hmac.compare_digest(token.digest(), person.subject)

    def _note_use(self, hash: str) -> None:
        """Stores the time of the last use, at most once a minute. A failure is only logged: the session goes on."""
        with self._lock:
            if hash in self._seen:
                return
            self._seen[hash] = True
        try:
            self._store.sessions.record_use(hash, every=self._every)
        except StoreError as error:
            Log().debug("DUTY_FAILED", duty="sessions", error=str(error))


def person_of_token(token: Token, text: str) -> Person | None:
    """Returns the person that the holder of a token is in the dashboard; None: the token may not read."""
    if (role := role_of_scopes(token.scopes)) is None:
        return None
    if token.id is None:
        return Person(kind="setting", subject=hash_token(text), name=token.name, role=role)
    return Person(kind="token", subject=str(token.id), name=token.name, role=role)


def hash_id(id: str) -> str:
    """Returns the stored form of a session's id. Plain SHA-256 is enough, since ids are random."""
    return hashlib.sha256(id.encode("utf-8", "surrogatepass")).hexdigest()

"""Sealing: what is declared encrypted leaves this process encrypted, in whatever way its draft is stored.

A process has one data key a day, made of chance at first use. Its wrapped form travels with every draft it has sealed,
and the transaction that stores the draft stores it too, unless it sees it there: a rollback leaves neither without the
other, a database that was restored gets it again, and nobody needs a second connection beside a caller's transaction.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.identity import key_hash
from todoku.core.master_keys import NO_KEY_HINT, MasterKeys
from todoku.core.message import Draft, Idempotency
from todoku.core.sealed import Kind, SealedPlace, packed
from todoku.core.settings import Settings
from todoku.engine.encryption.cipher import DataKey, new_data_key, require_cryptography
from todoku.engine.encryption.secret_headers import closed_headers

SEALS: Final = 1 << 30
"""So many messages with one data key: with nonces of 96 random bits, two are equal once in 2^37 such keys."""


def utc_today() -> date:
    """The day in UTC, which is what the days of data keys are."""
    return datetime.now(UTC).date()


class Sealer:
    """The publishing side of one App. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        today: Callable[[], date] = utc_today,
        chance: Callable[[int], bytes] = os.urandom,
        most: int = SEALS,
    ) -> None:
        self.masters: MasterKeys = settings.master_keys
        self._everything = settings.encrypt == "all"
        self._topics: set[str] = set()
        self._today = today
        self._chance = chance
        self._most = most
        self._lock = threading.Lock()
        self._key: DataKey | None = None
        if self._everything:
            self._require("everything")

    def declare(self, topic: str) -> None:
        """From now on, what is published under this topic is sealed. Refused where it could not be."""
        self._require(topic)
        self._topics.add(topic)

    def _require(self, what: str) -> None:
        if not self.masters:
            raise InvalidSetting(f"{what} is to be encrypted, and there is no master key", hint=NO_KEY_HINT)
        require_cryptography()

    def seals(self, topic: str) -> bool:
        """Whether what is published under this topic is sealed."""
        return self._everything or topic in self._topics

    def sealed(self, draft: Draft) -> Draft:
        """The draft with its payload sealed for its own id and topic, and with digests that nobody can guess."""
        with self._lock:
            return self._sealed(draft, self._current())

    def request(self, draft: Draft, *, body: bool = False) -> Draft:
        """The draft of a request as it may be stored: wherever there is a master key its secret headers are sealed; its
        body is if its topic is encrypted, or `body` says so."""
        if not self.masters:
            return draft
        with self._lock:  # and with one key, also at midnight: a draft brings no more than one
            key = self._current()
            made = self._sealed(draft, key) if body or self.seals(draft.topic) else draft
            closed = closed_headers(made, lambda plain, place: packed(key.seal(plain, place, self._chance)))
            return made if closed is made else msgspec.structs.replace(closed, sealed_with=key.row)

    def keyed(self, digest: str) -> str:
        """A digest of what may be secret, such that nobody finds that by trying; itself, if there is no master key."""
        return self.masters.oldest.digest(digest) if self.masters else digest

    def _sealed(self, draft: Draft, key: DataKey) -> Draft:
        plain = draft.payload.encode() if draft.payload is not None else draft.payload_bytes or b""
        place = SealedPlace("payload", str(draft.id), draft.topic, draft.content_type)
        box = key.seal(plain, place, self._chance)
        return msgspec.structs.replace(
            draft,
            payload=None,
            payload_bytes=packed(box),
            content_type=str(Kind(draft.content_type)),
            idempotency=None if draft.idempotency is None else self._keyed(draft.idempotency),
            sealed_with=key.row,
        )

    def forget(self) -> None:
        """Begin with a new data key: the one there is was stored in another database."""
        with self._lock:
            self._key = None

    def _current(self) -> DataKey:
        today = self._today()
        key = self._key
        if key is None or key.row.day != today.isoformat() or key.seals >= self._most:
            require_cryptography()
            key = self._key = new_data_key(self.masters.current, today, self._chance)
        return key

    def _keyed(self, entry: Idempotency) -> Idempotency:
        """The entry with keyed digests: a plain SHA-256 of a short body can be guessed by trying bodies.

        By the oldest master key, so that a new one changes no digest; those of the others are for comparing, for the
        time when the oldest is taken away.
        """
        if entry.digest == entry.key_hash:  # it says no more than the key, and never conflicts
            return entry
        oldest = self.masters.oldest
        digest = oldest.digest(entry.digest)
        alike = tuple(master.digest(entry.digest) for master in self.masters if master is not oldest)
        unique = {"key": digest, "key_hash": key_hash(digest)} if entry.key == entry.digest else {}
        return msgspec.structs.replace(entry, digest=digest, alike=alike, **unique)

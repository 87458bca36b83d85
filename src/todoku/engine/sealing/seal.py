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
from todoku.core.master import NO_KEY_HINT, MasterKeys
from todoku.core.message import Draft, Idempotency
from todoku.core.sealed import Kind, Place, packed
from todoku.core.settings import Settings
from todoku.engine.sealing.cipher import DataKey, new_data_key, require_cryptography

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
        self._masters: MasterKeys = settings.master_keys
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
        if not self._masters:
            raise InvalidSetting(f"{what} is to be encrypted, and there is no master key", hint=NO_KEY_HINT)
        require_cryptography()

    def seals(self, topic: str) -> bool:
        """Whether what is published under this topic is sealed."""
        return self._everything or topic in self._topics

    def sealed(self, draft: Draft) -> Draft:
        """The draft with its payload sealed for its own id and topic, and with digests that nobody can guess."""
        plain = draft.payload.encode() if draft.payload is not None else draft.payload_bytes or b""
        place = Place("payload", str(draft.id), draft.topic, draft.content_type)
        with self._lock:
            key = self._current()
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
            key = self._key = new_data_key(self._masters.current, today, self._chance)
        return key

    def _keyed(self, entry: Idempotency) -> Idempotency:
        """The entry with keyed digests: a plain SHA-256 of a short body can be guessed by trying bodies.

        By the oldest master key, so that a new one changes no digest; those of the others are for comparing, for the
        time when the oldest is taken away.
        """
        oldest = self._masters.oldest
        digest = oldest.digest(entry.digest)
        alike = tuple(master.digest(entry.digest) for master in self._masters if master is not oldest)
        unique = {"key": digest, "key_hash": key_hash(digest)} if entry.key == entry.digest else {}
        return msgspec.structs.replace(entry, digest=digest, alike=alike, **unique)

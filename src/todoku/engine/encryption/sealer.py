"""Encryption (sealing) of drafts: messages of topics declared encrypted leave the publishing process encrypted.

A process has one random data key per day, created at first use. Every sealed draft carries the wrapped key, and the
transaction that stores the draft also stores the key if it is missing: after a rollback neither is stored, a restored
database gets the key again, and no second connection is needed beside the caller's transaction.
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
from todoku.core.message import Draft, Idempotency
from todoku.core.sealed import NO_KEY_HINT, Kind, MasterKeys, SealedPlace, pack
from todoku.core.settings import Settings
from todoku.engine.encryption.cipher import DataKey, new_data_key, require_cryptography
from todoku.engine.encryption.secret_headers import seal_headers

SEALS: Final = 1 << 30
"""Messages per data key, at most: with random nonces of 96 bits, two are equal once in 2^37 such keys."""


def utc_today() -> date:
    """Returns the current day in UTC, by which data keys are named."""
    return datetime.now(UTC).date()


class Sealer:
    """The publisher's side of encryption, for one App. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        *,
        today: Callable[[], date] = utc_today,
        chance: Callable[[int], bytes] = os.urandom,
        most: int = SEALS,
    ) -> None:
        self.masters: MasterKeys = settings.master_keys
        self._seals_all = settings.encrypt == "all"
        self.is_used = self._seals_all
        """Whether anything is sealed: a publisher without encryption asks no more than this."""
        self._topics: set[str] = set()
        self._today = today
        self._chance = chance
        self._most = most
        self._lock = threading.Lock()
        self._key: DataKey | None = None
        if self._seals_all:
            self._require_key("everything")

    def declare(self, topic: str) -> None:
        """Seals messages of this topic from now on. InvalidSetting if there is no master key or no `cryptography`."""
        self._require_key(topic)
        self._topics.add(topic)
        self.is_used = True

    def _require_key(self, what: str) -> None:
        if not self.masters:
            raise InvalidSetting(f"{what} is to be encrypted, but no master key is configured", hint=NO_KEY_HINT)
        require_cryptography()

    @property
    def encrypted_topics(self) -> frozenset[str]:
        """The topics declared as encrypted; with `encrypt="all"`, others are sealed, too."""
        return frozenset(self._topics)

    def is_encrypted(self, topic: str) -> bool:
        """Whether messages of this topic are sealed."""
        return self._seals_all or topic in self._topics

    def seal(self, draft: Draft) -> Draft:
        """Returns the draft with its payload sealed for its id and topic, and with keyed digests."""
        with self._lock:
            return self._seal(draft, self._current())

    def seal_request(self, draft: Draft, *, body: bool = False) -> Draft:
        """Returns the draft of an HTTP request as it may be stored.

        With a master key, its secret headers are sealed; its body is, too, if its topic is encrypted or `body` is True.
        """
        if not self.masters:
            return draft
        with self._lock:  # both parts use one key, also at midnight: a draft carries only one
            key = self._current()
            made = self._seal(draft, key) if body or self.is_encrypted(draft.topic) else draft
            closed = seal_headers(made, lambda plain, place: pack(key.seal(plain, place, self._chance)))
            return made if closed is made else msgspec.structs.replace(closed, sealed_with=key.row)

    def key_digest(self, digest: str) -> str:
        """Returns a keyed digest, which cannot be guessed by trying bodies; the same digest without a master key."""
        return self.masters.oldest.digest(digest) if self.masters else digest

    def _seal(self, draft: Draft, key: DataKey) -> Draft:
        plain = draft.payload.encode() if draft.payload is not None else draft.payload_bytes or b""
        place = SealedPlace("payload", str(draft.id), draft.topic, draft.content_type)
        box = key.seal(plain, place, self._chance)
        return msgspec.structs.replace(
            draft,
            payload=None,
            payload_bytes=pack(box),
            content_type=str(Kind(draft.content_type)),
            idempotency=None if draft.idempotency is None else self._with_keyed_digests(draft.idempotency),
            sealed_with=key.row,
        )

    def forget(self) -> None:
        """Discards the data key, because it was stored in another database; the next draft creates one."""
        with self._lock:
            self._key = None

    def _current(self) -> DataKey:
        today = self._today()
        key = self._key
        if key is None or key.row.day != today.isoformat() or key.seals >= self._most:
            require_cryptography()
            key = self._key = new_data_key(self.masters.current, today, self._chance)
        return key

    def _with_keyed_digests(self, entry: Idempotency) -> Idempotency:
        """Returns the entry with keyed digests: a plain SHA-256 of a short body can be guessed by trying bodies.

        The oldest master key is used, so that adding one changes no digest. The digests by the other keys are for
        comparison, after the oldest has been removed.
        """
        if entry.digest == entry.key_hash:  # the digest of the key, not of a body: nothing secret, never a conflict
            return entry
        oldest = self.masters.oldest
        digest = oldest.digest(entry.digest)
        alike = tuple(master.digest(entry.digest) for master in self.masters if master is not oldest)
        unique = {"key": digest, "key_hash": key_hash(digest)} if entry.key == entry.digest else {}
        return msgspec.structs.replace(entry, digest=digest, alike=alike, **unique)

"""Opening: just before a handler or a sender is called, and for whoever asks for a result. Plaintext stays in memory.

What an attempt of a sealed message leaves behind is sealed too (its result), or left out (the text of its error).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, assert_never
from uuid import UUID

import msgspec
from cachetools import LRUCache

from todoku.core.errors import CannotOpen, StoreError
from todoku.core.master_keys import MasterKeys
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze
from todoku.core.sealed import (
    SEALED,
    Kind,
    Sealed,
    SealedPlace,
    WrappedKey,
    kind_of,
    packed,
    result_text,
    sealed_result,
    unpacked,
)
from todoku.engine.encryption.cipher import DataKey, WrongTag, require_cryptography, unwrapped
from todoku.engine.encryption.secret_headers import closed_of, has_closed_headers, secrets_of, without_secrets
from todoku.engine.observability.log import Log
from todoku.store.messages import StoredMessage
from todoku.store.store import Store

_REMEMBERED: Final = 60.0
"""Seconds after which a data key is looked for again: so long a shredded one may still open something."""

_MOST: Final = 4096
"""Data keys kept in memory."""

_LATER: Final = frozenset({"UNKNOWN_MASTER_KEY", "BAD_MASTER_KEY"})
"""Reasons that a deploy may mend: worth another attempt."""


def is_closed(claim: Claimed) -> bool:
    """Whether this must be opened before anybody can read it, or send it."""
    return _has_closed_payload(claim) or has_closed_headers(claim)


def _has_closed_payload(claim: Claimed) -> bool:
    return claim.payload is None and claim.content_type.startswith(f"{SEALED};of=")


class Opener:
    """The executing side: data keys by id, read when they are first needed. Thread-safe."""

    def __init__(
        self,
        masters: MasterKeys,
        store: Store,
        *,
        monotonic: Callable[[], float],
        chance: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._masters = masters
        self._store = store
        self._monotonic = monotonic
        self._chance = chance
        self._lock = threading.Lock()
        self._keys: LRUCache[UUID, tuple[DataKey, float]] = LRUCache(_MOST)

    def knows(self, claim: Claimed) -> bool:
        """Whether opening it needs no look into the database."""
        return all(
            self._remembered(sealed.key_id) is not None
            for raw in _closed_bytes(claim)
            if (sealed := unpacked(raw)) is not None
        )

    def opened(self, claim: Claimed) -> Claimed:
        """A sealed claim with its payload in plain, still marked as sealed; the secret headers of a request beside it.

        CannotOpen, StoreError.
        """
        if (closed := closed_of(claim)) is not None:
            secrets = msgspec.json.decode(self._open(*closed)[1], type=dict[str, str])
            claim = msgspec.structs.replace(claim, secrets=secrets)
        kind = kind_of(claim.content_type)
        if kind is None or kind.key_id is not None:
            return claim
        place = SealedPlace("payload", claim.message_id, claim.topic, kind.inner)
        key, plain = self._open(claim.payload_bytes or b"", place)
        text = None
        if kind.inner == "application/json":
            text, plain = plain.decode(), b""
        return msgspec.structs.replace(
            claim,
            payload=text,
            payload_bytes=None if text is not None else plain,
            content_type=str(Kind(kind.inner, key.row.id)),
        )

    def closed(self, claim: Claimed, outcome: Outcome, error: Exception | None) -> Outcome:
        """What may be stored of the outcome of a claim that is sealed, or was sent with secret headers; of any other,
        the outcome."""
        if secrets := secrets_of(claim):
            outcome = without_secrets(outcome, secrets)
        kind = kind_of(claim.content_type)
        if kind is None:
            return outcome
        name = type(error).__name__ if error is not None and not isinstance(error, Retry | Abort | Snooze) else ""
        match outcome:
            case Done(None, None) | Snooze():
                return outcome
            case Done(result, response):
                return Done(None if result is None else self._sealed_result(claim, kind, result), _bare(response))
            case Retry():
                return Retry(outcome.after, outcome.reason, name, _bare(outcome.response))
            case Abort():
                return Abort(outcome.reason, name, _bare(outcome.response))
            case _:
                assert_never(outcome)

    def result(self, text: str, message_id: str, destination: str) -> str:
        """The JSON text of a result, opened if it is sealed. CannotOpen, StoreError."""
        raw = sealed_result(text)
        return text if raw is None else self._open(raw, SealedPlace("result", message_id, destination))[1].decode()

    def text(self, message: StoredMessage) -> str | None:
        """The JSON text of a stored message, opened if it is sealed; None: it is no JSON. CannotOpen, StoreError."""
        kind = kind_of(message.content_type)
        if kind is None or kind.inner != "application/json":
            return message.payload
        place = SealedPlace("payload", str(message.id), message.topic, kind.inner)
        return self._open(message.payload_bytes or b"", place)[1].decode()

    def body(self, message_id: str, topic: str, content_type: str, raw: bytes) -> bytes:
        """What is inside a stored message, opened if it is sealed. CannotOpen, StoreError."""
        if (kind := kind_of(content_type)) is None:
            return raw
        return self._open(raw, SealedPlace("payload", message_id, topic, kind.inner))[1]

    # ------------------------------------------------------------------------------------------- inside

    def _sealed_result(self, claim: Claimed, kind: Kind, result: str) -> str | None:
        """Sealed with the key of its message: stored already, and shredded with it."""
        place = SealedPlace("result", claim.message_id, claim.destination)
        try:
            key = self._key(kind.key_id or _sealed(claim.payload_bytes or b"").key_id, fresh=False)
        except (CannotOpen, StoreError) as error:  # the work is done; only its result is not to be had
            Log(adapter=claim.destination, message_id=claim.message_id).warning(
                "RESULT_NOT_KEPT", error_type=type(error).__name__
            )
            return None
        return result_text(packed(key.seal(result.encode(), place, self._chance)))

    def _open(self, raw: bytes, place: SealedPlace) -> tuple[DataKey, bytes]:
        sealed = _sealed(raw)
        key = self._key(sealed.key_id)
        try:
            return key, key.open(sealed, place)
        except WrongTag:
            raise CannotOpen(
                f"the {place.what} was changed, or belongs to another message", hint="restore it from a backup"
            ) from None

    def _key(self, id: UUID, *, fresh: bool = True) -> DataKey:
        if (known := self._remembered(id, fresh=fresh)) is not None:
            return known
        key = self._unwrapped(id, self._store.data_keys.read([id]))
        with self._lock:
            self._keys[id] = (key, self._monotonic() + _REMEMBERED)
        return key

    def _remembered(self, id: UUID, *, fresh: bool = True) -> DataKey | None:
        with self._lock:
            key, until = self._keys.get(id, (None, 0.0))
            return key if not fresh or self._monotonic() < until else None

    def _unwrapped(self, id: UUID, rows: tuple[WrappedKey, ...]) -> DataKey:
        if not rows:
            with self._lock:
                self._keys.pop(id, None)
            raise CannotOpen(f"its data key {id} was deleted", hint="it was shredded", reason="SHREDDED")
        require_cryptography()
        usable = [(row, master) for row in rows if (master := self._masters.get(row.master_key_id)) is not None]
        if not usable:
            names = ", ".join(sorted({row.master_key_id for row in rows}))
            raise CannotOpen(
                f"its data key is wrapped by the master key {names}, which is not configured",
                hint="add it to TODOKU_MASTER_KEYS, behind the current one",
                reason="UNKNOWN_MASTER_KEY",
            )
        for row, master in usable:
            try:
                return DataKey(row, unwrapped(row, master))
            except WrongTag:
                continue
        raise CannotOpen(
            f"the master key {usable[0][1].id} does not open its data key",
            hint="this id had other bytes when it was wrapped: configure those",
            reason="BAD_MASTER_KEY",
        )


def _bare(response: Response | None) -> Response | None:
    """Who is sent a secret may answer with it."""
    return None if response is None else response.without_content()


def _closed_bytes(claim: Claimed) -> Iterator[bytes]:
    """All that is sealed in a claim."""
    if _has_closed_payload(claim):
        yield claim.payload_bytes or b""
    with suppress(CannotOpen):  # for which no key is needed
        if (closed := closed_of(claim)) is not None:
            yield closed[0]


def _sealed(raw: bytes) -> Sealed:
    if (sealed := unpacked(raw)) is None:
        raise CannotOpen("these are no sealed bytes", hint="restore them from a backup")
    return sealed


def unopened(error: CannotOpen, claim: Claimed) -> Retry | Abort:
    """What an attempt comes to whose payload cannot be opened. Nothing of it has run."""
    Log(message_id=claim.message_id, topic=claim.topic, adapter=claim.destination).error(error.reason, told=str(error))
    if error.reason in _LATER:
        return Retry(reason=error.reason, detail=str(error))
    return Abort(error.reason, str(error))

"""Decryption (opening) of messages just before a handler or sender is called, and of results when they are read.

Plaintext stays in memory: the result of a sealed message is sealed too, and the text of its errors is not stored.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, Literal, assert_never
from uuid import UUID

import msgspec
from cachetools import LRUCache

from todoku.core.errors import CannotOpen, StoreError
from todoku.core.http_request import HttpRequest
from todoku.core.message import Claimed
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze, Traceback
from todoku.core.sealed import (
    SEALED,
    Kind,
    MasterKeys,
    Sealed,
    SealedPlace,
    WrappedKey,
    kind_of,
    pack,
    parse_sealed_result,
    result_text,
    unpack,
)
from todoku.engine.encryption.cipher import DataKey, WrongTag, require_cryptography, unwrap
from todoku.engine.encryption.secret_headers import (
    has_sealed_headers,
    open_request,
    sealed_headers_of,
    secrets_of,
    without_secrets,
)
from todoku.engine.observability.log import Log
from todoku.store.messages import StoredMessage
from todoku.store.runs import SealedRun
from todoku.store.store import Store

_CACHE_SECONDS: Final = 60.0
"""Seconds for which a data key is cached; for that long a shredded key may still decrypt messages."""

_CACHE_SIZE: Final = 4096
"""Data keys in the cache, at most."""

_Text = Literal["result", "traceback", "step"]
"""The kinds of text that are sealed with the data key of their message."""

_RETRYABLE: Final = frozenset({"UNKNOWN_MASTER_KEY", "BAD_MASTER_KEY"})
"""Reasons that a deployment may fix, so that the delivery is retried."""


def is_sealed(claim: Claimed) -> bool:
    """Whether the payload or the secret headers must be decrypted before the claim can run."""
    return _has_sealed_payload(claim) or has_sealed_headers(claim)


def _has_sealed_payload(claim: Claimed) -> bool:
    return claim.payload is None and claim.content_type.startswith(f"{SEALED};of=")


class Opener:
    """The worker's side of encryption: a cache of data keys by id, read when first needed. Thread-safe."""

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
        self._keys: LRUCache[UUID, tuple[DataKey, float]] = LRUCache(_CACHE_SIZE)

    def knows(self, claim: Claimed) -> bool:
        """Whether all data keys of the claim are cached, so that opening it does not read the database."""
        return all(
            self._cached(sealed.key_id) is not None
            for raw in _sealed_parts(claim)
            if (sealed := unpack(raw)) is not None
        )

    def open(self, claim: Claimed) -> Claimed:
        """Returns a sealed claim with its payload decrypted, still marked as sealed, and its secret headers.

        Raises CannotOpen, StoreError.
        """
        if (closed := sealed_headers_of(claim)) is not None:
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

    def seal_outcome(self, claim: Claimed, outcome: Outcome, error: Exception | None) -> Outcome:
        """Returns the outcome as it may be stored: without secret headers, and of a sealed claim without plaintext."""
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
                return Done(
                    None if result is None else self._seal_result(claim, kind, result), _without_content(response)
                )
            case Retry():
                return Retry(outcome.after, outcome.reason, name, _without_content(outcome.response))
            case Abort():
                return Abort(outcome.reason, name, _without_content(outcome.response))
            case _:
                assert_never(outcome)

    def seal_traceback(self, claim: Claimed, trace: Traceback) -> Traceback:
        """Returns a traceback as it may be stored: that of a sealed claim is sealed.

        Without the texts of exceptions, if the data key cannot be read or the claim has secret headers.
        """
        kind, text = kind_of(claim.content_type), trace.text
        if secrets_of(claim):
            text = trace.frames
        elif kind is not None:
            try:
                text = self._seal("traceback", claim, kind, trace.text)
            except (CannotOpen, StoreError):
                text = trace.frames
        return trace if text is trace.text else msgspec.structs.replace(trace, text=text)

    def traceback(self, text: str, message_id: str, destination: str) -> str:
        """Returns the text of a traceback, decrypted if it is sealed. Raises CannotOpen, StoreError."""
        return self._open_text("traceback", text, message_id, destination)

    def seal_step(self, claim: Claimed, text: str) -> str:
        """Returns a text of a run's step as it may be stored: that of a sealed run is sealed. CannotOpen."""
        kind = kind_of(claim.content_type)
        return text if kind is None else self._seal("step", claim, kind, text)

    def step(self, text: str, message_id: str, destination: str) -> str:
        """Returns a text of a run's step, decrypted if it is sealed. Raises CannotOpen, StoreError."""
        return self._open_text("step", text, message_id, destination)

    def seal_signal(self, run: SealedRun, name: str, text: str) -> str:
        """Returns the value of a signal to a sealed run, sealed with the data key of the run. CannotOpen.

        It does not read the database: the caller's transaction, which may have started the run, has read the key.
        """
        key = self._cached(run.key_id) if run.keys else None
        if key is None:
            key = self._remember(run.key_id, run.keys, whose=f"the run {run.message_id} is encrypted; its")
        return result_text(pack(key.seal(text.encode(), SealedPlace("signal", run.message_id, name), self._chance)))

    def keep_signal(self, claim: Claimed, name: str, text: str) -> str:
        """Returns the value of a signal as a text of its run's step, sealed if the run is. CannotOpen.

        Within the transaction that takes it: the data key is the run's own, and cached since the attempt began.
        """
        raw = parse_sealed_result(text)
        if raw is None or kind_of(claim.content_type) is None:
            return self.seal_step(claim, text)
        plain = self._open(raw, SealedPlace("signal", claim.message_id, name), fresh=False)[1]
        return self.seal_step(claim, plain.decode())

    def step_secret(self, run: Claimed | StoredMessage) -> bytes:
        """Returns a secret that only holders of a sealed run's data key know: keyed digests are made with it."""
        kind = kind_of(run.content_type)
        if kind is None:
            return b""
        return self._key(kind.key_id or _parse_sealed(run.payload_bytes or b"").key_id, fresh=False).secret("step")

    def result(self, text: str, message_id: str, destination: str) -> str:
        """Returns the JSON text of a result, decrypted if it is sealed. Raises CannotOpen, StoreError."""
        return self._open_text("result", text, message_id, destination)

    def text(self, message: StoredMessage) -> str | None:
        """Returns the JSON text of a stored message, decrypted if it is sealed; None: it is not JSON.

        Raises CannotOpen, StoreError.
        """
        kind = kind_of(message.content_type)
        if kind is None or kind.inner != "application/json":
            return message.payload
        place = SealedPlace("payload", str(message.id), message.topic, kind.inner)
        return self._open(message.payload_bytes or b"", place)[1].decode()

    def body(self, message_id: str, topic: str, content_type: str, raw: bytes) -> bytes:
        """Returns the body of a stored message, decrypted if it is sealed. Raises CannotOpen, StoreError."""
        if (kind := kind_of(content_type)) is None:
            return raw
        return self._open(raw, SealedPlace("payload", message_id, topic, kind.inner))[1]

    def request(self, message: StoredMessage) -> HttpRequest:
        """Returns the HTTP request of a stored message, with its secret headers and those of its callbacks decrypted.

        Raises CannotOpen, StoreError, InvalidMessage (the message is no request).
        """
        return open_request(str(message.id), message.headers, lambda raw, place: self._open(raw, place)[1])

    # ------------------------------------------------------------------------------------------- inside

    def _seal_result(self, claim: Claimed, kind: Kind, result: str) -> str | None:
        """Seals a result with the data key of its message, which is stored already and shredded with the message."""
        try:
            return self._seal("result", claim, kind, result)
        except (CannotOpen, StoreError) as error:  # the work is done; only its result is lost
            Log(adapter=claim.destination, message_id=claim.message_id).warning(
                "RESULT_NOT_KEPT", error_type=type(error).__name__
            )
            return None

    def _seal(self, what: _Text, claim: Claimed, kind: Kind, text: str) -> str:
        key = self._key(kind.key_id or _parse_sealed(claim.payload_bytes or b"").key_id, fresh=False)
        place = SealedPlace(what, claim.message_id, claim.destination)
        return result_text(pack(key.seal(text.encode(), place, self._chance)))

    def _open_text(self, what: _Text, text: str, message_id: str, destination: str) -> str:
        raw = parse_sealed_result(text)
        return text if raw is None else self._open(raw, SealedPlace(what, message_id, destination))[1].decode()

    def _open(self, raw: bytes, place: SealedPlace, *, fresh: bool = True) -> tuple[DataKey, bytes]:
        sealed = _parse_sealed(raw)
        key = self._key(sealed.key_id, fresh=fresh)
        try:
            return key, key.open(sealed, place)
        except WrongTag:
            raise CannotOpen(
                f"the {place.what} was changed, or belongs to another message", hint="restore it from a backup"
            ) from None

    def _key(self, id: UUID, *, fresh: bool = True) -> DataKey:
        if (cached := self._cached(id, fresh=fresh)) is not None:
            return cached
        return self._remember(id, self._store.data_keys.read([id]))

    def _remember(self, id: UUID, rows: tuple[WrappedKey, ...], whose: str = "its") -> DataKey:
        key = self._unwrap(id, rows, whose)
        with self._lock:
            self._keys[id] = (key, self._monotonic() + _CACHE_SECONDS)
        return key

    def _cached(self, id: UUID, *, fresh: bool = True) -> DataKey | None:
        with self._lock:
            key, until = self._keys.get(id, (None, 0.0))
            return key if not fresh or self._monotonic() < until else None

    def _unwrap(self, id: UUID, rows: tuple[WrappedKey, ...], whose: str) -> DataKey:
        if not rows:
            with self._lock:
                self._keys.pop(id, None)
            raise CannotOpen(
                f"{whose} data key {id} was deleted",
                hint="the key was shredded; it cannot be restored",
                reason="SHREDDED",
            )
        require_cryptography()
        usable = [(row, master) for row in rows if (master := self._masters.get(row.master_key_id)) is not None]
        if not usable:
            names = ", ".join(sorted({row.master_key_id for row in rows}))
            raise CannotOpen(
                f"{whose} data key is wrapped by the master key {names}, which is not configured",
                hint="add it to TODOKU_MASTER_KEYS, behind the current one",
                reason="UNKNOWN_MASTER_KEY",
            )
        for row, master in usable:
            try:
                return DataKey(row, unwrap(row, master))
            except WrongTag:
                continue
        raise CannotOpen(
            f"{whose} data key is not decrypted by the master key {usable[0][1].id}",
            hint="the master key had other bytes when the data key was wrapped: configure those",
            reason="BAD_MASTER_KEY",
        )


def _without_content(response: Response | None) -> Response | None:
    """Returns the response without its content: a receiver may echo the secrets it was sent."""
    return None if response is None else response.without_content()


def _sealed_parts(claim: Claimed) -> Iterator[bytes]:
    """Yields the sealed parts of a claim."""
    if _has_sealed_payload(claim):
        yield claim.payload_bytes or b""
    with suppress(CannotOpen):  # raised again by `open`, without needing a key
        if (closed := sealed_headers_of(claim)) is not None:
            yield closed[0]


def _parse_sealed(raw: bytes) -> Sealed:
    if (sealed := unpack(raw)) is None:
        raise CannotOpen("these bytes are not in the format of sealed data", hint="restore them from a backup")
    return sealed


def unopenable_outcome(error: CannotOpen, claim: Claimed) -> Retry | Abort:
    """Returns the outcome of an attempt that cannot be decrypted, and logs the reason. Its handler has not run."""
    Log(message_id=claim.message_id, topic=claim.topic, adapter=claim.destination).error(error.reason, told=str(error))
    if error.reason in _RETRYABLE:
        return Retry(reason=error.reason, detail=str(error))
    return Abort(error.reason, str(error))

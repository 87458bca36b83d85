"""The keys of sources: their secrets, asked for now and then, so that a new one is known without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from todoku.core.blank_secret import is_blank, is_blank_key
from todoku.core.errors import InvalidSetting, TodokuError
from todoku.core.failure import DeliveryError
from todoku.core.ingest import Secret
from todoku.engine.encryption.secret_ref import EmptySecret, Ref, SecretSources
from todoku.engine.ingest.source import Source
from todoku.engine.observability.log import Log

BELIEVED_FOR: Final = 60.0
"""Seconds after which a secret that is kept elsewhere is asked for again."""


class NoSecret(TodokuError):
    """The secrets of a source cannot be read now: nothing can be said of what it sends."""


class _Known(msgspec.Struct, frozen=True):
    keys: tuple[bytes, ...]
    until: float


class SourceKeys:
    """What each source signs with."""

    def __init__(self, secrets: SecretSources, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}

    def known(self, source: Source) -> tuple[bytes, ...] | None:
        """The keys of a source; None: they must be asked for. Secrets given as text were checked when declared."""
        known = self._known.get(source.name)
        if known is not None and known.until > self._monotonic():
            return known.keys
        given = [secret for secret in source.verifier.secrets if isinstance(secret, str)]
        if len(given) < len(source.verifier.secrets):
            return None
        self._known[source.name] = _Known(tuple(map(source.verifier.key, given)), float("inf"))
        return self._known[source.name].keys

    def refuse_empty(self, sources: Iterable[Source]) -> None:
        """InvalidSetting if a secret that can be read on this machine is there, and empty.

        One that is not there yet is asked for when the first request comes, as one of a provider elsewhere is.
        """
        for source in sources:
            for secret in source.verifier.secrets:
                if isinstance(secret, Ref) and secret.is_local:
                    self._refuse_empty(source, secret)

    def _refuse_empty(self, source: Source, secret: Ref) -> None:
        try:
            self._ours(secret).get()
        except EmptySecret as error:
            raise InvalidSetting(
                f"{source.name}: {error.detail}, and with an empty secret anybody could sign",
                hint="set it to what the source signs with, or leave the source out",
            ) from None
        except (DeliveryError, OSError):
            return

    async def of(self, source: Source) -> tuple[bytes, ...]:
        """The keys of a source, in the order of its secrets; NoSecret if they cannot be had."""
        known = self._known.get(source.name)
        try:
            if (keys := self.known(source)) is not None:
                return keys
            keys = tuple([_key(source, await self._asked(secret)) for secret in source.verifier.secrets])
        except (TodokuError, DeliveryError, OSError, ValueError) as error:
            Log(source=source.name).error("NO_SECRET", error_type=type(error).__name__)
            # Who empties a secret takes it back. Only one that cannot be read may be on its way.
            if known is None or isinstance(error, EmptySecret):
                raise NoSecret(f"the secrets of {source.name} cannot be read", hint="see the log") from error
            keys = known.keys  # better the ones that were right a moment ago
        self._known[source.name] = _Known(keys, self._monotonic() + BELIEVED_FOR)
        return keys

    async def _asked(self, secret: Secret) -> str:
        if isinstance(secret, str):
            return secret
        return (await (self._ours(secret) if isinstance(secret, Ref) else secret).aget()).strip()

    def _ours(self, secret: Ref) -> Ref:
        """The same, of this App: it was made before the App knew its providers."""
        with self._secrets.near():
            return Ref(secret.id)


def _key(source: Source, secret: str) -> bytes:
    key = source.verifier.key(secret)
    if is_blank(secret) or is_blank_key(key):
        raise EmptySecret(f"a secret of {source.name}")
    return key

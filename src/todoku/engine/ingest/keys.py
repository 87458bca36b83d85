"""The keys of sources: their secrets, asked for now and then, so that a new one is known without a restart."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from todoku.core.errors import TodokuError
from todoku.core.failure import DeliveryError
from todoku.core.ingest import Secret
from todoku.engine.ingest.source import Source
from todoku.engine.secrets.ref import Ref, Secrets
from todoku.engine.telling.log import Log

BELIEVED_FOR: Final = 60.0
"""Seconds after which a secret that is kept elsewhere is asked for again."""


class NoSecret(TodokuError):
    """The secrets of a source cannot be read now: nothing can be said of what it sends."""


class _Known(msgspec.Struct, frozen=True):
    keys: tuple[bytes, ...]
    until: float


class Keys:
    """What each source signs with."""

    def __init__(self, secrets: Secrets, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._monotonic = monotonic
        self._known: dict[str, _Known] = {}

    def known(self, source: Source) -> tuple[bytes, ...] | None:
        """The keys of a source; None: they must be asked for."""
        known = self._known.get(source.name)
        if known is not None and known.until > self._monotonic():
            return known.keys
        given = [secret for secret in source.verifier.secrets if isinstance(secret, str)]
        if len(given) < len(source.verifier.secrets):
            return None
        self._known[source.name] = _Known(tuple(map(source.verifier.key, given)), float("inf"))
        return self._known[source.name].keys

    async def of(self, source: Source) -> tuple[bytes, ...]:
        """The keys of a source, in the order of its secrets; NoSecret if they cannot be had."""
        known = self._known.get(source.name)
        try:
            if (keys := self.known(source)) is not None:
                return keys
            keys = tuple([source.verifier.key(await self._asked(secret)) for secret in source.verifier.secrets])
        except (TodokuError, DeliveryError, OSError, ValueError) as error:
            Log(source=source.name).error("NO_SECRET", error_type=type(error).__name__)
            if known is None:
                raise NoSecret(f"the secrets of {source.name} cannot be read", hint="see the log") from error
            keys = known.keys  # better the ones that were right a moment ago
        self._known[source.name] = _Known(keys, self._monotonic() + BELIEVED_FOR)
        return keys

    async def _asked(self, secret: Secret) -> str:
        if isinstance(secret, str):
            return secret
        if isinstance(secret, Ref):
            with self._secrets.near():  # it was made before the App knew its providers
                secret = Ref(secret.id)
        return (await secret.aget()).strip()

"""Declared sources: `box.ingest("stripe", todoku.stripe(secrets=[…]), topic="stripe.{type}")`."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from todoku.core.errors import InvalidSetting, TodokuError
from todoku.core.failure import DeliveryError
from todoku.core.ingest import Secret, Template, Verifier, check_path, template
from todoku.core.outcome import Duration
from todoku.core.signature import is_blank, is_blank_key
from todoku.engine.encryption.secret_ref import EmptySecret, Ref, SecretSources
from todoku.engine.ingest.source_counts import SourceCounts
from todoku.engine.jobs.decoders import decoder
from todoku.engine.jobs.options import checked_duration
from todoku.engine.observability.log import Log
from todoku.engine.outbox import Outbox

# ------------------------------------------------------------
# The keys of sources: their secrets, read again now and then, so that a new one is used without a restart.

BELIEVED_FOR: Final = 60.0
"""Seconds for which a secret from a provider is cached."""


class NoSecret(TodokuError):
    """The secrets of a source cannot be read now, so that its requests cannot be verified."""


class _CachedKeys(msgspec.Struct, frozen=True):
    keys: tuple[bytes, ...]
    until: float


class SourceKeys:
    """The keys that each source signs with."""

    def __init__(self, secrets: SecretSources, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._secrets = secrets
        self._monotonic = monotonic
        self._known: dict[str, _CachedKeys] = {}

    def known(self, source: Source) -> tuple[bytes, ...] | None:
        """Returns the cached keys of a source; None: they must be read. Secrets given as text need no reading."""
        known = self._known.get(source.name)
        if known is not None and known.until > self._monotonic():
            return known.keys
        given = [secret for secret in source.verifier.secrets if isinstance(secret, str)]
        if len(given) < len(source.verifier.secrets):
            return None
        self._known[source.name] = _CachedKeys(tuple(map(source.verifier.key, given)), float("inf"))
        return self._known[source.name].keys

    def refuse_empty(self, sources: Iterable[Source]) -> None:
        """Raises InvalidSetting if a secret on this machine (`env`, `file`) exists and is empty.

        Missing secrets, and those of other providers, are read with the first request.
        """
        for source in sources:
            for secret in source.verifier.secrets:
                if isinstance(secret, Ref) and secret.is_local:
                    self._refuse_empty(source, secret)

    def _refuse_empty(self, source: Source, secret: Ref) -> None:
        try:
            self._bind(secret).get()
        except EmptySecret as error:
            raise InvalidSetting(
                f"{source.name}: {error.detail}, and with an empty secret anyone could sign requests",
                hint="set it to the secret that the source signs with, or remove the source",
            ) from None
        except (DeliveryError, OSError):
            return

    async def of(self, source: Source) -> tuple[bytes, ...]:
        """Returns the keys of a source, in the order of its secrets; NoSecret if they cannot be read."""
        known = self._known.get(source.name)
        try:
            if (keys := self.known(source)) is not None:
                return keys
            keys = tuple([_checked_key(source, await self._read(secret)) for secret in source.verifier.secrets])
        except (TodokuError, DeliveryError, OSError, ValueError) as error:
            Log(source=source.name).error("NO_SECRET", error_type=type(error).__name__)
            # An emptied secret has been revoked. Only if it cannot be read for the moment are the last keys used.
            if known is None or isinstance(error, EmptySecret):
                raise NoSecret(f"the secrets of {source.name} cannot be read", hint="see the log") from error
            keys = known.keys
        self._known[source.name] = _CachedKeys(keys, self._monotonic() + BELIEVED_FOR)
        return keys

    async def _read(self, secret: Secret) -> str:
        if isinstance(secret, str):
            return secret
        return (await (self._bind(secret) if isinstance(secret, Ref) else secret).aget()).strip()

    def _bind(self, secret: Ref) -> Ref:
        """Returns the same Ref bound to this App: it was created before the App had its providers."""
        with self._secrets.near():
            return Ref(secret.id)


def _checked_key(source: Source, secret: str) -> bytes:
    key = source.verifier.key(secret)
    if is_blank(secret) or is_blank_key(key):
        raise EmptySecret(f"a secret of {source.name}")
    return key


_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A sender of events: how its events are verified, and the messages they become."""

    name: str
    verifier: Verifier
    topic: Template
    decode: Callable[[bytes], Any] | None
    """Decodes an event as its model; raises if it does not fit."""
    key: str | None
    dedupe_for: float
    reopen: bool


class Sources(dict[str, Source]):
    """The sources of an App by name."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self.counts = SourceCounts()

    def declare(
        self, name: str, verifier: Verifier, *, topic: str, model: Any, key: str | None, dedupe_for: Duration | None,
        reopen: bool,
    ) -> None:  # fmt: skip
        """Declares a source, or raises InvalidSetting; the contract is that of `App.ingest`."""
        _check(name, verifier)
        outbox = self._outbox
        lasts = None if dedupe_for is None else checked_duration(dedupe_for, "dedupe_for", InvalidSetting)
        source = Source(
            name=name,
            verifier=verifier,
            topic=template(topic),
            decode=None if model is None else decoder(model, f"{name}: model", outbox.secrets),
            key=None if key is None else check_path(key, "key"),
            dedupe_for=outbox.settings.ingest_dedupe if lasts is None else lasts,
            reopen=reopen,
        )
        if name in self:
            raise InvalidSetting(f"there are two sources called {name!r}", hint="give one another name")
        self[name] = source


def _check(name: object, verifier: Verifier) -> None:
    if not _NAME.fullmatch(str(name)):
        raise InvalidSetting(f"a source cannot be called {name!r}", hint="letters, digits, - and _, at most 64")
    if not callable(getattr(verifier, "signed_by", None)):
        raise InvalidSetting(
            f"{name}: {type(verifier).__name__} is not a verifier",
            hint="pass a verifier, for example todoku.stripe(secrets=[…])",
        )
    for secret in verifier.secrets:
        if isinstance(secret, str) and (is_blank(secret) or is_blank_key(verifier.key(secret))):
            raise InvalidSetting(f"{name}: a secret is empty", hint="give the secret that the source signs with")

"""Declared sources: `box.ingest("stripe", todoku.stripe(secrets=[…]), topic="stripe.{type}")`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from todoku.core.blank_secret import is_blank, is_blank_key
from todoku.core.errors import InvalidSetting
from todoku.core.ingest import Template, Verifier, check_path, template
from todoku.core.outcome import Duration
from todoku.engine.jobs.decoders import decoder
from todoku.engine.jobs.options import checked_duration
from todoku.engine.outbox import Outbox

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
            f"{name}: {type(verifier).__name__} verifies nothing", hint="todoku.stripe(secrets=[…]), for example"
        )
    for secret in verifier.secrets:
        if isinstance(secret, str) and (is_blank(secret) or is_blank_key(verifier.key(secret))):
            raise InvalidSetting(f"{name}: a secret is empty", hint="give the secret that the source signs with")

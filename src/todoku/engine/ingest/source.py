"""A source as an App declares it: `box.ingest("stripe", todoku.stripe(secrets=[…]), topic="stripe.{type}")`."""

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
    """A sender of events: how its requests are verified, and which messages they become."""

    name: str
    verifier: Verifier
    topic: Template
    decode: Callable[[bytes], Any] | None
    """Validates an event against the model of the source; raises msgspec.DecodeError."""
    key: str | None
    dedupe_for: float
    reopen: bool


class Sources(dict[str, Source]):
    """The sources of an App by name."""

    def add(self, source: Source) -> None:
        """Adds a source. InvalidSetting if its name is taken."""
        if source.name in self:
            raise InvalidSetting(f"there are two sources called {source.name!r}", hint="give one another name")
        self[source.name] = source


class IngestDeclarations:
    """The part of an App that declares sources of events."""

    outbox: Outbox
    sources: Sources

    def ingest(
        self,
        source: str,
        verifier: Verifier,
        *,
        topic: str,
        model: Any = None,
        key: str | None = None,
        dedupe_for: Duration | None = None,
        reopen: bool = True,
    ) -> None:
        """Accepts events that `source` posts: each is verified, stored in one commit, then acknowledged with 204.

        `verifier`: `todoku.stripe(secrets=[…])`, `github`, `slack`, `shopify`, `standard_webhooks`, `hmac`. `topic`: of
        the messages; `{type}` is the event's type, `{data.object.object}` the value at that path of its JSON. `model`:
        validates events; a dataclass, msgspec struct or pydantic model. `key`: the path of the message key in the JSON.
        An event that is sent again within `dedupe_for` (default: the setting `ingest_dedupe`, 90 days) is acknowledged
        and not queued again; with `reopen`, a dead letter is replayed instead, audited as done by the publisher.
        """
        if not _NAME.fullmatch(str(source)):
            raise InvalidSetting(
                f"a source cannot be called {source!r}", hint="use letters, digits, - and _, at most 64 characters"
            )
        if not callable(getattr(verifier, "signed_by", None)):
            raise InvalidSetting(
                f"{source}: {type(verifier).__name__} is not a verifier",
                hint="pass a verifier, for example todoku.stripe(secrets=[…])",
            )
        for secret in verifier.secrets:
            if isinstance(secret, str) and (is_blank(secret) or is_blank_key(verifier.key(secret))):
                raise InvalidSetting(f"{source}: a secret is empty", hint="pass the secret that the source signs with")
        self.sources.add(
            Source(
                name=source,
                verifier=verifier,
                topic=template(topic),
                decode=None if model is None else decoder(model, f"{source}: model", self.outbox.secrets),
                key=None if key is None else check_path(key, "key"),
                dedupe_for=self._dedupe_seconds(dedupe_for),
                reopen=reopen,
            )
        )

    def _dedupe_seconds(self, given: Duration | None) -> float:
        return (
            self.outbox.settings.ingest_dedupe
            if given is None
            else checked_duration(given, "dedupe_for", InvalidSetting)
        )

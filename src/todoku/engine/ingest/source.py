"""A source as an App declares it: `box.ingest("stripe", todoku.stripe(secrets=[…]), topic="stripe.{type}")`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from todoku.core.blank_secret import is_blank, is_blank_key
from todoku.core.errors import InvalidSetting
from todoku.core.ingest import Template, Verifier, checked_path, template
from todoku.core.outcome import Duration
from todoku.engine.jobs.decoders import decoder
from todoku.engine.jobs.options import checked_duration
from todoku.engine.outbox import Outbox

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends events, how they are verified, and what they become."""

    name: str
    verifier: Verifier
    topic: Template
    decode: Callable[[bytes], Any] | None
    """Raises what is wrong with an event that is not as its model says."""
    key: str | None
    dedupe_for: float
    reopen: bool


class Sources(dict[str, Source]):
    """The sources of an App by name."""

    def add(self, source: Source) -> None:
        """One more; two of one name are a mistake."""
        if source.name in self:
            raise InvalidSetting(f"there are two sources called {source.name!r}", hint="give one another name")
        self[source.name] = source


class IngestDeclarations:
    """What of an App is about events from outside."""

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
        """Take in what `source` posts: verified, stored in one commit, and then acknowledged with 204.

        `verifier`: `todoku.stripe(secrets=[…])`, `github`, `slack`, `shopify`, `standard_webhooks`, `hmac`. `topic`: of
        its messages; `{type}` is the event's type, `{data.object.object}` what is there in its JSON. `model`: what an
        event must look like, a dataclass, msgspec struct or pydantic model. `key`: the path of what orders its events.
        An event that comes again within `dedupe_for` (the setting `ingest_dedupe`, 90 days) is acknowledged and not
        queued again, unless it is a dead letter and `reopen`: then it is replayed, by publisher, audited.
        """
        if not _NAME.fullmatch(str(source)):
            raise InvalidSetting(f"a source cannot be called {source!r}", hint="letters, digits, - and _, at most 64")
        if not callable(getattr(verifier, "signed_by", None)):
            raise InvalidSetting(
                f"{source}: {type(verifier).__name__} verifies nothing", hint="todoku.stripe(secrets=[…]), for example"
            )
        for secret in verifier.secrets:
            if isinstance(secret, str) and (is_blank(secret) or is_blank_key(verifier.key(secret))):
                raise InvalidSetting(f"{source}: a secret is empty", hint="what the source signs with")
        self.sources.add(
            Source(
                name=source,
                verifier=verifier,
                topic=template(topic),
                decode=None if model is None else decoder(model, f"{source}: model", self.outbox.secrets),
                key=None if key is None else checked_path(key, "key"),
                dedupe_for=self._remembered(dedupe_for),
                reopen=reopen,
            )
        )

    def _remembered(self, given: Duration | None) -> float:
        return (
            self.outbox.settings.ingest_dedupe
            if given is None
            else checked_duration(given, "dedupe_for", InvalidSetting)
        )

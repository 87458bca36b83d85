"""What a person looks at to find out whether all is well: settings, doctor, verify, ingest sources."""

from __future__ import annotations

from datetime import datetime
from typing import Final, Literal

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.request_context import RequestContext
from todoku.engine.diagnostics.doctor import Finding, examine
from todoku.engine.diagnostics.settings_in_force import SettingInForce, describe_settings
from todoku.engine.diagnostics.verification_task import VerificationReport
from todoku.engine.ingest.source import Source
from todoku.engine.ingest.source_counts import SourceCount
from todoku.store.columns import moment


class SettingsInForce(msgspec.Struct, frozen=True):
    """The settings of the process that answers, by name. Worker processes of the same daemon have the same."""

    items: tuple[SettingInForce, ...]


class Examination(msgspec.Struct, frozen=True, kw_only=True):
    """What the doctor found, and when."""

    at: datetime
    worst: Literal["ok", "warn", "problem"]
    items: tuple[Finding, ...]


class IngestSource(msgspec.Struct, frozen=True, kw_only=True):
    """An ingest source. `counts` are those of the process that answers, since it started."""

    name: str
    verifier: str
    topic: str
    key: str | None
    secrets: int
    dedupe_for: float
    reopen: bool
    counts: SourceCount


class IngestSources(msgspec.Struct, frozen=True):
    """The ingest sources that the App declares, by name."""

    items: tuple[IngestSource, ...]


@operation("GET", "/settings", access="admin")
def list_settings(context: RequestContext) -> SettingsInForce:
    """Lists the settings in force, with their origin; secrets only as `set` or `not set`."""
    return SettingsInForce(describe_settings(context.settings))


@operation("GET", "/doctor", access="read")
def run_doctor(context: RequestContext) -> Examination:
    """Checks the database and the settings, and says how to fix problems."""
    found = tuple(examine(context.store, context.settings))
    worst = max((finding.level for finding in found), key=_LEVELS.index, default=_LEVELS[0])
    return Examination(at=moment(context.store.ping()), worst=worst, items=found)


_LEVELS: Final[tuple[Literal["ok", "warn", "problem"], ...]] = ("ok", "warn", "problem")


@operation("GET", "/verify", access="read")
def get_verification(context: RequestContext) -> VerificationReport:
    """Returns the verification of this process that runs, or its last one."""
    return context.verification.report


@operation("POST", "/verify", access="operate", status=202)
def start_verification(context: RequestContext, by: str) -> VerificationReport:
    """Starts to check the invariants, in the background; one verification at a time. It changes nothing."""
    return context.verification.start(context.store, context.settings, by=by)


@operation("GET", "/sources", access="read")
def list_sources(context: RequestContext) -> IngestSources:
    """Lists ingest sources with what they sent to this process."""
    counts = context.box.sources.counts
    found = sorted(context.box.sources.values(), key=lambda source: source.name)
    return IngestSources(tuple(_source(source, counts.of(source.name)) for source in found))


def _source(source: Source, counts: SourceCount) -> IngestSource:
    return IngestSource(
        name=source.name,
        verifier=type(source.verifier).__name__,
        topic=source.topic.text,
        key=source.key,
        secrets=len(source.verifier.secrets),
        dedupe_for=source.dedupe_for,
        reopen=source.reopen,
        counts=counts,
    )


OPERATIONS: Final = (list_settings, run_doctor, get_verification, start_verification, list_sources)

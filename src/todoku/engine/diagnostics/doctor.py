"""Checks of the database and the settings. Each finding says what is wrong and what to do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final, Literal

import msgspec

from todoku.core.errors import TodokuError
from todoku.core.message import LARGE_PAYLOAD
from todoku.core.redaction import personal_fields
from todoku.core.sealed import MasterKey
from todoku.core.settings import Settings
from todoku.engine.diagnostics.summary import migrate_command
from todoku.store.data_keys import Sample
from todoku.store.database import Facts
from todoku.store.store import Store

Topics = dict[str, tuple[str, ...]]
"""Topics, and the names of their fields that look like personal data."""

_LARGE_ONES: Final = 20
"""Large payloads that are read whole: one for each topic, and no more than this."""


def personal_topics(store: Store, samples: Sequence[Sample]) -> Topics:
    """Finds topics with personal fields in these messages. Only field names are returned, no values.

    Of large payloads, the newest one of each topic is read.
    """
    large: dict[str, int] = {}
    for sample in samples:
        if sample.payload is None and not sample.is_opaque:
            large.setdefault(sample.topic, sample.seq)
    found: dict[str, set[str]] = {}
    small = [(sample.topic, sample.payload) for sample in samples if sample.payload is not None]
    for topic, payload in [*small, *store.data_keys.payloads(list(large.values())[:_LARGE_ONES])]:
        found.setdefault(topic, set()).update(personal_fields(msgspec.json.decode(payload)))
    return {topic: tuple(sorted(fields)) for topic, fields in sorted(found.items()) if fields}


Level = Literal["ok", "warn", "problem"]
_SKEW: Final = 2.0
_LITTLE_SPACE: Final = 256 << 20
_OVERDUE: Final = 60.0
_SHOWN: Final = 8
_NO_KEY: Final = MasterKey("", b"")


class Finding(msgspec.Struct, frozen=True):
    """The result of one check."""

    level: Level
    what: str
    text: str
    todo: str = ""


def examine(store: Store, settings: Settings) -> Iterator[Finding]:
    """Runs all checks of a database and its settings; ends early if the database cannot be read."""
    try:
        facts = store.facts()
    except TodokuError as error:
        yield Finding("problem", "database", str(error), error.hint)
        return
    yield Finding("ok", "database", facts.describe)
    yield from _check_schema_settings(facts)
    yield from _check_storage(facts)
    yield from _check_connections(facts, settings)
    version_finding = _check_version(facts, settings)
    yield version_finding
    if version_finding.level == "problem":
        return
    yield _check_clock(store)
    yield from _check_leases(store, settings)
    yield from _check_destinations(store, settings)
    yield from _check_schedules(store, settings)
    yield from _check_projections(store)
    yield from _check_captures(store)
    yield _check_history(facts)
    yield from _check_dead_letters(store)
    newest = store.data_keys.samples()
    yield from _check_payload_sizes(newest)
    yield from _check_personal_data(store, newest)
    yield from _check_encryption(store, settings)


def _check_schema_settings(facts: Facts) -> Iterator[Finding]:
    if facts.encoding != "UTF8":
        text = f"this database has the encoding {facts.encoding}, and todoku needs UTF8"
        todo = "use a database created with: create database … encoding 'UTF8' template template0"
        yield Finding("problem", "encoding", text, todo)
    if facts.no_schema:
        text = "the search_path of this role names no schema that exists"
        yield Finding("problem", "search path", text, "set `schema`, or create one of the schemas it names")
    if len(facts.schemas) > 1:
        text = f"there are tables of todoku in the schemas {', '.join(facts.schemas)}; the search path decides"
        yield Finding("warn", "schema", text, "set `schema` to the intended one, for workers and publishers alike")


def _check_storage(facts: Facts) -> Iterator[Finding]:
    if not facts.writable:
        todo = "check the owner of the file and its directory; or whether this server is a standby, or"
        todo += " default_transaction_read_only is on for this role or database"
        yield Finding("problem", "writable", "the database cannot be written to", todo)
    if not facts.durable:
        todo = "set fsync = on and synchronous_commit = on"
        yield Finding("problem", "durability", "acknowledged writes can be lost when the power fails", todo)
    else:
        yield Finding("ok", "durability", "acknowledged writes are on disk")
    if facts.wal_safe is False:
        todo = "use a Python linked with SQLite 3.51.3 or newer; until then todoku uses the journal TRUNCATE"
        yield Finding("warn", "journal", "this SQLite can lose acknowledged writes in WAL", todo)
    if facts.shared_files is not None:
        yield _check_files(facts.shared_files)
    if facts.free_bytes is not None:
        free = f"{facts.free_bytes / (1 << 30):.1f} GiB free"
        low = facts.free_bytes < _LITTLE_SPACE
        yield Finding("problem" if low else "ok", "disk", free, "make room on the disk of the database" if low else "")


def _check_files(shared: tuple[str, ...]) -> Finding:
    if not shared:
        return Finding("ok", "files", "only their owner can read and write them")
    text = f"other users of this machine can read or write {', '.join(shared)}"
    return Finding("warn", "files", text, "chmod 600 them, unless those users share the database with you on purpose")


def _check_connections(facts: Facts, settings: Settings) -> Iterator[Finding]:
    if facts.connections_max is not None and facts.connections_used is not None:
        free = facts.connections_max - facts.connections_used
        text = f"{facts.connections_used} of {facts.connections_max} in use; a process of todoku takes up to "
        text += f"{settings.connections}"
        if free < settings.connections:
            todo = "raise max_connections, lower `connections`, or put PgBouncer in between"
            yield Finding("warn", "connections", text, todo)
        else:
            yield Finding("ok", "connections", text)
    if facts.pooled:
        text = "connections go through a pooler (PgBouncer?)"
        if settings.prepare_statements:
            todo = "before PgBouncer 1.21, or with max_prepared_statements = 0, set prepare_statements = false"
            yield Finding("warn", "pooler", f"{text}, and statements are prepared", todo)
        else:
            yield Finding("ok", "pooler", text)


def _check_version(facts: Facts, settings: Settings) -> Finding:
    if facts.version is None:
        return Finding("problem", "schema", "not migrated", f"run {migrate_command(settings)}")
    if facts.version < facts.latest:
        text = f"version {facts.version}, this todoku needs {facts.latest}"
        return Finding("problem", "schema", text, f"run {migrate_command(settings)}")
    if facts.version > facts.latest:
        text = f"version {facts.version}, this todoku knows {facts.latest}"
        return Finding("problem", "schema", text, "a newer todoku migrated it: upgrade this one")
    return Finding("ok", "schema", f"version {facts.version}")


def _check_clock(store: Store) -> Finding:
    before = time.time()
    database_time = store.ping()
    after = time.time()
    skew = max(before - database_time, database_time - after, 0.0)
    if skew > _SKEW:
        todo = "synchronise both clocks by NTP; leases use the database's clock, but log times will not match"
        return Finding("warn", "clock", f"this machine and the database differ by {skew:.1f} s", todo)
    return Finding("ok", "clock", "this machine and the database agree")


def _check_leases(store: Store, settings: Settings) -> Iterator[Finding]:
    now, workers = store.ping(), store.leases.workers()
    ended = [worker for worker in workers if worker.expires_at.timestamp() <= now - settings.reclaim_interval_sec]
    alive = len(workers) - len(ended)
    if ended:
        held = sum(worker.held for worker in ended)
        text = f"{len(ended)} ended leases that no worker reclaimed, holding {held} deliveries"
        yield Finding("problem" if held else "warn", "leases", text, "start a worker, or run `todoku release-expired`")
    if alive:
        yield Finding("ok", "workers", f"{alive} alive")
    else:
        yield Finding("warn", "workers", "none is alive, so no delivery runs", "start one: `todoku run` or `todoku up`")


def _check_destinations(store: Store, settings: Settings) -> Iterator[Finding]:
    now, known, waiting = store.ping(), store.destinations.known(), store.claims.waiting(None)
    places = {name for _, name, *_ in waiting.groups} | {name for _, name in (*waiting.suspects, *waiting.lanes)}
    for name in sorted(places):
        seen = known.seen(name)
        if seen is None or seen < now - settings.unknown_after_sec:
            text = f"deliveries wait for {name}, which no worker has registered"
            todo = "run a worker whose App declares it; after unknown_after_sec they become dead letters"
            yield Finding("problem", "destinations", text, todo)


def _check_schedules(store: Store, settings: Settings) -> Iterator[Finding]:
    rows, found = store.schedules.rows(), False
    for row in rows:
        late = 0.0 if row.next_run_at is None or row.paused else (row.now - row.next_run_at).total_seconds()
        if row.error is not None:
            found = True
            yield Finding("problem", "schedules", f"{row.name} cannot be fired: {row.error}", "todoku schedules")
        elif not row.is_served(settings.unknown_after_sec) and not row.paused:
            found = True
            text = f"{row.name} is not declared by any App any more, so it does not fire"
            yield Finding("warn", "schedules", text, f"run its App, or: todoku schedule remove {row.name}")
        elif late > _OVERDUE:
            found = True
            text = f"{row.name} has been due for {late:.0f} s, and no worker has fired it"
            yield Finding("warn", "schedules", text, "check that a worker is alive and enabled")
    if rows and not found:
        yield Finding("ok", "schedules", f"{len(rows)}, none of them overdue")


def _check_projections(store: Store) -> Iterator[Finding]:
    for row in store.projections.list():
        if row.state == "stopped":
            todo = f"todoku projection rebuild {row.name}"
            yield Finding("problem", "projections", f"{row.name} is stopped: {row.why or 'not said'}", todo)


def _check_captures(store: Store) -> Iterator[Finding]:
    rows, found = store.captures.list(), False
    for row in rows:
        todo = f"todoku capture show {row.name}"
        for warning in row.warnings:
            yield Finding("warn", "captures", f"{row.name}: {warning}", todo)
        if row.state in ("away", "stopped"):
            found = True
            text = f"{row.name} is {row.state}, {row.reason or 'for no known reason'}: {row.why or 'not said'}"
            yield Finding("problem" if row.is_down else "warn", "captures", text, todo)
        elif not row.owned:
            found = True
            text = f"no worker reads {row.name}, and its source keeps its log until one does"
            yield Finding("warn", "captures", text, "run a worker whose App declares it, or: todoku capture drop")
    if rows and not found:
        yield Finding("ok", "captures", f"{len(rows)}, each read by a worker")


def _check_history(facts: Facts) -> Finding:
    if facts.stray:
        text = f"{facts.stray} history rows are in no partition of their day"
        return Finding("problem", "history", text, "run a worker: its maintenance creates the partitions of the week")
    return Finding("ok", "history", "every row is in the partition of its day")


def _check_dead_letters(store: Store) -> Iterator[Finding]:
    if number := sum(group.number for group in store.statistics.dead_letters()):
        text = f"{number} dead letters"
        todo = "`todoku reasons` shows why, `todoku replay --reason REASON` sends them again"
        yield Finding("warn", "dead letters", text, todo)


def _check_payload_sizes(newest: Sequence[Sample]) -> Iterator[Finding]:
    sizes: dict[str, list[int]] = {}
    for sample in newest:
        if sample.bytes > LARGE_PAYLOAD:
            sizes.setdefault(sample.topic, []).append(sample.bytes)
    for topic, large in sorted(sizes.items()):
        text = f"{topic}: {len(large)} of the newest {len(newest)} messages have more than {LARGE_PAYLOAD >> 10} KiB, "
        text += f"the largest {max(large) >> 10} KiB"
        todo = "store it where it belongs and send its id: the consumer reads it there"
        yield Finding("warn", "large payloads", text, todo)


def _check_personal_data(store: Store, newest: Sequence[Sample]) -> Iterator[Finding]:
    for topic, fields in personal_topics(store, newest).items():
        text = f"{topic} is not encrypted, and has fields that look like personal data: {', '.join(fields[:_SHOWN])}"
        text += f" and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else ""
        todo = "declare it with encrypted=True, or send a todoku.Ref instead of the value: docs/encryption.md"
        yield Finding("warn", "personal data", text, todo)


def _check_encryption(store: Store, settings: Settings) -> Iterator[Finding]:
    found = store.data_keys.days()
    unknown = sorted({row.master_key_id for row in found if settings.master_keys.get(row.master_key_id) is None})
    stale = sum(row.number for row in found if row.master_key_id != next(iter(settings.master_keys), _NO_KEY).id)
    if unknown:
        text = f"data keys are wrapped by {', '.join(unknown)}, which is not configured here"
        yield Finding("warn", "encryption", text, "add it to TODOKU_MASTER_KEYS, behind the current one")
    elif stale:
        text = f"{stale} data keys are wrapped by an older master key"
        yield Finding("warn", "encryption", text, "run `todoku encryption-keys rotate`")
    elif found:
        yield Finding("ok", "encryption", "every data key is wrapped by the current master key")

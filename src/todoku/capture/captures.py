"""`box.capture(…)`: one capture, and `box.captures`: those of an App. What reads a source is loaded when it is used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypedDict
from uuid import UUID

import msgspec

from todoku.core.capture import TableRule, table_rule
from todoku.core.errors import InvalidSetting, NotThere
from todoku.core.outcome import Duration, seconds
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.operations import sign
from todoku.engine.outbox import Outbox
from todoku.engine.process_settings import read_secret
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.audit import Signed
from todoku.store.captures import CaptureRow, CaptureStore

if TYPE_CHECKING:
    from todoku.capture.session import SessionOptions, SessionParts

_SQLITE_HINT: Final = (
    "SQLite has no log of rows: publish in the transaction that changes them, box.publish(…, tx=…); database=… of"
    " box.capture names a PostgreSQL database"
)


class Capture:
    """The tables that share a slot, a publication and a position. `box.capture` creates it.

    Every call has an async form, `a…`. What an operator does is audited with `by` and `why`.
    """

    def __init__(self, name: str, outbox: Outbox, declarations: Declarations) -> None:
        self.name = name
        self._outbox = outbox
        self._declarations = declarations
        self._rules: dict[str, TableRule] = {}
        self._snapshots: dict[str, bool] = {}
        self._database: str | None = None
        self._drop_slot_above: int | None = None
        self.options: SessionOptions | None = None
        """How it is read; None: as usual. For tests."""

    def __repr__(self) -> str:
        return f"<Capture {self.name}: {', '.join(self._rules)}>"

    @property
    def rules(self) -> tuple[TableRule, ...]:
        """The declared tables."""
        return tuple(self._rules.values())

    @property
    def _store(self) -> CaptureStore:
        return self._outbox.store.captures

    def add(self, rule: TableRule, database: str | None, drop_slot_above: int | None, *, snapshot: bool) -> None:
        """Declares one table. InvalidSetting: it contradicts an earlier declaration."""
        if rule.table in self._rules:
            raise InvalidSetting(f"{rule.table} is captured twice by {self.name!r}", hint="leave one of them out")
        if self._rules and database != self._database:
            raise InvalidSetting(
                f"the tables of the capture {self.name!r} are in two databases", hint="give one of them another name="
            )
        if drop_slot_above is not None and (type(drop_slot_above) is not int or drop_slot_above <= 0):
            raise InvalidSetting(
                f"drop_slot_above cannot be {drop_slot_above!r}", hint="a number of bytes: drop_slot_above=20 * 2**30"
            )
        self._database = database
        self._refuse_sqlite(database or self._outbox.settings.database)
        self._drop_slot_above = drop_slot_above if drop_slot_above is not None else self._drop_slot_above
        self._rules[rule.table] = rule
        self._snapshots[rule.table] = snapshot

    def declare(self) -> CaptureRow:
        """Records the capture in todoku's database, once. `box.migrate()` calls it, and each reader at its start."""
        return self._store.declare(self.name, self.rules, snapshot=self._snapshots)

    def read(self, worker: Callable[[], UUID], stop: threading.Event) -> None:
        """Reads it, unless another worker does, until `stop` is set. Workers run it in a thread of its own."""
        from todoku.capture.reader import Reader  # noqa: PLC0415 - psycopg is an extra

        Reader(self.name, self._parts(), declare=self.declare).run(worker, stop)

    @blocking("capture")
    async def status(self) -> CaptureRow:
        """Returns its state, its position, how far it is behind, and its tables. NotThere: it is not declared yet."""
        return await in_thread(read_status, self._store, self.name)

    astatus = asynchronous(status)

    @blocking("capture")
    async def snapshot(self, tables: Sequence[str] | None = None, *, by: str, why: str) -> CaptureRow:
        """Reads all rows of its tables anew, or of some: also after a lost slot, of which a new one is made (R20)."""
        return await in_thread(self._store.restart, self.name, tables, sign(by, why))

    asnapshot = asynchronous(snapshot)

    @blocking("capture")
    async def drop(self, *, by: str, why: str, forget_source: bool = False) -> CaptureRow | None:
        """Drops the slot and the publication at the source, and forgets the capture. None: there was none.

        `forget_source`: the source is gone for good, so nothing is dropped there.
        """
        return await in_thread(self._drop, sign(by, why), forget_source=forget_source)

    adrop = asynchronous(drop)

    @blocking("capture")
    async def catch_up(self, *, timeout: Duration = 60.0) -> CaptureRow:  # noqa: ASYNC109 - its blocking form has it, too
        """Reads until everything that was committed before the call is stored: for tests and scripts."""
        return await in_thread(self._catch_up, seconds(timeout, what="timeout"))

    acatch_up = asynchronous(catch_up)

    def _drop(self, signed: Signed, *, forget_source: bool) -> CaptureRow | None:
        from todoku.capture.source import drop_at_source  # noqa: PLC0415 - psycopg is an extra

        row = self._store.get(self.name)
        if row is not None and not forget_source:
            drop_at_source(self.url(), row.slot, row.publication)
        return self._store.drop(self.name, signed)

    def _catch_up(self, timeout: float) -> CaptureRow:
        from todoku.capture.catch_up import catch_up  # noqa: PLC0415 - psycopg is an extra

        self.declare()
        return catch_up(self.name, self._parts(), self._outbox.store.leases, timeout)

    def url(self) -> str:
        """The URL of the source, with what `secret://` names in it."""
        settings = self._outbox.settings
        url = str(read_secret("database", self._database or settings.database, settings.secrets_dir))
        self._refuse_sqlite(url)
        scheme, separator, rest = url.partition("://")
        return f"postgresql://{rest}" if separator and scheme.startswith("postgres") else url

    def _refuse_sqlite(self, url: str) -> None:
        if url.startswith("sqlite"):
            raise InvalidSetting(f"the source of the capture {self.name!r} is SQLite", hint=_SQLITE_HINT)

    def _parts(self) -> SessionParts:
        from todoku.capture.drafts import CapturedDrafts  # noqa: PLC0415 - psycopg is an extra
        from todoku.capture.session import SessionOptions, SessionParts  # noqa: PLC0415

        options = self.options or SessionOptions()
        if self._drop_slot_above is not None:
            options = msgspec.structs.replace(options, drop_slot_above=self._drop_slot_above)
        outbox = self._outbox
        return SessionParts(
            url=self.url, rules=self.rules, store=self._store, telemetry=outbox.telemetry,
            drafts=CapturedDrafts(outbox, lambda: self._declarations.routes), notify=outbox.settings.notify,
            on_stored=lambda: outbox.wake(), options=options,  # noqa: PLW0108 - `wake` is replaced by each worker
        )  # fmt: skip


class CaptureOptions(TypedDict, total=False):
    """How a table is captured: the keywords of `box.capture`.

    `name`: tables with the same one (`main`) share a slot, a publication and a position. `database`: the URL of the
    source, or `secret://…` (None: todoku's own). `snapshot`: whether its present rows are published first (True).
    `drop_slot_above`: bytes of log that the source may keep for the slot; above them the slot is dropped, and the
    capture stops.
    """

    name: str
    database: str | None
    snapshot: bool
    drop_slot_above: int | None


class Captures:
    """The captures of an App: `box.captures["main"]`."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self._outbox = declarations.outbox
        self._declared: dict[str, Capture] = {}

    def __getitem__(self, name: str) -> Capture:
        try:
            return self._declared[name]
        except KeyError:
            known = ", ".join(sorted(self._declared)) or "none"
            raise NotThere(f"this App has no capture {name!r}", hint=f"it has: {known}") from None

    def __iter__(self) -> Iterator[Capture]:
        return iter(self._declared.values())

    def __len__(self) -> int:
        return len(self._declared)

    def declare(self, table: str, topic: str, key: str | Sequence[str], options: CaptureOptions) -> Capture:
        """Declares a table; the contract is that of `App.capture`."""
        name = options.get("name", "main")
        if not name or len(name) > 100:
            raise InvalidSetting(f"a capture cannot be called {name!r}", hint='name="main"')
        rule = table_rule(table, topic, key)
        if rule.name.startswith("todoku_"):
            raise InvalidSetting(
                f"{rule.table} cannot be captured: each message would make another one",
                hint="todoku's own tables: see `todoku debezium-config`, or box.route(…)",
            )
        known = self._declared.get(name)
        capture = known or Capture(name, self._outbox, self._declarations)
        capture.add(
            rule, options.get("database"), options.get("drop_slot_above"), snapshot=options.get("snapshot", True)
        )
        if known is None:
            self._declared[name] = capture
            self._declarations.registry.companions.append(capture.read)
        return capture

    def announce(self) -> None:
        """Records every declared capture in todoku's database. Blocks."""
        for capture in self:
            capture.declare()


def read_status(store: CaptureStore, name: str) -> CaptureRow:
    """Returns a capture of the database. NotThere: there is none of that name."""
    if (row := store.get(name)) is None:
        raise NotThere(f"there is no capture {name!r} in this database", hint="`todoku capture list` names them")
    return row

"""HTTP in the store: queues, flow keys and URL groups. Requests themselves are messages like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.identity import lane_id
from todoku.core.msgspec_warmup import learned
from todoku.store.database import Database, Tx
from todoku.store.values import Signed, moment, moment_or_none

Kind = Literal["http:", "flow:"]
"""How names of QStash-like queues begin, and of flow keys."""

COUNTED: Final = 100_000
"""What waits is counted up to here."""


class QueueSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was said of a queue or flow key. A pin goes before what publishers say."""

    parallelism: int | None = None
    rate: int | None = None
    period: float = 1.0
    pinned_parallelism: int | None = None
    pinned_rate: int | None = None
    pinned_period: float | None = None
    implicit: bool = False
    """Nobody asked for it but by using it: it may go when nobody does any more."""


learned(QueueSpec)


class QueueRow(msgspec.Struct, frozen=True, kw_only=True):
    """A queue as it is stored. `concurrency` and `rate` (a second) are in force; `paced_until`: no start before it."""

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    spec: QueueSpec
    created_at: datetime | None
    updated_at: datetime
    paced_until: float | None
    now: float


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be stored of a queue."""

    paused: bool
    concurrency: int | None
    rate: float | None
    spec: QueueSpec


class Load(msgspec.Struct, frozen=True):
    """What a queue holds: so much waits, so much runs."""

    waiting: int
    running: int


class EndpointRow(msgspec.Struct, frozen=True):
    """Where a URL group sends to. `reason`: why it is disabled."""

    url: str
    name: str | None
    enabled: bool
    reason: str | None


class GroupRow(msgspec.Struct, frozen=True):
    """A URL group with its endpoints, in the order in which they came; `headers` are defaults of its messages."""

    name: str
    headers: dict[str, str]
    endpoints: tuple[EndpointRow, ...]
    created_at: datetime
    updated_at: datetime


class NewEndpoint(msgspec.Struct, frozen=True):
    """An endpoint that is to be in a group."""

    id: UUID
    url: str
    name: str | None


class Http:
    """What requests need beside the line. Every call is a transaction of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ------------------------------------------------------------------------------ queues and flow keys

    def queue(self, name: str) -> QueueRow | None:
        """A queue that was made over HTTP, by its whole name; None: there is none."""
        rows = self._database.read(lambda tx: tx.rows("http_queue", name=name))
        return next((row for row in map(_queue, rows) if row.created_at is not None), None)

    def queues(self, kind: Kind, *, search: str | None = None, limit: int = 1000) -> tuple[QueueRow, ...]:
        """All of a kind, by name; with `search`, those whose name contains it."""
        rows = self._database.read(lambda tx: tx.rows("http_queues", kind=kind, search=search, most=limit))
        return tuple(map(_queue, rows))

    def change_queue(
        self,
        name: str,
        decide: Callable[[QueueRow | None], Said | None],
        signed: Signed | None = None,
        *,
        action: str = "",
    ) -> QueueRow | None:
        """Let `decide` see a queue and say what it is to be, with its row locked; None: it stays as it is.

        Returns the queue as it was before. Audited if it is signed.
        """

        def work(tx: Tx) -> QueueRow | None:
            before = _locked(tx, name)
            if (said := decide(before)) is None:
                return before
            if before is None:
                tx.rows("make_queue", name=name)
                before = _locked(tx, name)  # somebody may have made it meanwhile: then that is what it was
                said = decide(before) or said
            tx.rows("put_queue", name=name, **_fields(said))
            if signed is not None:
                tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"queue:{name}"])
            return before

        return self._database.write("put_queue", work)

    def remove_queue(self, name: str, signed: Signed) -> bool:
        """Forget what was said of a queue; what waits in it is delivered all the same. False: there was none."""

        def work(tx: Tx) -> bool:
            gone = bool(tx.rows("remove_queue", name=name))
            if gone:
                tx.rows("audit", by=signed.by, why=signed.why, action="remove", targets=[f"queue:{name}"])
            return gone

        return self._database.write("put_queue", work)

    def reset_rate(self, name: str, signed: Signed) -> bool:
        """Let the next start of a queue be now, whatever its rate has given away. False: there is none."""

        def work(tx: Tx) -> bool:
            if found := bool(tx.rows("reset_rate", name=name)):
                tx.rows("audit", by=signed.by, why=signed.why, action="reset rate", targets=[f"queue:{name}"])
            return found

        return self._database.write("put_queue", work)

    def loads(self, names: Sequence[str]) -> dict[str, Load]:
        """What queues hold, by their whole names; counted up to COUNTED each."""
        places = [{"name": name, "lane": lane_id("http", name)} for name in names]
        rows = self._database.read(lambda tx: tx.rows("queue_loads", places=places, most=COUNTED)) if places else []
        return {name: Load(waiting, running) for name, waiting, running in rows}

    def running(self) -> tuple[int, int]:
        """How many requests are being sent at this moment, and by how many live workers at the most."""
        ((running, workers),) = self._database.read(lambda tx: tx.rows("http_running"))
        return running, workers

    # -------------------------------------------------------------------------------------- URL groups

    def group(self, name: str) -> GroupRow | None:
        """A group with its endpoints."""
        return next(iter(self._database.read(lambda tx: groups_in(tx, [name]))), None)

    def groups(self, *, names: Sequence[str] | None = None) -> tuple[GroupRow, ...]:
        """All of them by name, or those that are named."""
        return self._database.read(lambda tx: groups_in(tx, names))

    def put_endpoints(
        self, name: str, endpoints: Sequence[NewEndpoint], headers: Mapping[str, str] | None, signed: Signed
    ) -> None:
        """Make a group, or add to it; an endpoint with a URL that is there gets the new name and is enabled again.

        `headers` None: those it has.
        """

        def work(tx: Tx) -> None:
            tx.rows("put_group", name=name, headers=None if headers is None else _json(headers))
            for one in sorted(endpoints, key=lambda endpoint: endpoint.url):
                tx.rows("put_endpoint", id=one.id, url=one.url, name=one.name, group=name)
            targets = [f"group:{name}", *(f"endpoint:{one.url}" for one in endpoints)]
            tx.rows("audit", by=signed.by, why=signed.why, action="put", targets=targets)

        self._database.write("put_group", work)

    def change_headers(
        self, name: str, change: Callable[[GroupRow], dict[str, str] | None], signed: Signed, *, action: str
    ) -> None:
        """Change the default headers of a group by what they are, with its row locked. None: they stay."""

        def work(tx: Tx) -> None:
            tx.rows("touch_group", name=name)
            for group in groups_in(tx, [name]):
                if (headers := change(group)) is not None:
                    tx.rows("put_group", name=name, headers=_json(headers))
                    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"group:{name}"])

        self._database.write("put_group", work)

    def remove_endpoints(self, name: str, urls: Sequence[str], names: Sequence[str], signed: Signed) -> int:
        """Take endpoints out of a group, by URL or by name; the group goes with its last one. Returns how many."""

        def work(tx: Tx) -> int:
            gone = tx.rows("remove_endpoints", group=name, urls=list(urls), names=list(names))
            if not gone:
                return 0
            tx.rows("touch_group", name=name)
            tx.rows("remove_empty_group", name=name)
            targets = [f"group:{name}", *(f"endpoint:{url}" for (url,) in gone)]
            tx.rows("audit", by=signed.by, why=signed.why, action="remove", targets=targets)
            return len(gone)

        return self._database.write("put_group", work)

    def remove_group(self, name: str, signed: Signed) -> bool:
        """Remove a group with its endpoints; what was published to it is delivered. False: there was none."""

        def work(tx: Tx) -> bool:
            gone = bool(tx.rows("remove_group", name=name))
            if gone:
                tx.rows("audit", by=signed.by, why=signed.why, action="remove", targets=[f"group:{name}"])
            return gone

        return self._database.write("put_group", work)

    def set_endpoint(
        self, url: str, signed: Signed, *, group: str | None, enabled: bool, reason: str | None = None
    ) -> bool:
        """Enable or disable an endpoint; `group` None: in whatever group. False: there is none that was otherwise."""

        def work(tx: Tx) -> bool:
            state = "enabled" if enabled else "disabled"
            changed = tx.rows("set_endpoint", url=url, group=group, state=state, reason=None if enabled else reason)
            if changed:
                action = "enable" if enabled else "disable"
                tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"endpoint:{url}"])
            return bool(changed)

        return self._database.write("put_group", work)


def _locked(tx: Tx, name: str) -> QueueRow | None:
    return next(map(_queue, tx.rows("lock_queue", name=name)), None)


def _fields(said: Said) -> dict[str, Any]:
    return msgspec.structs.asdict(said) | {"spec": _json(said.spec)}


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _queue(row: Any) -> QueueRow:
    name, paused, concurrency, rate, spec, created, updated, paced_until, now = row
    return QueueRow(
        name=name,
        paused=bool(paused),
        concurrency=concurrency,
        rate=rate,
        spec=QueueSpec() if spec is None else msgspec.json.decode(spec, type=QueueSpec),
        created_at=moment_or_none(created),
        updated_at=moment(updated),
        paced_until=paced_until,
        now=float(now),
    )


def groups_in(tx: Tx, names: Sequence[str] | None) -> tuple[GroupRow, ...]:
    """Groups with their endpoints, in a transaction that is open: all of them (None), or those that are named."""
    listed = None if names is None else list(names)
    endpoints: dict[str, list[EndpointRow]] = {}
    for group, url, name, enabled, reason in tx.rows("endpoints", names=listed):
        endpoints.setdefault(group, []).append(EndpointRow(url, name, bool(enabled), reason))
    return tuple(
        GroupRow(
            name,
            {} if headers is None else msgspec.json.decode(headers, type=dict[str, str]),
            tuple(endpoints.get(name, ())),
            moment(created),
            moment(updated),
        )
        for name, headers, created, updated in tx.rows("groups", names=listed)
    )

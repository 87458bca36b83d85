"""URL groups: named sets of endpoints; a message to a group is delivered to each of its enabled endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.database import Database, Tx


class EndpointRow(msgspec.Struct, frozen=True):
    """One receiver of a URL group. `reason`: why it is disabled."""

    url: str
    name: str | None
    enabled: bool
    reason: str | None


class GroupRow(msgspec.Struct, frozen=True):
    """A URL group with its endpoints in the order they were added; `headers` are defaults of its messages."""

    name: str
    headers: dict[str, str]
    endpoints: tuple[EndpointRow, ...]
    created_at: datetime
    updated_at: datetime


class NewEndpoint(msgspec.Struct, frozen=True):
    """An endpoint to be added to a group."""

    id: UUID
    url: str
    name: str | None


class UrlGroupStore:
    """The URL groups of one database. Every call is one transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, name: str) -> GroupRow | None:
        """A group with its endpoints."""
        return next(iter(self._database.read(lambda tx: read_groups(tx, [name]))), None)

    def all(self, *, names: Sequence[str] | None = None) -> tuple[GroupRow, ...]:
        """All groups by name, or these."""
        return self._database.read(lambda tx: read_groups(tx, names))

    def put_endpoints(
        self, name: str, endpoints: Sequence[NewEndpoint], headers: Mapping[str, str] | None, signed: Signed
    ) -> None:
        """Creates a group or adds to it; an endpoint whose URL is already there gets the new name and is enabled again.

        `headers` None: unchanged.
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
        """Calls `change` with the group's row locked, and stores the default headers it returns. None: unchanged."""

        def work(tx: Tx) -> None:
            tx.rows("touch_group", name=name)
            for group in read_groups(tx, [name]):
                if (headers := change(group)) is not None:
                    tx.rows("put_group", name=name, headers=_json(headers))
                    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"group:{name}"])

        self._database.write("put_group", work)

    def remove_endpoints(self, name: str, urls: Sequence[str], names: Sequence[str], signed: Signed) -> int:
        """Removes endpoints by URL or name, and the group with its last one. Returns how many were removed."""

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

    def remove(self, name: str, signed: Signed) -> bool:
        """Removes a group with its endpoints; messages already published are still delivered. False: there was none."""

        def work(tx: Tx) -> bool:
            gone = bool(tx.rows("remove_group", name=name))
            if gone:
                tx.rows("audit", by=signed.by, why=signed.why, action="remove", targets=[f"group:{name}"])
            return gone

        return self._database.write("put_group", work)

    def set_endpoint(
        self, url: str, signed: Signed, *, group: str | None, enabled: bool, reason: str | None = None
    ) -> bool:
        """Enables or disables an endpoint; `group` None: in every group. False: nothing changed."""

        def work(tx: Tx) -> bool:
            state = "enabled" if enabled else "disabled"
            changed = tx.rows("set_endpoint", url=url, group=group, state=state, reason=None if enabled else reason)
            if changed:
                action = "enable" if enabled else "disable"
                tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"endpoint:{url}"])
            return bool(changed)

        return self._database.write("put_group", work)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def read_groups(tx: Tx, names: Sequence[str] | None) -> tuple[GroupRow, ...]:
    """Groups with their endpoints, in an open transaction: all of them (None), or these."""
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

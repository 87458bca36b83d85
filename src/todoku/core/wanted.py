"""A filter of HTTP requests: a request matches if each field that is not empty contains the request's value."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from todoku.core.http_request import HttpRequest


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A filter. Empty fields do not filter. `since` and `until` limit the time that a listing is ordered by."""

    message_ids: tuple[UUID, ...] = ()
    dead_ids: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    caller_ips: tuple[str, ...] = ()
    flow_keys: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    """HTTP statuses of the receiver's last response; 0: it never answered."""
    reasons: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    def is_empty(self) -> bool:
        """Whether the filter matches everything."""
        return self == Wanted()

    def takes(self, request: HttpRequest) -> bool:
        """Whether the filter matches the values that are in the request itself; it ignores ids, statuses, reasons,
        states and times."""
        if self.labels and not set(self.labels) & set(request.labels):
            return False
        return all(given in wanted for wanted, given in self._pairs(request) if wanted)

    def _pairs(self, request: HttpRequest) -> Sequence[tuple[Sequence[str], str | None]]:
        parts = urlsplit(request.url) if self.hosts or self.paths else _NOWHERE
        hosts = [host.lower() for host in self.hosts]
        host = parts.netloc.rpartition("@")[2].lower() if ":" in "".join(hosts) else parts.hostname
        return (
            (self.urls, request.url),
            (hosts, host),
            (self.paths, parts.path or "/"),
            (self.queues, request.queue),
            (self.groups, request.group),
            (self.schedules, request.schedule),
            (self.caller_ips, request.caller_ip),
            (self.flow_keys, request.flow.key if request.flow is not None else None),
        )


_NOWHERE: Final = urlsplit("")
EVERYTHING: Final = Wanted()

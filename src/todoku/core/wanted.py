"""Which requests somebody means: several values of one kind mean any of them, several kinds mean all of them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from urllib.parse import urlsplit
from uuid import UUID

import msgspec

from todoku.core.http_request import HttpRequest


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A filter. What is empty does not filter. `since` and `until`: of the moment a listing is ordered by."""

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
    """What the receiver answered last; 0: nothing."""
    reasons: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None

    def is_empty(self) -> bool:
        """Whether this means everything there is."""
        return self == Wanted()

    def takes(self, request: HttpRequest) -> bool:
        """Whether this request is meant, as far as it can tell by itself."""
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

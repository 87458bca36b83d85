"""Which deliveries: the one filter of listings and acts, answered by SQL (the fragment `matching`)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which deliveries: all that match every field that is set. A field with several values matches any of them.

    `since` and `until` are of the last change, `published_since` and `published_until` of the message. The fields from
    `urls` on are about HTTP requests: with one of them, only requests match.
    """

    ids: tuple[int, ...] | None = None
    message_id: UUID | None = None
    status: str | None = None
    topic: str | None = None
    destination: str | None = None
    queue: str | None = None
    reason: str | None = None
    key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    due: bool = False
    message_ids: tuple[UUID, ...] = ()
    published_since: datetime | None = None
    published_until: datetime | None = None
    urls: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Names of hosts in any case, or `host:port` as the URL has it."""
    paths: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    request_queues: tuple[str, ...] = ()
    url_groups: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    caller_ips: tuple[str, ...] = ()
    flow_keys: tuple[str, ...] = ()
    response_statuses: tuple[int, ...] = ()
    """The HTTP status of the response to the last failed attempt; 0: there was no response."""


_OF_REQUESTS: Final = (
    "urls", "hosts", "paths", "labels", "request_queues", "url_groups", "schedules", "caller_ips", "flow_keys",
)  # fmt: skip


def request_parameters(which: Filter) -> dict[str, Any]:
    """The parameters of the fragment `request_matching`."""
    values = {name: list(getattr(which, name)) or None for name in _OF_REQUESTS}
    hosts = [host.lower() for host in which.hosts]
    return {
        **values,
        "hosts": hosts or None,
        "with_port": any(":" in host for host in hosts),
        "by_request": any(values.values()),
    }


def parameters(which: Filter) -> dict[str, Any]:
    """The parameters of the fragment `matching`, which includes `request_matching`."""
    return {
        **msgspec.structs.asdict(which),
        **request_parameters(which),
        "message_ids": [str(id) for id in which.message_ids] or None,
        "response_statuses": list(which.response_statuses) or None,
    }

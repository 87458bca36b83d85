"""Limits the number of a server's connections and how long it waits on each.

At the limit, the server accepts the new connection and drops the oldest one that waits for its client: idle, half-sent,
or with a client that does not read its response. So connections that clients hold open never block a health check.
"""

from __future__ import annotations

from collections import defaultdict
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.settings import Settings

_OTHER_FILES: Final = 64
"""Files that a daemon has open besides connections: the database, pipes to its workers, logs."""

_FEWEST: Final = 16
_MOST: Final = 8192

_IN_RESERVE: Final = 16
"""Connections beyond the limit, accepted while all others are busy. Only health checks are served on them."""

_MOST_EXAMINED: Final = 256
"""Connections examined in search of one to drop."""


class Bounds(msgspec.Struct, frozen=True):
    """The limits of a server for its clients. Durations are in seconds."""

    idle: float = 5.0
    """Between two requests."""
    receive: float = 10.0
    """For a head, for a body, and for a client that has stopped reading its response."""
    connections: int = _FEWEST
    per_address: int = _FEWEST

    @property
    def backlog(self) -> int:
        """Connections waiting to be accepted. They are accepted all at once, so they count as open files too."""
        return max(_FEWEST, min(128, self.connections // 2))


class Connection(Protocol):
    """An open connection."""

    @property
    def waits_for_client(self) -> bool:
        """Whether the client is to send or read next, so that dropping the connection interrupts no request."""

    def drop(self) -> None:
        """Ends the connection now."""


def bounds_of(settings: Settings) -> Bounds:
    """Returns the limits of the settings; those not set follow from how many files the process may open."""
    files = _most_files()
    room = _MOST * 4 if files is None else files - _OTHER_FILES
    connections = settings.api_connections or max(_FEWEST, min(_MOST, room // 2))
    if settings.api_connections is not None and connections > room:
        raise InvalidSetting(
            f"api_connections cannot be {connections}: this process may open {files} files",
            hint=f"raise the limit (ulimit -n), or set at most {max(room, 1)}",
        )
    per_address = settings.api_connections_per_address or max(_FEWEST, connections // 2)
    return Bounds(settings.api_idle_sec, settings.api_receive_sec, connections, min(per_address, connections))


def _most_files() -> int | None:
    """Returns how many files this process may open; None: there is no limit, or no way to ask for it (Windows)."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if files == resource.RLIM_INFINITY else files


class Connections:
    """The open connections of one server. For its event loop only."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._all: dict[Connection, str] = {}
        self._by_address: defaultdict[str, dict[Connection, str]] = defaultdict(dict)

    def admit(self, connection: Connection, address: str) -> bool:
        """Adds a new connection. Returns False if only health checks may be served on it."""
        network = network_of(address)
        has_room = len(self._by_address[network]) < self.bounds.per_address or self._drop_one(self._by_address[network])
        if has_room and len(self._all) >= self.bounds.connections:
            has_room = self._drop_one(self._all)
        self._all[connection] = network
        self._by_address[network][connection] = network
        if not has_room and len(self._all) > self.bounds.connections + _IN_RESERVE:
            connection.drop()
        return has_room

    def forget(self, connection: Connection) -> None:
        """Removes a connection that has ended."""
        network = self._all.pop(connection, None)
        if network is not None:
            neighbours = self._by_address[network]
            neighbours.pop(connection, None)
            if not neighbours:
                del self._by_address[network]

    def _drop_one(self, among: dict[Connection, str]) -> bool:
        """Drops the oldest connection that waits for its client. Busy ones are examined last the next time."""
        busy: list[Connection] = []
        for connection in among:
            if connection.waits_for_client:
                self.forget(connection)  # now: `connection_lost` runs only in the loop's next iteration
                connection.drop()
                return True
            busy.append(connection)
            if len(busy) >= _MOST_EXAMINED:
                break
        for connection in busy:
            among[connection] = among.pop(connection)
        return False


def network_of(address: str) -> str:
    """Returns the network that counts as one client: an IPv4 address, or the /64 network of an IPv6 address.

    An attacker usually controls a whole /64. The result does not depend on how the address is written.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address  # of a Unix socket
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
    return str(found)

"""How many connections a server holds, and for how long it waits on each.

At a bound the server does not turn the newest away. It drops the oldest connection that waits for its client: one that
is idle, half-sent, or whose client does not read its answer. So held connections never keep a health check out.
"""

from __future__ import annotations

import resource
from collections import defaultdict
from ipaddress import IPv6Address, ip_address
from typing import Final, Protocol

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.settings import Settings

_OTHER_FILES: Final = 64
"""Files that a daemon has open beside connections: the database, pipes to its workers, logs."""

_FEWEST: Final = 16
_MOST: Final = 8192

_IN_RESERVE: Final = 16
"""Connections beyond the bound, while every other is being answered: health is served there, and nothing else."""

_LOOKED_AT: Final = 256
"""Connections that are looked at for one to drop."""


class Bounds(msgspec.Struct, frozen=True):
    """What a server allows its clients. Durations are seconds."""

    idle: float = 5.0
    """Between two requests."""
    receive: float = 10.0
    """For a head, for a body, and for a client that has stopped reading its answer."""
    connections: int = _FEWEST
    per_address: int = _FEWEST

    @property
    def backlog(self) -> int:
        """Connections that wait to be accepted. They are accepted all at once, so they count as open files too."""
        return max(_FEWEST, min(128, self.connections // 2))


class Connection(Protocol):
    """A connection, as far as its number is concerned."""

    @property
    def waits_for_client(self) -> bool:
        """Whether it is the client's turn: nothing is lost on the server's side if the connection is dropped."""

    def drop(self) -> None:
        """End it now."""


def bounds_of(settings: Settings) -> Bounds:
    """The bounds that settings ask for; what they leave open follows from how many files the process may open."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = _MOST * 4 if files == resource.RLIM_INFINITY else files - _OTHER_FILES
    connections = settings.api_connections or max(_FEWEST, min(_MOST, room // 2))
    if settings.api_connections is not None and connections > room:
        raise InvalidSetting(
            f"api_connections cannot be {connections}: this process may open {files} files",
            hint=f"raise the limit (ulimit -n), or set at most {max(room, 1)}",
        )
    per_address = settings.api_connections_per_address or max(_FEWEST, connections // 2)
    return Bounds(settings.api_idle_sec, settings.api_receive_sec, connections, min(per_address, connections))


class Connections:
    """The open connections of one server. Used from its event loop alone."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._all: dict[Connection, str] = {}
        self._by_address: defaultdict[str, dict[Connection, str]] = defaultdict(dict)

    def admit(self, connection: Connection, address: str) -> bool:
        """Count a new connection. False: there is room for it only to ask for health."""
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
        """A connection has ended."""
        network = self._all.pop(connection, None)
        if network is not None:
            neighbours = self._by_address[network]
            neighbours.pop(connection, None)
            if not neighbours:
                del self._by_address[network]

    def _drop_one(self, among: dict[Connection, str]) -> bool:
        """Drop the oldest that waits for its client. Those that are busy are looked at last the next time."""
        busy: list[Connection] = []
        for connection in among:
            if connection.waits_for_client:
                self.forget(connection)  # now: its end is noticed only when the event loop turns
                connection.drop()
                return True
            busy.append(connection)
            if len(busy) >= _LOOKED_AT:
                break
        for connection in busy:
            among[connection] = among.pop(connection)
        return False


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 of an IPv6 address, of which an attacker has all.

    However it is written, so that `2001:db8::1` is in the same network as `2001:db8:0:0:1::1`.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address  # a Unix socket has none
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or IPv6Address(int(found) >> 64 << 64))
    return str(found)

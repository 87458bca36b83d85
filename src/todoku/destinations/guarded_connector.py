"""Connections that pass the address guard, which checks an address after the DNS lookup and when a socket is created.

The socket connects to the checked address; the Host header and TLS use the name.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import lru_cache, partial
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from todoku.core.address_guard import Guard

_LOOKUPS: Final = 16
"""The most concurrent DNS lookups. They have their own threads, so that slow ones do not block other work."""

_IDLE: Final = 3.0
"""Seconds that an idle connection stays open. Many receivers close theirs after five, and a request that is sent at
that moment fails."""

_DNS_TTL: Final = 10

_lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="todoku-dns")
_host: ContextVar[str] = ContextVar("todoku_host")


LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host (and port)."""


class Forbidden(OSError):
    """The guard refuses connections to this address."""


def set_host(host: str) -> None:
    """Sets the host that this task connects to from now on. The guard checks both the name and the address."""
    _host.set(host)


async def look_up_host(host: str, port: int) -> list[str]:
    """Returns the addresses of a name, as the system's resolver finds them."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return [str(address[0]) for *_, address in found]


class GuardedResolver(AbstractResolver):
    """Resolves names. A name with any forbidden address is refused altogether."""

    def __init__(self, guard: Guard, look_up: LookUp) -> None:
        self._guard = guard
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Returns every address of a name; raises Forbidden if one of them is."""
        addresses = list(dict.fromkeys(await self._look_up(host, port)))
        for address in addresses:
            refuse(self._guard, address, host)
        kinds = {address: socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses}
        found = [
            ResolveResult(hostname=host, host=address, port=port, family=kind, proto=0, flags=socket.AI_NUMERICHOST)
            for address, kind in kinds.items()
            if family in (socket.AF_UNSPEC, kind)
        ]
        if not found:
            raise OSError(f"{host} has no address")
        return found

    async def close(self) -> None:
        """Does nothing: a resolver holds no resources."""


def is_address(host: str) -> bool:
    """Whether a host is an address and not a name."""
    return ":" in host or host.replace(".", "").isdigit()


def refuse(guard: Guard, address: str, host: str) -> None:
    """Raises Forbidden if the guard refuses connections to the address for this host."""
    if (why := _why_refused(guard, address, host)) is not None:
        raise Forbidden(why)


@lru_cache(maxsize=4096)
def _why_refused(guard: Guard, address: str, host: str) -> str | None:
    return guard.refuses(address, host)


def create_connector(guard: Guard, look_up: LookUp = look_up_host) -> aiohttp.TCPConnector:
    """Creates the pooled connections of this event loop, without a limit on their number."""

    def guarded_socket(info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, address = info
        refuse(guard, str(address[0]), _host.get())
        return socket.socket(family=family, type=kind, proto=proto)

    return aiohttp.TCPConnector(
        resolver=GuardedResolver(guard, look_up), socket_factory=guarded_socket, ttl_dns_cache=_DNS_TTL,
        keepalive_timeout=_IDLE, limit=0, ssl=ssl.create_default_context(),
    )  # fmt: skip

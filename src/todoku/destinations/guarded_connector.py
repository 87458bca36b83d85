"""Connections that lead only where they may: an address is judged when a name is looked up, and when a socket is made.

The socket goes to the judged address; Host and TLS are those of the name.
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
"""Names looked up at once: one that is slow to fail holds one thread, and never those of anybody else."""

_IDLE: Final = 3.0
"""Seconds an idle connection is kept. Many receivers close theirs after five, and a request that meets that is lost."""

_DNS_TTL: Final = 10

_lookups = ThreadPoolExecutor(_LOOKUPS, thread_name_prefix="todoku-dns")
_host: ContextVar[str] = ContextVar("todoku_host")


LookUp = Callable[[str, int], Awaitable[Sequence[str]]]
"""Gives the addresses of a host (and port)."""


class Forbidden(OSError):
    """No connection is made to this address."""


def on_behalf_of(host: str) -> None:
    """What this task connects to from now on is for this host: the guard is asked about both, name and address."""
    _host.set(host)


async def looked_up(host: str, port: int) -> list[str]:
    """The addresses of a name, as this machine knows them."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_lookups, partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM))
    return [str(address[0]) for *_, address in found]


class GuardedResolver(AbstractResolver):
    """Looks names up; one that leads to any forbidden address leads nowhere."""

    def __init__(self, guard: Guard, look_up: LookUp) -> None:
        self._guard = guard
        self._look_up = look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Every address of a name. Forbidden: one of them is."""
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
        """Nothing is open."""


def is_address(host: str) -> bool:
    """Whether a host is an address, and no name."""
    return ":" in host or host.replace(".", "").isdigit()


def refuse(guard: Guard, address: str, host: str) -> None:
    """Forbidden, if no connection to the address may be made on behalf of the host."""
    if (why := _judged(guard, address, host)) is not None:
        raise Forbidden(why)


@lru_cache(maxsize=4096)
def _judged(guard: Guard, address: str, host: str) -> str | None:
    return guard.refuses(address, host)  # which depends on nothing else


def connector(guard: Guard, look_up: LookUp = looked_up) -> aiohttp.TCPConnector:
    """Pooled connections of this event loop, as many as are wanted at once."""

    def judged(info: tuple[Any, ...]) -> socket.socket:
        family, kind, proto, _, address = info
        refuse(guard, str(address[0]), _host.get())
        return socket.socket(family=family, type=kind, proto=proto)

    return aiohttp.TCPConnector(
        resolver=GuardedResolver(guard, look_up), socket_factory=judged, ttl_dns_cache=_DNS_TTL,
        keepalive_timeout=_IDLE, limit=0, ssl=ssl.create_default_context(),
    )  # fmt: skip

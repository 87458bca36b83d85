"""Finds the caller's address behind proxies: the part of `X-Forwarded-For` that trusted proxies wrote."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting


class Proxies(msgspec.Struct, frozen=True):
    """The networks of trusted proxies."""

    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    def caller(self, peer: str, forwarded: Iterable[str]) -> str:
        """Returns the caller's address, given that of the connection and the values of `X-Forwarded-For`.

        Each proxy appends the address that its request came from. The list is read from its end, as long as the proxy
        that wrote an entry is trusted, so that entries forged by the caller are never reached.
        """
        entries = [entry for value in forwarded for entry in value.split(",")] if self.networks else []
        found = peer
        for entry in reversed(entries):
            if not self._trusts(found) or (before := _address(entry)) is None:
                break
            found = str(before)
        return found

    def scheme(self, peer: str, forwarded: Iterable[str], scheme: str) -> str:
        """Returns the scheme the caller used: what a trusted proxy says in `X-Forwarded-Proto`, else that of the
        connection. Only the last value counts, which the proxy itself wrote.
        """
        entries = [entry.strip().lower() for value in forwarded for entry in value.split(",")]
        return entries[-1] if entries and entries[-1] in ("http", "https") and self._trusts(peer) else scheme

    def _trusts(self, text: str) -> bool:
        found = _address(text)
        return found is not None and any(found in network for network in self.networks)


NO_PROXIES: Final = Proxies()


def proxies(networks: Iterable[str]) -> Proxies:
    """Parses the networks and addresses of trusted proxies; raises InvalidSetting."""
    return Proxies(tuple(map(_network, networks)))


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise InvalidSetting(
            f"trusted_proxies cannot be {text!r}: {error}", hint="addresses and networks: 10.0.0.5,10.1.0.0/16"
        ) from None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    """Parses an entry, to which some proxies add a port: 192.0.2.1:4711, [2001:db8::1]:4711."""
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found

"""Where requests may go. `check_url` reads a URL when it is published; a `Guard` judges the address at each connection.

A name says nothing: what it resolves to may change between the look and the connection. So the address that is judged
is the one that is connected to, for each attempt anew, and no redirect is followed. The lists are explicit: what the
standard library calls global includes tunnels to anywhere.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import quote

from todoku.core.errors import InvalidMessage, InvalidSetting

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

MAX_URL: Final = 4096
_URL: Final = re.compile(r"(https?)://([^/?#]*)([^#]*)(?:#.*)?", re.ASCII | re.IGNORECASE | re.DOTALL)
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]*)(:[0-9]{1,5})?", re.ASCII)
_UNSAFE: Final = re.compile(
    r"[\x00-\x20\x7f-\xa0\\\u1680\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff\ud800-\udfff]"
)
"""Controls, every kind of space, what is invisible, and the backslash that some take for a slash."""

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_QUAD: Final = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}", re.ASCII)
_AMBIGUOUS: Final = "ßς\u200c\u200d"
"""Two standards spell names with these in two ways, and the names belong to two people."""

_ALWAYS: Final = (
    ("169.254.0.0/16", "link-local, where clouds keep their metadata"),
    ("fe80::/10", "link-local"),
    ("100.100.100.200/32", "a cloud's metadata"),
    ("168.63.129.16/32", "a cloud's metadata"),
    ("192.0.0.192/32", "a cloud's metadata"),
    ("fd00:ec2::/32", "a cloud's metadata"),
    ("fd20:ce::254/128", "a cloud's metadata"),
    ("0.0.0.0/8", "this host"),
    ("::/128", "this host"),
    ("224.0.0.0/4", "multicast"),
    ("ff00::/8", "multicast"),
    ("255.255.255.255/32", "broadcast"),
)
"""Refused whatever is allowed: no receiver is there."""

_PRIVATE: Final = (
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared by a provider's customers"),
    ("127.0.0.0/8", "loopback"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "a 6to4 relay"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("240.0.0.0/4", "reserved"),
    ("::1/128", "loopback"),
    ("::/96", "an IPv4 address in disguise"),
    ("64:ff9b::/96", "an IPv4 address behind NAT64"),
    ("64:ff9b:1::/48", "an IPv4 address behind NAT64"),
    ("100::/64", "discarded"),
    ("2001::/23", "reserved or a tunnel"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "an IPv4 address behind 6to4"),
    ("3fff::/20", "for documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "private"),
    ("fec0::/10", "private"),
)
"""Refused unless an allowed network or host says otherwise."""


# ------------------------------------------------------------------------------------------------ URLs


def check_url(text: str, *, https_only: bool = False, what: str = "url") -> str:
    """The URL in the spelling in which it is sent and signed, or InvalidMessage naming `what`.

    http or https, a host by its name or its address in the usual form, an optional port, no user and password. Scheme
    and host become lower case ASCII, the fragment is dropped because nobody sends it, the rest stays as it is.
    """
    if len(text) > MAX_URL:
        raise InvalidMessage(f"{what} has {len(text)} characters", hint=f"{MAX_URL} are allowed")
    if found := _UNSAFE.search(text):
        raise _wrong(what, text, f"it holds {found[0]!r}", "percent-encode what is no part of a URL")
    parts = _URL.fullmatch(text)
    if parts is None:
        raise _wrong(what, text, "it is no URL", "http://host/path or https://host/path")
    scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
    if https_only and scheme != "https":
        raise _wrong(what, text, "it is not https", "only https is allowed here")
    if "@" in authority:  # with a password, perhaps: the URL is not shown
        raise InvalidMessage(f"{what} names a user", hint="send an Authorization header instead")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise _wrong(what, text, "its host or port cannot be read", "https://host:8443/path, an IPv6 address in [ ]")
    host = _host(found[1], text, what)
    port = _port(found[2], text, what)
    return f"{scheme}://{host}{port}{quote(rest, safe=_SAFE)}"


_SAFE: Final = "".join(map(chr, range(0x21, 0x7F)))
"""What is ASCII stays as it was written; only the rest is percent-encoded."""


def _port(text: str | None, url: str, what: str) -> str:
    if text is None:
        return ""
    if not 0 < int(text[1:]) < 65_536:
        raise _wrong(what, url, "it has no such port", "a port is 1 … 65535")
    return f":{int(text[1:])}"


def _host(given: str, url: str, what: str) -> str:
    if given.startswith("["):
        return f"[{_ipv6(given[1:-1], url, what)}]"
    name = given.lower() if given.isascii() else _ascii(given, url, what)
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        if not _QUAD.fullmatch(given) or any(int(label) > 255 for label in labels):
            raise _wrong(what, url, "its host is a number", "an IPv4 address is written with four decimal numbers")
        return name
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        hint = "a host is letters, digits and hyphens between dots, with no dot at its end"
        raise _wrong(what, url, f"its host cannot be {name[:64]!r}", hint)
    return name


def _ipv6(text: str, url: str, what: str) -> str:
    try:
        found = IPv6Address(text)
    except ValueError:
        raise _wrong(what, url, "its host is no IPv6 address", "[2606:4700::1111]") from None
    if found.scope_id is not None:
        raise _wrong(what, url, "its host has a zone", "an address with a zone means something on one machine only")
    return str(found)


def _ascii(name: str, url: str, what: str) -> str:
    """An international name as the network knows it: xn--…"""
    hint = "write its host in the xn-- form"
    if any(character in name for character in _AMBIGUOUS):
        raise _wrong(what, url, "its host can be spelled in two ways", hint)
    try:
        return name.encode("idna").decode().lower()
    except UnicodeError:
        raise _wrong(what, url, "its host is no name", hint) from None


def _wrong(what: str, url: str, why: str, hint: str) -> InvalidMessage:
    return InvalidMessage(f"{what} cannot be {url[:128]!r}: {why}", hint=hint)


# ------------------------------------------------------------------------------------------------ addresses


class Guard:
    """Which addresses may be connected to: the internet's, and those of `allow` (networks such as `10.1.0.0/16`, names
    such as `hooks.internal` or `*.internal`). `loopback` is for development: this machine may be called too.
    """

    __slots__ = ("_hosts", "_loopback", "_networks")

    def __init__(self, allow: tuple[str, ...] = (), loopback: bool = False) -> None:
        entries = tuple(entry.strip().lower() for entry in allow)
        networks = {entry: _network(entry) for entry in entries}
        self._networks = tuple(network for network in networks.values() if network is not None)
        self._hosts = frozenset(entry for entry, network in networks.items() if network is None)
        self._loopback = loopback

    def refuses(self, address: str, host: str) -> str | None:
        """Why no connection to `address` may be made on behalf of `host`; None: it may."""
        try:
            found = _plain(address)
        except ValueError:
            return f"{address!r} is no address"
        for inner in (found, *_inside(found)):
            if why := _listed(inner, _NEVER):
                return f"{address} is {why}"
        if self._loopback and found.is_loopback:
            return None
        if self._allows(found, host.lower()):
            return None
        why = _listed(found, _CLOSED) or (None if found.version == 4 or found in _UNICAST else "reserved")
        return None if why is None else f"{address} is {why}"

    def _allows(self, address: Address, host: str) -> bool:
        if host in self._hosts or any(address in network for network in self._networks):
            return True
        _, *parents = host.split(".")
        return any(f"*.{'.'.join(parents[at:])}" in self._hosts for at in range(len(parents)))


def _network(entry: str) -> Network | None:
    """The network that an entry of the setting means; None: it is the name of a host. InvalidSetting: neither."""
    try:
        return ip_network(entry)
    except ValueError:
        labels = entry.removeprefix("*.").split(".")
        if _NUMBER.fullmatch(labels[-1]) or not all(map(_LABEL.fullmatch, labels)):
            hint = "networks (10.1.0.0/16), addresses and host names (hooks.internal, *.internal), separated by commas"
            raise InvalidSetting(f"http_allow cannot hold {entry!r}", hint=hint) from None
        return None


def _plain(address: str) -> Address:
    """The address without its zone, and as IPv4 if that is all there is to it."""
    found = ip_address(address.partition("%")[0])
    return found if isinstance(found, IPv4Address) else found.ipv4_mapped or found


def _inside(address: Address) -> tuple[Address, ...]:
    """The IPv4 addresses that an IPv6 address leads to: by NAT64, by 6to4, by Teredo, by plain embedding."""
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    if (number > 1 and number >> 32 in _EMBEDDING) or number >> 80 == _NAT64_LOCAL:  # :: and ::1 are their own
        return (IPv4Address(number & 0xFFFFFFFF),)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    return address.teredo or ()


def _listed(address: Address, networks: tuple[tuple[Network, str], ...]) -> str | None:
    return next((what for network, what in networks if address in network), None)


_NEVER: Final = tuple((ip_network(network), what) for network, what in _ALWAYS)
_CLOSED: Final = tuple((ip_network(network), what) for network, what in _PRIVATE)
_UNICAST: Final = IPv6Network("2000::/3")
_EMBEDDING: Final = tuple(int(IPv6Address(prefix)) >> 32 for prefix in ("::", "::ffff:0:0:0", "64:ff9b::"))
_NAT64_LOCAL: Final = int(IPv6Address("64:ff9b:1::")) >> 80

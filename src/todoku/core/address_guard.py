"""Where requests may go: `check_url` checks a URL when it is published, a `Guard` the IP address of each connection.

A host name cannot be checked in advance, because it may resolve to another address later. So the guard checks the
address that the worker is about to connect to, on every attempt, and the worker follows no redirect. The networks are
listed here because `is_global` of the standard library is also true for tunnels that lead to private addresses.
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
"""Control characters, every kind of space, invisible characters, and the backslash, which some clients read as a
slash."""

_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER: Final = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_QUAD: Final = re.compile(r"(0|[1-9][0-9]{0,2})(\.(0|[1-9][0-9]{0,2})){3}", re.ASCII)
_AMBIGUOUS: Final = "ßς\u200c\u200d"
"""IDNA 2003 and IDNA 2008 encode these differently, so that one spelling can name two hosts of different owners."""

_ALWAYS: Final = (
    ("169.254.0.0/16", "link-local, which includes cloud metadata services"),
    ("fe80::/10", "link-local"),
    ("100.100.100.200/32", "a cloud metadata service"),
    ("168.63.129.16/32", "a cloud metadata service"),
    ("192.0.0.192/32", "a cloud metadata service"),
    ("fd00:ec2::/32", "a cloud metadata service"),
    ("fd20:ce::254/128", "a cloud metadata service"),
    ("0.0.0.0/8", "this host"),
    ("::/128", "this host"),
    ("224.0.0.0/4", "multicast"),
    ("ff00::/8", "multicast"),
    ("255.255.255.255/32", "broadcast"),
)
"""Refused even if a setting allows them: no receiver can have such an address."""

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
    ("::/96", "an IPv4 address written as IPv6"),
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
"""Refused unless the setting `http_allow` lists the network or the host."""


# ------------------------------------------------------------------------------------------------ URLs


def check_url(text: str, *, https_only: bool = False, what: str = "url") -> str:
    """Returns the URL as it is sent and signed; raises InvalidMessage, which names it as `what`.

    Accepted: http or https, a host name or an IP address in its usual form, an optional port, no user or password.
    Scheme and host become lower-case ASCII, the fragment is dropped because clients never send it, and the rest stays
    as it is, with non-ASCII characters percent-encoded.
    """
    if len(text) > MAX_URL:
        raise InvalidMessage(f"{what} has {len(text)} characters", hint=f"{MAX_URL} are allowed")
    if found := _UNSAFE.search(text):
        raise _invalid(what, text, f"it contains {found[0]!r}", "percent-encode characters that a URL cannot contain")
    parts = _URL.fullmatch(text)
    if parts is None:
        raise _invalid(what, text, "it is not a URL", "http://host/path or https://host/path")
    scheme, authority, rest = parts[1].lower(), parts[2], parts[3]
    if https_only and scheme != "https":
        raise _invalid(what, text, "it is not https", "only https is allowed here")
    if "@" in authority:  # the URL may contain a password, so the error does not quote it
        raise InvalidMessage(f"{what} contains a user name", hint="send an Authorization header instead")
    found = _AUTHORITY.fullmatch(authority)
    if found is None:
        raise _invalid(what, text, "its host or port cannot be read", "https://host:8443/path, an IPv6 address in [ ]")
    host = _host(found[1], text, what)
    port = _port(found[2], text, what)
    return f"{scheme}://{host}{port}{quote(rest, safe=_SAFE)}"


_SAFE: Final = "".join(map(chr, range(0x21, 0x7F)))
"""Printable ASCII stays as it was written; only other characters are percent-encoded."""


def _port(text: str | None, url: str, what: str) -> str:
    if text is None:
        return ""
    if not 0 < int(text[1:]) < 65_536:
        raise _invalid(what, url, "its port is out of range", "a port is 1 to 65535")
    return f":{int(text[1:])}"


def _host(given: str, url: str, what: str) -> str:
    if given.startswith("["):
        return f"[{_ipv6(given[1:-1], url, what)}]"
    name = given.lower() if given.isascii() else _ascii(given, url, what)
    labels = name.split(".")
    if _NUMBER.fullmatch(labels[-1]):
        if not _QUAD.fullmatch(given) or any(int(label) > 255 for label in labels):
            raise _invalid(what, url, "its host is a number", "an IPv4 address is written with four decimal numbers")
        return name
    if len(name) > 253 or not all(map(_LABEL.fullmatch, labels)):
        hint = "a host is letters, digits and hyphens between dots, with no dot at its end"
        raise _invalid(what, url, f"its host cannot be {name[:64]!r}", hint)
    return name


def _ipv6(text: str, url: str, what: str) -> str:
    try:
        found = IPv6Address(text)
    except ValueError:
        raise _invalid(what, url, "its host is not an IPv6 address", "for example [2606:4700::1111]") from None
    if found.scope_id is not None:
        raise _invalid(what, url, "its host has a zone", "leave out the zone: it is valid on one machine only")
    return str(found)


def _ascii(name: str, url: str, what: str) -> str:
    """Returns an international host name in its ASCII form, `xn--…`."""
    hint = "write its host in the xn-- form"
    if any(character in name for character in _AMBIGUOUS):
        raise _invalid(what, url, "its host can be spelled in two ways", hint)
    try:
        return name.encode("idna").decode().lower()
    except UnicodeError:
        raise _invalid(what, url, "its host is not a host name", hint) from None


def _invalid(what: str, url: str, why: str, hint: str) -> InvalidMessage:
    return InvalidMessage(f"{what} cannot be {url[:128]!r}: {why}", hint=hint)


# ------------------------------------------------------------------------------------------------ addresses


class Guard:
    """Decides which addresses a worker may connect to: public ones, and those listed in `allow`.

    `allow` has networks such as `10.1.0.0/16`, and host names such as `hooks.internal` or `*.internal`. `loopback`
    allows connections to this machine, for development.
    """

    __slots__ = ("_hosts", "_loopback", "_networks")

    def __init__(self, allow: tuple[str, ...] = (), loopback: bool = False) -> None:
        entries = tuple(entry.strip().lower() for entry in allow)
        networks = {entry: _network(entry) for entry in entries}
        self._networks = tuple(network for network in networks.values() if network is not None)
        self._hosts = frozenset(entry for entry, network in networks.items() if network is None)
        self._loopback = loopback

    def refuses(self, address: str, host: str) -> str | None:
        """Returns why the worker may not connect to `address` for a URL with the host `host`; None: it may.

        If a setting can allow it, the text says which.
        """
        try:
            found = _parse(address)
        except ValueError:
            return f"{address!r} is not an IP address"
        for inner in (found, *_embedded(found)):
            if why := _find_network(inner, _NEVER):
                return f"{address} is {why}"
        if self._loopback and found.is_loopback:
            return None
        if self._allows(found, host.lower()):
            return None
        why = _find_network(found, _CLOSED) or (None if found.version == 4 or found in _UNICAST else "reserved")
        return None if why is None else f"{address} is {why}; {_allowed_by(found, host)}"

    def _allows(self, address: Address, host: str) -> bool:
        if host in self._hosts or any(address in network for network in self._networks):
            return True
        _, *parents = host.split(".")
        return any(f"*.{'.'.join(parents[at:])}" in self._hosts for at in range(len(parents)))


def _allowed_by(address: Address, host: str) -> str:
    if address.is_loopback:
        return "for development, TODOKU_HTTP_LOOPBACK=true allows it"
    name = str(address) if ":" in host or _NUMBER.fullmatch(host.rpartition(".")[2]) else host.lower()
    return f"TODOKU_HTTP_ALLOW={name} allows it"


def _network(entry: str) -> Network | None:
    """Returns the network of an entry of `http_allow`; None: the entry is a host name. Raises InvalidSetting if it is
    neither."""
    try:
        return ip_network(entry)
    except ValueError:
        labels = entry.removeprefix("*.").split(".")
        if _NUMBER.fullmatch(labels[-1]) or not all(map(_LABEL.fullmatch, labels)):
            hint = "networks (10.1.0.0/16), addresses and host names (hooks.internal, *.internal), separated by commas"
            raise InvalidSetting(f"http_allow cannot contain {entry!r}", hint=hint) from None
        return None


def _parse(address: str) -> Address:
    """Parses an address, without its zone; an IPv4-mapped IPv6 address becomes the IPv4 address."""
    found = ip_address(address.partition("%")[0])
    return found if isinstance(found, IPv4Address) else found.ipv4_mapped or found


def _embedded(address: Address) -> tuple[Address, ...]:
    """Returns the IPv4 addresses embedded in an IPv6 address: by NAT64, 6to4, Teredo, or IPv4 compatibility."""
    if isinstance(address, IPv4Address):
        return ()
    number = int(address)
    if (number > 1 and number >> 32 in _EMBEDDING) or number >> 80 == _NAT64_LOCAL:  # :: and ::1 embed none
        return (IPv4Address(number & 0xFFFFFFFF),)
    if address.sixtofour is not None:
        return (address.sixtofour,)
    return address.teredo or ()


def _find_network(address: Address, networks: tuple[tuple[Network, str], ...]) -> str | None:
    return next((what for network, what in networks if address in network), None)


_NEVER: Final = tuple((ip_network(network), what) for network, what in _ALWAYS)
_CLOSED: Final = tuple((ip_network(network), what) for network, what in _PRIVATE)
_UNICAST: Final = IPv6Network("2000::/3")
_EMBEDDING: Final = tuple(int(IPv6Address(prefix)) >> 32 for prefix in ("::", "::ffff:0:0:0", "64:ff9b::"))
_NAT64_LOCAL: Final = int(IPv6Address("64:ff9b:1::")) >> 80

"""Parses the destination that is part of a request's path: `/v2/publish/https://example.com/hook?of=7`.

It is not escaped there: its slashes and its query are part of the path. Some proxies merge the slashes, and some
clients escape them.
"""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec

from todoku.core.address_guard import MAX_URL, check_url
from todoku.core.errors import InvalidMessage

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,200}", re.ASCII)
NAME_HINT: Final = "letters, digits and _ . -, at most 200 of them"

TOKEN: Final = "qstash_token"  # noqa: S105 - the name of a parameter
OPTION: Final = "upstash-"

_LONGEST: Final = 3 * MAX_URL
"""Characters of a raw destination: percent-encoding takes three characters for one."""

_SCHEME: Final = re.compile(r"(https?):/{1,2}(?=[^/])", re.IGNORECASE | re.ASCII)
_ESCAPED: Final = re.compile(r"https?%3a", re.IGNORECASE | re.ASCII)
_OTHER_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE | re.ASCII)


class Group(msgspec.Struct, frozen=True):
    """A URL group: a request to it is sent to each of its endpoints."""

    name: str


class Url(msgspec.Struct, frozen=True):
    """One URL, as it is sent and signed."""

    url: str


Address = Url | Group


def address(raw: str, query: str = "") -> Address:
    """Parses `raw`; a URL gets the parameters of `query` that are meant for the receiver.

    Raises InvalidMessage if `raw` is neither a URL nor the name of a URL group.
    """
    if len(raw) > _LONGEST:
        raise InvalidMessage(f"the destination has {len(raw)} characters", hint=f"{_LONGEST} are allowed")
    if _ESCAPED.match(raw):
        raw = unquote(raw)
    scheme = _SCHEME.match(raw)
    if scheme is None:
        return _group(raw)
    url = f"{scheme[1].lower()}://{raw[scheme.end() :]}"
    if rest := own_query(query):
        url += ("&" if "?" in url else "?") + rest
    return Url(check_url(url, what="destination"))


def own_query(query: str) -> str:
    """Returns the query without the parameters meant for todoku: the token and the `upstash-` options."""
    return "&".join(part for part in query.split("&") if part and not _is_ours(part))


def _is_ours(part: str) -> bool:
    key = unquote(part.split("=", 1)[0]).lower()
    return key == TOKEN or key.startswith(OPTION)


def _group(raw: str) -> Group:
    name = unquote(raw)
    if NAME.fullmatch(name):
        return Group(name)
    if not name:
        hint = "end the path with a URL, …/https://example.com/hook, or with the name of a URL group"
        raise InvalidMessage("there is no destination", hint=hint)
    if name.startswith("api/"):
        raise InvalidMessage(f"destination cannot be {name[:128]!r}", hint="publish to the URL of the service instead")
    if _OTHER_SCHEME.match(name):
        raise InvalidMessage(f"destination cannot be {name[:128]!r}", hint="use an http:// or https:// URL")
    hint = f"a URL begins with http:// or https://; the name of a URL group is {NAME_HINT}"
    raise InvalidMessage(f"destination cannot be {name[:128]!r}", hint=hint)

"""Parses requests: the raw path, the options, and the filters of the query.

Requests that change something are refused with an unknown parameter: a misspelled filter would match everything.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final
from urllib.parse import parse_qsl, unquote

from starlette.requests import Request

from todoku.api.auth import bearer_of, caller_of
from todoku.api.body import refuse_body
from todoku.api.problem import Refused
from todoku.core.address import OPTION, TOKEN
from todoku.core.http_request import decode_header_value
from todoku.core.upstash_headers import collect_fields
from todoku.store.audit import Signed

LARGEST: Final = 1 << 20
"""Largest size in bytes of a JSON body with queues, groups or ids."""

MOST_COUNT: Final = 10**9
_LATEST_MS: Final = 253_402_300_799_000
_PAGING: Final = ("count", "cursor")


def raw_rest(request: Request, before: str) -> str:
    """Returns the path after `before` as received: nothing is decoded, no slashes are merged."""
    raw = decode_header_value(request.scope["raw_path"])
    return raw.split(before, 1)[1] if before in raw else ""


def raw_query(request: Request) -> str:
    """Returns the query as received."""
    return decode_header_value(request.scope["query_string"])


def option_fields(request: Request) -> dict[str, str]:
    """Returns headers and options of the query by lower-case name; headers take precedence."""
    headers = ((decode_header_value(name), decode_header_value(value)) for name, value in request.scope["headers"])
    return collect_fields(headers, parse_qsl(raw_query(request), keep_blank_values=True))


def caller_ip(request: Request) -> str | None:
    """Returns the address of the caller, if known."""
    return caller_of(request)


def signed(request: Request, act: str) -> Signed:
    """Returns the token's name and the action, for the audit."""
    return Signed(bearer_of(request).name, f"{act} over HTTP")


def segment(request: Request, name: str) -> str:
    """Returns a parameter of the path."""
    return str(request.path_params[name])


def refuse_query_and_body(request: Request) -> None:
    """Raises Refused (422) if the request has a query or a body.

    Its path alone selects the resource, so more is a mistake: `DELETE /v2/topics/{name}` with a list of endpoints in
    its body would delete the whole group.
    """
    Query(request, ())
    refuse_body(request)


class Query:
    """The query parameters of a request.

    `known`: any other parameter is refused, including options of a publish (`upstash-…`), and so is an empty one.
    """

    def __init__(self, request: Request, known: Collection[str] | None = None) -> None:
        self._values: dict[str, list[str]] = {}
        raw = raw_query(request)
        if known is not None and raw and "" in raw.split("&"):
            raise Refused(
                422, "the query has an empty part", hint="remove the surplus `&`, or add the missing parameter"
            )
        for name, value in parse_qsl(raw, keep_blank_values=True):
            if name == TOKEN or (known is None and _is_option(name.lower())):
                continue
            if "\0" in value:
                raise Refused(422, f"{name[:64]} contains a NUL character", hint="remove it")
            self._values.setdefault(name, []).append(value)
        if known is not None:
            self._check(known)

    def _check(self, known: Collection[str]) -> None:
        for name, values in self._values.items():
            if name not in known:
                hint = f"known are {', '.join(sorted(known))}" if known else "omit it: the path selects the resource"
                raise Refused(422, f"there is no parameter {name[:64]!r} here", hint=hint)
            if not all(values):
                raise Refused(422, f"{name} is empty", hint="omit it, or give a value")

    def __bool__(self) -> bool:
        """Whether there is any parameter."""
        return bool(self._values)

    @property
    def filters(self) -> bool:
        """Whether there is any parameter besides those of paging."""
        return any(name not in _PAGING for name in self._values)

    def many(self, *names: str) -> tuple[str, ...]:
        """Returns the distinct values of all these parameters."""
        found = (value for name in names for value in self._values.get(name, ()) if value)
        return tuple(dict.fromkeys(found))

    def one(self, name: str) -> str | None:
        """Returns the value of a parameter; None if it is missing."""
        values = self.many(name)
        if len(values) > 1:
            raise Refused(422, f"{name} is given twice", hint="give it once")
        return values[0] if values else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """Returns all values of a parameter as whole numbers."""
        return tuple(_number(name, value) for value in self.many(name))

    def number(self, name: str, *, least: int, most: int) -> int | None:
        """Returns a whole number within these bounds; None if it is missing."""
        given = self.one(name)
        if given is None:
            return None
        found = _number(name, given)
        if not least <= found <= most:
            raise Refused(422, f"{name} cannot be {found}", hint=f"use {least} to {most}")
        return found

    def count(self, most: int) -> int:
        """Returns the requested number of items, at most `most`."""
        return min(self.number("count", least=1, most=MOST_COUNT) or most, most)

    def flag(self, name: str) -> bool:
        """Returns true or false; false if it is missing."""
        given = (self.one(name) or "false").lower()
        if given not in ("true", "false"):
            raise Refused(422, f"{name} cannot be {given[:64]!r}", hint="use true or false")
        return given == "true"

    def moment(self, name: str) -> datetime | None:
        """Returns a moment given in milliseconds since 1970; None if it is missing."""
        found = self.number(name, least=0, most=_LATEST_MS)
        return None if found is None else datetime.fromtimestamp(found / 1000, UTC)


def _is_option(name: str) -> bool:
    return name == TOKEN or name.startswith(OPTION)


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 18):
        raise Refused(422, f"{name} cannot be {value[:64]!r}", hint="use a whole number")
    return int(value)


def unescape(text: str) -> str:
    """Decodes the percent-encoding of a part of a raw path."""
    return unquote(text)

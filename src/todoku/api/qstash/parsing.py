"""What a request says: its raw path, its options, and the filters of its query.

A parameter that nobody knows is refused where something is changed: a filter with a slip in it would match everything.
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
from todoku.core.http_headers import decoded
from todoku.core.upstash_headers import fields
from todoku.store.audit import Signed

LARGEST: Final = 1 << 20
"""Bytes of a JSON body that is about queues, groups or ids."""

MOST_COUNTED: Final = 10**9
_LATEST_MS: Final = 253_402_300_799_000
_PAGING: Final = ("count", "cursor")


def raw_rest(request: Request, before: str) -> str:
    """The path behind `before`, as it came: nothing is decoded, no slashes are merged."""
    raw = decoded(request.scope["raw_path"])
    return raw.split(before, 1)[1] if before in raw else ""


def raw_query(request: Request) -> str:
    """The query as it came."""
    return decoded(request.scope["query_string"])


def option_fields(request: Request) -> dict[str, str]:
    """Its headers, and the options of its query below them, by lower-case names."""
    headers = ((decoded(name), decoded(value)) for name, value in request.scope["headers"])
    return fields(headers, parse_qsl(raw_query(request), keep_blank_values=True))


def caller_ip(request: Request) -> str | None:
    """Where it comes from."""
    return caller_of(request)


def signed(request: Request, act: str) -> Signed:
    """Whose token it is, and which request it was: both are audited."""
    return Signed(bearer_of(request).name, f"{act} over HTTP")


def segment(request: Request, name: str) -> str:
    """A part of the path."""
    return str(request.path_params[name])


def refuse_query_and_body(request: Request) -> None:
    """Refused: 422, if a request whose path says everything has a parameter or a body as well.

    The caller meant something else: `DELETE /v2/topics/{name}` with a list of endpoints in its body would
    otherwise delete the whole group.
    """
    Query(request, ())
    refuse_body(request)


class Query:
    """The parameters of a request, read one after the other.

    `known`: any other is refused, an option of a publish (`upstash-…`) too, and so is a blank one.
    """

    def __init__(self, request: Request, known: Collection[str] | None = None) -> None:
        self._values: dict[str, list[str]] = {}
        raw = raw_query(request)
        if known is not None and raw and "" in raw.split("&"):
            raise Refused(422, "the query has an empty part", hint="a parameter that was meant to be there is missing")
        for name, value in parse_qsl(raw, keep_blank_values=True):
            if name == TOKEN or (known is None and _is_option(name.lower())):
                continue
            if "\0" in value:
                raise Refused(422, f"{name[:64]} holds a NUL character", hint="nothing is called so")
            self._values.setdefault(name, []).append(value)
        if known is not None:
            self._check(known)

    def _check(self, known: Collection[str]) -> None:
        for name, values in self._values.items():
            if name not in known:
                hint = f"known are {', '.join(sorted(known))}" if known else "leave it out: the path says what is meant"
                raise Refused(422, f"there is no parameter {name[:64]!r} here", hint=hint)
            if not all(values):
                raise Refused(422, f"{name} is empty", hint="leave it out, or say what it must be")

    def __bool__(self) -> bool:
        """Whether anything was said."""
        return bool(self._values)

    @property
    def filters(self) -> bool:
        """Whether anything was said but which page."""
        return any(name not in _PAGING for name in self._values)

    def many(self, *names: str) -> tuple[str, ...]:
        """All values of these, each once: any of them will do."""
        found = (value for name in names for value in self._values.get(name, ()) if value)
        return tuple(dict.fromkeys(found))

    def one(self, name: str) -> str | None:
        """The value of this; None: it was not said."""
        values = self.many(name)
        if len(values) > 1:
            raise Refused(422, f"{name} is there twice", hint="say it once")
        return values[0] if values else None

    def numbers(self, name: str) -> tuple[int, ...]:
        """All values, as whole numbers."""
        return tuple(_number(name, value) for value in self.many(name))

    def number(self, name: str, *, least: int, most: int) -> int | None:
        """A whole number in these bounds; None: it was not said."""
        given = self.one(name)
        if given is None:
            return None
        found = _number(name, given)
        if not least <= found <= most:
            raise Refused(422, f"{name} cannot be {found}", hint=f"{least} to {most}")
        return found

    def count(self, most: int) -> int:
        """How many are asked for: more than there may be is as many as there may be."""
        return min(self.number("count", least=1, most=MOST_COUNTED) or most, most)

    def flag(self, name: str) -> bool:
        """True or false; false if it was not said."""
        given = (self.one(name) or "false").lower()
        if given not in ("true", "false"):
            raise Refused(422, f"{name} cannot be {given[:64]!r}", hint="true or false")
        return given == "true"

    def moment(self, name: str) -> datetime | None:
        """A moment in milliseconds since 1970; None: it was not said."""
        found = self.number(name, least=0, most=_LATEST_MS)
        return None if found is None else datetime.fromtimestamp(found / 1000, UTC)


def _is_option(name: str) -> bool:
    return name == TOKEN or name.startswith(OPTION)


def _number(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal() and len(value) <= 18):
        raise Refused(422, f"{name} cannot be {value[:64]!r}", hint="a whole number")
    return int(value)


def unescaped(text: str) -> str:
    """A part of a raw path as it was meant."""
    return unquote(text)

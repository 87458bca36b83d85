"""The words of a search: `status:failed topic:order.* payload.order_id:42`, read from text and written as text.

Of a word that is given several times any value matches; several labels, headers, payload fields and error texts must
all match. A word without a name is an id, a key, a label, or a part of an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn
from uuid import UUID

import msgspec

from todoku.core.duration import parse_duration
from todoku.core.errors import InvalidAct, InvalidMessage
from todoku.core.status import Status
from todoku.core.topic_pattern import pattern

MAX_TEXT: Final = 1000
MAX_TERMS: Final = 20
_MAX_DEPTH: Final = 10
_HIGHEST: Final = (1 << 63) - 1

NAMES: Final = {
    "status": "its state: pending, sending, failed, aborted or succeeded",
    "topic": "its topic, or a pattern: order.*",
    "queue": "its queue",
    "destination": "its destination",
    "host": "the host that its request goes to",
    "key": "the key of its message",
    "label": "a label of its message",
    "id": "its number, or the id of its message",
    "reason": "the reason of its last failure",
    "fingerprint": "the fingerprint of its traceback; dead letters only",
    "error": "a part of its error",
    "worker": "the worker that holds it, or that did it",
    "since": "published since: 2h, 3d, 2026-01-31",
    "until": "published before: 2h, 3d, 2026-01-31",
}
"""The names of words that have a value, and what each means."""

PREFIXES: Final = {"payload": "a field of its payload", "header": "a header of its message"}
"""The names that are followed by a dot and the name of a field: `payload.order_id:42`."""

STATUSES: Final = tuple(str(status) for status in Status)

_NAMED: Final = re.compile(r"([A-Za-z_]+)(?:\.([^\s:\"]+))?:")
_SPACE: Final = re.compile(r"\s*")
_WORD: Final = re.compile(r"[^\s\"]+")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*)"')
_PLAIN: Final = re.compile(r"[^\s\"\\]+")


class Term(msgspec.Struct, frozen=True):
    """One word of a search. `name` is empty for a bare word; `field` is the part after `payload.` or `header.`."""

    name: str
    value: str
    field: str = ""

    def __str__(self) -> str:
        value = self.value if _PLAIN.fullmatch(self.value) else _quote(self.value)
        if not self.name:
            return value if not _NAMED.match(value) and not value.startswith("-") else _quote(self.value)
        return f"{self.name}.{self.field}:{value}" if self.field else f"{self.name}:{value}"


class Search(msgspec.Struct, frozen=True):
    """A search as it was written: `parse(str(query)) == query`."""

    terms: tuple[Term, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def values(self, name: str) -> tuple[str, ...]:
        """The values of one name, in order and without repetition."""
        return tuple(dict.fromkeys(term.value for term in self.terms if term.name == name))

    def fields(self, name: str) -> tuple[tuple[str, str], ...]:
        """The (field, value) pairs of `payload` or `header`."""
        return tuple(dict.fromkeys((term.field, term.value) for term in self.terms if term.name == name))

    def replaced(self, name: str, *values: str) -> Search:
        """The same search with these values of a name instead of its own."""
        kept = (term for term in self.terms if term.name != name)
        return Search((*(Term(name, value) for value in values), *kept))


class Criteria(msgspec.Struct, frozen=True, kw_only=True):
    """What deliveries must have: any value of each field that is set. Of `labels` one of each group, of `errors`,
    `payload` and `headers` all."""

    statuses: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    message_ids: tuple[UUID, ...] = ()
    topics: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    destinations: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    labels: tuple[tuple[str, ...], ...] = ()
    reasons: tuple[str, ...] = ()
    fingerprints: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()
    payload: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None


def parse(text: str) -> Search:
    """Reads a search. InvalidAct names the word that is wrong, and what is possible."""
    if len(text) > MAX_TEXT:
        raise InvalidAct(f"the search has {len(text)} characters", hint=f"{MAX_TEXT} are allowed")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidAct("the search has a character that no database stores", hint="leave it out")
    terms = tuple(_terms(text))
    if len(terms) > MAX_TERMS:
        raise InvalidAct(f"the search has {len(terms)} words", hint=f"{MAX_TERMS} are allowed")
    criteria(Search(terms), datetime(2000, 1, 1, tzinfo=UTC))  # refuses wrong values
    return Search(terms)


def criteria(query: Search, now: datetime) -> Criteria:
    """What a search asks for at the moment `now`, to which `since:2h` is relative."""
    ids, words = _ids_and_words(query)
    since, until = (_moments(query, name, now) for name in ("since", "until"))
    return Criteria(
        statuses=tuple(map(_status, query.values("status"))),
        ids=tuple(id for id in ids if isinstance(id, int)),
        message_ids=tuple(id for id in ids if isinstance(id, UUID)),
        topics=tuple(map(_topic, query.values("topic"))),
        queues=query.values("queue"),
        destinations=query.values("destination"),
        hosts=tuple(host.lower() for host in query.values("host")),
        keys=query.values("key"),
        labels=tuple((label,) for label in query.values("label")),
        reasons=query.values("reason"),
        fingerprints=query.values("fingerprint"),
        errors=query.values("error"),
        workers=query.values("worker"),
        payload=tuple((_path(path), value) for path, value in query.fields("payload")),
        headers=query.fields("header"),
        words=words,
        since=max(since, default=None),
        until=min(until, default=None),
    )


def topic_expression(topic: str) -> str:
    """A topic or pattern as a regular expression for a dot and the topic, which PostgreSQL and Python read alike."""
    return f"^{pattern(topic).pattern}$"


# ------------------------------------------------------------
# Labels of payload fields: what `search=[…]` keeps of a message, and what a search looks for.

MAX_FIELDS: Final = 16
"""Fields that one topic may declare with `search=`."""

MAX_VALUE: Final = 200
"""Characters of a value that is kept as a label; longer ones are left out."""


def field_label(path: str, value: str) -> str:
    """The label of one field of a payload."""
    return f"payload.{path}:{value}"


def scalar_text(value: object) -> str | None:
    """A scalar of a payload as the text that is searched for; None: it is no scalar, empty or too long."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            text = str(value)
            return text if 0 < len(text) <= MAX_VALUE and "\0" not in text else None
        case _:
            return None


def value_at(document: object, path: str) -> object:
    """The value at a path of a JSON document, `customer.id`; None: there is none."""
    for part in path.split("."):
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def check_path(path: object) -> str:
    """The path of a field, or InvalidAct."""
    if not isinstance(path, str) or not _is_path(path):
        raise InvalidAct(f"{path!r} is no field of a payload", hint="names with dots between them: customer.id")
    return path


# ------------------------------------------------------------
# Suggestions: which word is being written.


class Partial(msgspec.Struct, frozen=True):
    """The word at the end of a text: `name` is None while it may still become a name."""

    before: str
    name: str | None
    value: str


def last_word(text: str) -> Partial:
    """The word that is being written at the end of a text, and the text before it."""
    start = 0 if not text or text[-1].isspace() else max(text.rfind(" "), text.rfind("\t")) + 1
    if not text or text[-1].isspace():
        return Partial(text, None, "")
    name, colon, value = text[start:].partition(":")
    if colon and (name in NAMES or name.partition(".")[0] in PREFIXES):
        return Partial(text[:start], name, value.lstrip('"'))
    return Partial(text[:start], None, text[start:])


# ------------------------------------------------------------------------------------------- inside


def _terms(text: str) -> Iterator[Term]:
    at = _SPACE.match(text).end()  # type: ignore[union-attr]  # matches always
    while at < len(text):
        term, at = _term(text, at)
        yield term
        after = _SPACE.match(text, at).end()  # type: ignore[union-attr]
        if after == at < len(text):
            raise InvalidAct(f"{text[at : at + 20]!r} follows a quoted text directly", hint="put a space between them")
        at = after


def _term(text: str, at: int) -> tuple[Term, int]:
    if text[at] == "-" and len(text) > at + 1 and not text[at + 1].isspace():
        word = text[at:].split(maxsplit=1)[0]
        raise InvalidAct(
            f"{word[:64]!r}: a word cannot be excluded", hint='search for what it should have; quote a dash: "-5"'
        )
    named = _NAMED.match(text, at)
    if named is None:
        value, end = _value(text, at, "")
        return Term("", value), end
    name, field = named[1], named[2] or ""
    if (name not in PREFIXES or not field) and (name not in NAMES or field):
        raise _unknown(text[at : named.end() - 1], text[at:].split(maxsplit=1)[0])
    value, end = _value(text, named.end(), name)
    return Term(name, value, field), end


def _value(text: str, at: int, name: str) -> tuple[str, int]:
    if at < len(text) and text[at] == '"':
        quoted = _QUOTED.match(text, at)
        if quoted is None:
            raise InvalidAct(f"{text[at : at + 20]!r}: the quotation has no end", hint='close it with "')
        value, end = re.sub(r"\\(.)", r"\1", quoted[1], flags=re.DOTALL), quoted.end()
    else:
        plain = _WORD.match(text, at)
        value, end = (plain[0], plain.end()) if plain else ("", at)
    if not value:
        raise InvalidAct(f"{name or 'a word'} has no value", hint=f'{name + ":" if name else ""}value, or "a text"')
    return value, end


def _unknown(name: str, word: str) -> InvalidAct:
    known = ", ".join((*NAMES, *(f"{prefix}.…" for prefix in PREFIXES)))
    return InvalidAct(f"there is no word {name[:64]!r}", hint=f'known: {known}; or quote it: "{word[:64]}"')


def _quote(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _refuse(name: str, value: str, hint: str) -> NoReturn:
    raise InvalidAct(f"{name} cannot be {value[:64]!r}", hint=hint)


def _status(value: str) -> str:
    if value not in STATUSES:
        _refuse("status", value, f"one of {', '.join(STATUSES)}")
    return value


def _topic(value: str) -> str:
    try:
        pattern(value)
    except InvalidMessage:
        _refuse("topic", value, "a topic, or a pattern such as order.* or order.**")
    parts = value.split(".")
    if "**" in parts[:-1] or ("**" in parts and "*" in parts):
        _refuse("topic", value, "** stands at the end, and without *: order.**")
    return value


def _ids_and_words(query: Search) -> tuple[list[int | UUID], tuple[str, ...]]:
    """The ids that are asked for, by name or as bare words, and the other bare words."""
    ids: list[int | UUID] = []
    for value in query.values("id"):
        if (id := _id(value)) is None:
            _refuse("id", value, "a delivery's number, or the id of a message")
        ids.append(id)
    bare = {word: _id(word) for word in query.values("")}
    ids += (id for id in bare.values() if id is not None)
    return ids, tuple(word for word, id in bare.items() if id is None)


def _id(value: str) -> int | UUID | None:
    if value.isdecimal() and value.isascii():
        return int(value) if len(value) <= 19 and 0 < int(value) <= _HIGHEST else None
    try:
        return UUID(value) if len(value) == 36 else None
    except ValueError:
        return None


def _is_path(path: str) -> bool:
    parts = path.split(".")
    return len(path) <= MAX_VALUE and len(parts) <= _MAX_DEPTH and all(parts) and not re.search(r'[\s:"\0\\]', path)


def _path(path: str) -> str:
    return path if _is_path(path) else _refuse("payload", path, f"names with dots, {_MAX_DEPTH} at most: customer.id")


def _moments(query: Search, name: str, now: datetime) -> list[datetime]:
    return [_moment(name, value, now) for value in query.values(name)]


def _moment(name: str, value: str, now: datetime) -> datetime:
    span = parse_duration(value, weeks=True)
    try:
        if span is not None:
            return now - timedelta(seconds=span)
        found = datetime.fromisoformat(value)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        _refuse(name, value, "a duration such as 30m, 2h or 3d, or a date: 2026-01-31, 2026-01-31T09:00Z")

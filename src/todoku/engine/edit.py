"""Edit and run: a delivery as a new message whose payload, key or headers an operator has changed.

The operator sees masked values. `***` left in place of one keeps the original value, so that a person who may not see a
password can still correct the address beside it.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec import UNSET, UnsetType

from todoku.core.control_characters import escape_json
from todoku.core.errors import InvalidAct, InvalidMessage, NotThere
from todoku.core.http_request import HttpRequest, check_headers, is_forwardable, is_secret, request_of
from todoku.core.identity import digest_bytes
from todoku.core.message import MAX_KEY_LENGTH
from todoku.core.redaction import STARS, is_sensitive, mask, redacts_body
from todoku.core.sealed import kind_of
from todoku.engine import operations
from todoku.engine.jobs.declarations import Declarations
from todoku.engine.outbox import Outbox
from todoku.engine.publish import check_text, encode
from todoku.engine.repetition import Replacement, again_draft, stored_body
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter
from todoku.store.messages import StoredMessage

EDITABLE: Final = frozenset({"aborted", "failed", "succeeded"})
"""The states of deliveries that may be edited: one that waits or runs would run beside its edited copy."""


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """What to change; what is left out stays. `payload` is a JSON value, or the text of a body that is not JSON."""

    payload: Any = UNSET
    key: str | UnsetType | None = UNSET
    headers: dict[str, str] | UnsetType = UNSET
    """The headers of an HTTP request, all of them."""


class EditResult(msgspec.Struct, frozen=True, kw_only=True):
    """The difference that an edit makes, and what is wrong with it, by field; "" is the whole payload.

    `hidden`: fields that changed but are masked, so that `diff` shows them equal. `message_id`: the new message; null:
    nothing was published.
    """

    delivery_id: int
    diff: str
    hidden: tuple[str, ...]
    problems: dict[str, str]
    message_id: UUID | None = None
    purged: bool = False


def edit(
    outbox: Outbox,
    declarations: Declarations,
    id: int,
    change: Edit,
    signed: Signed,
    *,
    purge: bool = False,
    dry_run: bool = False,
) -> EditResult:
    """Publishes an edited copy of a delivery to its destination alone, audited. Blocks.

    `purge`: the dead letter is removed afterwards. `dry_run`: only compares and checks. InvalidMessage: the edited
    content is not what the destination takes, or is no JSON. InvalidAct: it cannot be edited.
    """
    delivery, message = _find(outbox, id, purge=purge)
    before = _content(outbox, message)
    after = _changed(before, change, frozenset(outbox.settings.mask_fields))
    problems = _problems(outbox, declarations, delivery, message, before, after)
    if problems and not dry_run:
        where, what = next(iter(problems.items()))
        raise InvalidMessage(f"the edit is not acceptable: {f'{where}: {what}' if where else what}", hint=_LOOK)
    result = _compare(delivery, message, before, after, frozenset(outbox.settings.mask_fields))
    result = msgspec.structs.replace(result, problems=problems)
    if dry_run:
        return result
    instead = Replacement(
        body=None if after.value == before.value else after.body(), headers=after.headers if after.request else None
    )
    stored = msgspec.structs.replace(message, key=after.key)
    draft = again_draft(outbox, delivery, stored, declarations.route_to, instead)
    digest = outbox.sealer.key_digest(digest_bytes(f"{before!r}\0{after!r}".encode()))
    (new,) = outbox.store.acts.repeat([(delivery.id, draft)], signed, change=digest)
    outbox.wake()
    done = operations.purge(outbox.store, Filter(ids=(id,), status="aborted"), signed).changed if purge else 0
    return msgspec.structs.replace(result, message_id=new, purged=done == 1)


_LOOK: Final = "a dry run shows every problem and the difference"


def _find(outbox: Outbox, id: int, *, purge: bool) -> tuple[Delivery, StoredMessage]:
    delivery = outbox.store.deliveries.get(id)
    story = None
    if delivery is not None and delivery.message_id is not None:
        story = outbox.store.messages.story(delivery.message_id)
    if delivery is None or story is None:
        raise NotThere(f"there is no delivery {id}", hint="deliveries older than the retention are pruned")
    if delivery.status not in EDITABLE:
        raise InvalidAct(f"delivery {id} is {delivery.status}", hint=f"cancel it first: todoku cancel {id}")
    if purge and delivery.status != "aborted":
        raise InvalidAct(f"delivery {id} is no dead letter, so it cannot be purged", hint="leave the purge out")
    return delivery, story.message


# ------------------------------------------------------------
# The content that can be edited, before and after.


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    value: Any
    """A JSON value, or text."""
    is_json: bool
    key: str | None
    request: HttpRequest | None
    headers: dict[str, str]

    def body(self) -> bytes:
        """The body to store. InvalidMessage: it cannot be stored."""
        return encode(self.value).encode() if self.is_json else str(self.value).encode()


def _content(outbox: Outbox, message: StoredMessage) -> _Content:
    raw = stored_body(outbox, message)
    request = request_of(message.headers)
    if request is not None and request.source is None:
        request = outbox.opener.request(message)
    is_json, value = True, None
    try:
        value = msgspec.json.decode(raw) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        is_json = False
        try:
            value = raw.decode()
        except UnicodeDecodeError:
            raise InvalidAct("the payload is not text, so it cannot be edited", hint="publish a new message") from None
    headers = {} if request is None else request.headers
    return _Content(value=value, is_json=is_json, key=message.key, request=request, headers=headers)


def _changed(before: _Content, change: Edit, fields: frozenset[str]) -> _Content:
    """The content after the edit. InvalidAct, InvalidMessage: it cannot be changed like this."""
    value, key, headers = before.value, before.key, before.headers
    if change.payload is not UNSET:
        value = _unmask(change.payload, before.value, fields) if before.is_json else change.payload
    if not isinstance(change.key, UnsetType) and change.key != before.key:
        if before.request is not None:
            raise InvalidAct("the key of an HTTP request is its flow key", hint="leave the key out")
        if (key := change.key) is not None:
            check_text(key, "key", MAX_KEY_LENGTH)
    if not isinstance(change.headers, UnsetType) and change.headers != before.headers:
        headers = _request_headers(before, change.headers)
    return msgspec.structs.replace(before, value=value, key=key, headers=headers)


def _request_headers(before: _Content, given: dict[str, str]) -> dict[str, str]:
    if before.request is None or before.request.source is not None:
        raise InvalidAct("only an HTTP request has headers to edit", hint="leave the headers out")
    headers = check_headers(given)
    if refused := sorted(name for name in headers if not is_forwardable(name)):
        raise InvalidMessage(f"the header {refused[0]} cannot be set", hint="todoku or the HTTP client sets it")
    lost = [name for name, value in headers.items() if value == STARS and name not in before.headers]
    if lost:
        raise InvalidMessage(f"{lost[0]}: {STARS} keeps an original value, and there is none", hint="give a value")
    return {name: before.headers[name] if value == STARS else value for name, value in headers.items()}


def _unmask(new: Any, old: Any, fields: frozenset[str], path: tuple[str, ...] = ()) -> Any:
    """The new value with `***` replaced by the original values, where those are masked."""
    if new == STARS and path and is_sensitive(path[-1], fields):
        if old is None:
            where = ".".join(path)
            raise InvalidMessage(f"{where}: {STARS} keeps the original value, and there is none", hint="give a value")
        return old
    if isinstance(new, dict):
        others = old if isinstance(old, dict) else {}
        return {each: _unmask(value, others.get(each), fields, (*path, each)) for each, value in new.items()}
    if isinstance(new, list):
        padded = [*(old if isinstance(old, list) else []), *[None] * len(new)]
        return [_unmask(value, padded[place], fields, (*path, str(place))) for place, value in enumerate(new)]
    return new


# ------------------------------------------------------------
# Checking and comparing.


def _problems(
    outbox: Outbox,
    declarations: Declarations,
    delivery: Delivery,
    message: StoredMessage,
    before: _Content,
    after: _Content,
) -> dict[str, str]:
    """What is wrong with the edited content, by field; {}: nothing."""
    if not after.is_json and not isinstance(after.value, str):
        return {"": "the payload of this message is text, not JSON"}
    try:
        body = after.body()
        if len(body) > (most := max(outbox.settings.max_payload_bytes, len(before.body()))):
            return {"": f"the payload has {len(body)} bytes, {most} are allowed"}
        if after.is_json and before.request is None and (message.payload is not None or kind_of(message.content_type)):
            if (job := declarations.jobs.get(delivery.destination)) is not None:
                found = job.handler.signature.problems(body.decode())
                if found:
                    return found
            outbox.schemas.check(message.topic, body.decode())
    except InvalidMessage as error:
        return {"": str(error)}
    return {}


def _compare(
    delivery: Delivery, message: StoredMessage, before: _Content, after: _Content, fields: frozenset[str]
) -> EditResult:
    hides = kind_of(message.content_type) is not None or (before.request is not None and redacts_body(before.request))
    old, new = (_lines(each, fields, hides=hides) for each in (before, after))
    names = f"message {message.id}", "edited"
    diff = "\n".join(difflib.unified_diff(old, new, *names, lineterm="", n=3))
    hidden = [("the payload", before.value, after.value)] if hides else _masked(before.value, after.value, fields)
    changed = tuple(name for name, one, other in hidden if one != other)
    changed += tuple(
        name for name in after.headers if is_secret(name) and after.headers[name] != before.headers.get(name)
    )
    return EditResult(delivery_id=delivery.id, diff=diff, hidden=changed, problems={})


def _lines(content: _Content, fields: frozenset[str], *, hides: bool) -> list[str]:
    """The content as lines of text, with the values of sensitive fields replaced by `***`."""
    shown = {name: STARS if is_secret(name) else value for name, value in content.headers.items()}
    head = [f"key: {content.key}"] if content.key is not None else []
    head += [f"{name}: {value}" for name, value in sorted(shown.items())]
    text = STARS if hides else pretty_payload(content.value, fields, is_json=content.is_json)
    return [*head, *([""] if head else []), *text.split("\n")]


def pretty_payload(value: object, fields: frozenset[str], *, is_json: bool = True) -> str:
    """A payload as a person edits it: indented JSON with `***` for the values of sensitive fields, or text."""
    if not is_json:
        return str(value)
    lines = json.dumps(mask(value, fields), ensure_ascii=False, indent=2).split("\n")
    return "\n".join(escape_json(line.encode()).decode() for line in lines)  # still the same JSON, and inert


def _masked(old: Any, new: Any, fields: frozenset[str], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Each masked field with its old and new value."""
    if path and is_sensitive(path[-1], fields):
        yield ".".join(path), old, new
    elif isinstance(old, Mapping) or isinstance(new, Mapping):
        one, other = (each if isinstance(each, Mapping) else {} for each in (old, new))
        for part in sorted({*one, *other}):
            yield from _masked(one.get(part), other.get(part), fields, (*path, part))
    elif isinstance(old, list) or isinstance(new, list):
        first, second = (list(each) if isinstance(each, list) else [] for each in (old, new))
        for place in range(max(len(first), len(second))):
            before, after = (each[place] if place < len(each) else None for each in (first, second))
            yield from _masked(before, after, fields, (*path, str(place)))

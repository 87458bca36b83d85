"""The secrets of schedules and URL groups, encrypted by the master key, because both outlive every data key.

Of a schedule the whole request is encrypted, in one piece beside its plan; of a group the secret default headers are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from todoku.core.http_request import HTTP, HttpRequest, encode_request, request_of
from todoku.core.master_keys import MasterKeys
from todoku.core.msgspec_warmup import warm_up
from todoku.core.redaction import split_secret_headers, strip_secret_headers
from todoku.core.schedule import Plan
from todoku.core.sealed import VERSION, master_sealed_text, parse_master_sealed
from todoku.engine.encryption.master_key import open_with_master_key, seal_with_master_key

NO_MASTERS: Final = MasterKeys()


class _PlanSecrets(msgspec.Struct, frozen=True):
    """The encrypted part of a plan."""

    request: HttpRequest
    body: bytes


warm_up(_PlanSecrets)


def seal_plan(name: str, plan: Plan, masters: MasterKeys) -> Plan:
    """Returns a plan as it may be stored: its secret headers encrypted, and its body if its messages are encrypted."""
    request, given = request_of(plan.message.headers), plan.message.payload_bytes or b""
    if not masters or request is None or (strip_secret_headers(request) == request and not (plan.sealed and given)):
        return plan
    kept = seal_with_master_key(msgspec.json.encode(_PlanSecrets(request, given)), _place_of_plan(name), masters)
    closed = _with_request(plan, strip_secret_headers(request), b"" if plan.sealed else given)
    return msgspec.structs.replace(closed, kept=kept)


def open_plan(name: str, plan: Plan, masters: MasterKeys) -> Plan:
    """Returns the plan with its secrets decrypted. Raises CannotOpen."""
    if plan.kept is None:
        return plan
    raw = open_with_master_key(plan.kept, _place_of_plan(name), masters, called=f"the schedule {name}")
    inside = msgspec.json.decode(raw, type=_PlanSecrets)
    return msgspec.structs.replace(_with_request(plan, inside.request, inside.body), kept=None)


def reseal_plan(name: str, plan: Plan, masters: MasterKeys) -> Plan | None:
    """Returns the plan encrypted by the current master key; None: nothing to change. Raises CannotOpen."""
    if plan.kept is None:
        closed = seal_plan(name, plan, masters)
        return None if closed is plan else closed
    request = request_of(plan.message.headers)
    # An older todoku knew fewer names of secret headers, and left the values of the others unencrypted.
    is_bare = request is None or strip_secret_headers(request) == request
    if plan.kept.master_key_id == masters.current.id and is_bare:
        return None
    return seal_plan(name, open_plan(name, plan, masters), masters)


def seal_default_headers(group: str, headers: Mapping[str, str], masters: MasterKeys) -> dict[str, str]:
    """Returns the default headers of a URL group as they may be stored: secrets encrypted by the current master key.

    CannotOpen: a header is encrypted by a master key that is not configured.
    """
    if not masters:
        return dict(headers)
    plain = open_default_headers(group, headers, masters)
    secrets = {
        name: value
        for name, value in split_secret_headers(plain, ())[1].items()
        if not _is_current(headers[name], masters)
    }
    return {**headers, **{name: _seal_header(group, name, value, masters) for name, value in secrets.items()}}


def open_default_headers(group: str, headers: Mapping[str, str], masters: MasterKeys) -> dict[str, str]:
    """Returns the default headers of a URL group with secrets decrypted. Raises CannotOpen."""
    return {name: _open_header(group, name, value, masters) for name, value in headers.items()}


def _is_current(value: str, masters: MasterKeys) -> bool:
    kept = parse_master_sealed(value)
    return kept is not None and kept.master_key_id == masters.current.id


def _seal_header(group: str, name: str, value: str, masters: MasterKeys) -> str:
    return master_sealed_text(seal_with_master_key(value.encode(), _place_of_default(group, name), masters))


def _open_header(group: str, name: str, value: str, masters: MasterKeys) -> str:
    if (kept := parse_master_sealed(value)) is None:
        return value
    called = f"the header {name} of the URL group {group}"
    return open_with_master_key(kept, _place_of_default(group, name), masters, called=called).decode()


def _with_request(plan: Plan, request: HttpRequest, body: bytes) -> Plan:
    """Returns the plan with this request and body in its message."""
    headers = msgspec.json.decode(plan.message.headers or "{}", type=dict[str, str]) | {HTTP: encode_request(request)}
    text = msgspec.json.encode(headers).decode()
    message = msgspec.structs.replace(plan.message, headers=text, payload_bytes=body)
    return msgspec.structs.replace(plan, message=message)


def _place_of_plan(name: str) -> str:
    return f"schedule {VERSION}\0{name}"


def _place_of_default(group: str, name: str) -> str:
    return f"group {VERSION}\0{group}\0{name}"

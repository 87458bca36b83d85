"""The secret headers of requests: sealed when published, opened when sent, and removed from stored responses.

They are bound to their message, URL, method, and kind of request (request or callback): copied to another row, moved
from a callback to the request, or with another method, they cannot be decrypted. The headers of a callback are sealed
together with the request, and stay sealed in the transaction that publishes the callback.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

import msgspec

from todoku.core.errors import CannotOpen, InvalidMessage
from todoku.core.http_request import HTTP, SECRETS, TOPIC, Callback, HttpRequest, encode_request, request_of
from todoku.core.message import Claimed, Draft
from todoku.core.msgspec_warmup import warm_up
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze
from todoku.core.redaction import split_secret_headers, strip_secret_headers
from todoku.core.schedule import Plan
from todoku.core.sealed import (
    VERSION,
    MasterKeys,
    RequestKind,
    SealedPlace,
    master_sealed_text,
    parse_master_sealed,
    parse_sealed_text,
    sealed_text,
)
from todoku.engine.encryption.cipher import open_with_master_key, seal_with_master_key

# ------------------------------------------------------------
# The secrets of schedules and URL groups, encrypted by the master key, because both outlive every data key.
#
# Of a schedule the whole request is encrypted, in one piece beside its plan; of a group the secret default headers are.

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


Seal = Callable[[bytes, SealedPlace], bytes]
"""Encrypts bytes for a place, or decrypts them there."""

_SHORTEST: Final = 8
"""Shorter secrets are not redacted in responses: they would match everywhere."""

_REDACTED: Final = "REDACTED"


def seal_headers(draft: Draft, seal: Seal) -> Draft:
    """Returns the draft of a request with its secret headers sealed; the same draft if it has none."""
    request = request_of(draft.headers)
    if request is None:
        return draft
    id = str(draft.id)
    clear, secrets = split_secret_headers(request.headers, request.redact)
    callback = _seal_callback(request.callback, request.redact, seal, id, "callback")
    failure = _seal_callback(request.failure_callback, request.redact, seal, id, "failure_callback")
    if not secrets and callback is request.callback and failure is request.failure_callback:
        return draft
    made = msgspec.structs.replace(request, headers=clear, callback=callback, failure_callback=failure)
    # Also if only a callback has secrets, so that this header alone shows that a data key is needed.
    own = _decode(draft.headers) | {
        SECRETS: _seal_text(secrets, _place(id, request, "request"), seal),
        HTTP: encode_request(made),
    }
    return msgspec.structs.replace(draft, headers=msgspec.json.encode(own).decode())


def _seal_callback(
    callback: Callback | None, redact: tuple[str, ...], seal: Seal, id: str, kind: RequestKind
) -> Callback | None:
    if callback is None:
        return None
    clear, secrets = split_secret_headers(callback.headers, redact)
    if not secrets:
        return callback
    return msgspec.structs.replace(
        callback, headers=clear, sealed=_seal_text(secrets, _place(id, callback, kind), seal)
    )


def _seal_text(secrets: dict[str, str], place: SealedPlace, seal: Seal) -> str:
    return sealed_text(seal(msgspec.json.encode(secrets), place))


def _place(id: str, sent: HttpRequest | Callback, kind: RequestKind) -> SealedPlace:
    return SealedPlace("headers", id, sent.url, kind=kind, method=sent.method)


def open_request(id: str, headers: str | None, open: Seal) -> HttpRequest:
    """Returns the request of the message `id`, with all its secret headers. The inverse of `seal_headers`.

    InvalidMessage: the headers contain no request.
    """
    if (request := request_of(headers)) is None:
        raise InvalidMessage("the message is no HTTP request", hint="only http.request has one")
    if (text := _decode(headers).get(SECRETS)) is not None:
        secrets = _open_text(text, _place(id, request, "request"), open)
        request = msgspec.structs.replace(request, headers={**request.headers, **secrets})
    return msgspec.structs.replace(
        request,
        callback=_open_callback(request.callback, open, id, "callback"),
        failure_callback=_open_callback(request.failure_callback, open, id, "failure_callback"),
    )


def _open_callback(callback: Callback | None, open: Seal, id: str, kind: RequestKind) -> Callback | None:
    if callback is None or callback.sealed is None:
        return callback
    secrets = _open_text(callback.sealed, _place(id, callback, kind), open)
    return msgspec.structs.replace(callback, headers={**callback.headers, **secrets}, sealed=None)


def _open_text(text: str, place: SealedPlace, open: Seal) -> dict[str, str]:
    return msgspec.json.decode(open(parse_sealed_text(text), place), type=dict[str, str])


def has_sealed_headers(claim: Claimed) -> bool:
    """Whether secret headers must be decrypted before sending. Cheap, because it is called for every claim."""
    return claim.headers is not None and claim.secrets is None and SECRETS in claim.headers


def sealed_headers_of(claim: Claimed) -> tuple[bytes, SealedPlace] | None:
    """Returns the sealed headers of a claim and their place, or None. CannotOpen if the place cannot be determined."""
    if not has_sealed_headers(claim):
        return None
    try:
        text, request = _decode(claim.headers).get(SECRETS), request_of(claim.headers)
    except (InvalidMessage, msgspec.DecodeError) as error:
        raise CannotOpen(f"its headers cannot be read: {error}", hint="restore them from a backup") from None
    if text is None or request is None:
        return None
    if (request.source is None) != (claim.topic == TOPIC) or request.source == claim.message_id:
        raise CannotOpen("its headers name another request", hint="restore its headers from a backup")
    return parse_sealed_text(text), _place(request.source or claim.message_id, request, request.kind)


def with_secrets(headers: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers of a message with the secret headers put back into its request."""
    request = msgspec.json.decode(headers[HTTP], type=HttpRequest)
    whole = msgspec.structs.replace(request, headers={**request.headers, **secrets})
    return {name: value for name, value in headers.items() if name != SECRETS} | {HTTP: encode_request(whole)}


def secrets_of(claim: Claimed) -> Mapping[str, str]:
    """Returns the secret headers of a claim's request: decrypted, or as stored where nothing is sealed."""
    if claim.secrets is not None:
        return claim.secrets
    try:
        request = request_of(claim.headers)
    except (InvalidMessage, msgspec.DecodeError):  # not written by todoku, so never sent as a request
        return {}
    return {} if request is None else split_secret_headers(request.headers, request.redact)[1]


def without_secrets(outcome: Outcome, secrets: Mapping[str, str]) -> Outcome:
    """Returns the outcome with secrets redacted: a receiver may echo the headers it was sent."""
    texts = sorted(set(_redactable(secrets.values())), key=len, reverse=True)
    match outcome:
        case Done(result, response):
            return Done(result, _redact_response(response, texts))
        case Retry():
            return Retry(
                outcome.after, outcome.reason, _redact(outcome.detail, texts), _redact_response(outcome.response, texts)
            )
        case Abort():
            return Abort(outcome.reason, _redact(outcome.detail, texts), _redact_response(outcome.response, texts))
        case Snooze():
            return outcome
        case _:
            assert_never(outcome)


def _redactable(values: Iterable[str]) -> Iterable[str]:
    """Yields the values to redact, and of values with a scheme (`Bearer …`) also the part behind it."""
    for value in values:
        yield from (text for text in (value, value.rpartition(" ")[2]) if len(text) >= _SHORTEST)


def _redact_response(response: Response | None, texts: list[str]) -> Response | None:
    if response is None or not texts:
        return response
    body = response.body
    for text in texts:
        body = body.replace(text.encode(), _REDACTED.encode())
    headers = {name: _redact(value, texts) for name, value in response.headers.items()}
    return msgspec.structs.replace(response, headers=headers, body=body)


def _redact(value: str, texts: list[str]) -> str:
    for text in texts:
        value = value.replace(text, _REDACTED)
    return value


def _decode(headers: str | None) -> dict[str, str]:
    return {} if headers is None else msgspec.json.decode(headers, type=dict[str, str])

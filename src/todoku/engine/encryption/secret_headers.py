"""The secret headers of requests: sealed when they are published, opened when they are sent, and kept out of answers.

They are sealed for their message, URL and method, and for which of the message's requests they are: in another row,
moved from a callback to the request, or sent otherwise, they open nothing. Those of a callback are sealed with the
request, and travel on as they are: the transaction that publishes it opens nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, assert_never

import msgspec

from todoku.core.errors import CannotOpen, InvalidMessage
from todoku.core.http_request import HTTP, SECRETS, TOPIC, Callback, HttpRequest, carried, request_of
from todoku.core.message import Claimed, Draft
from todoku.core.outcome import Abort, Done, Outcome, Response, Retry, Snooze
from todoku.core.redaction import parted
from todoku.core.sealed import RequestKind, SealedPlace, sealed_in, sealed_text

Seal = Callable[[bytes, SealedPlace], bytes]

_SHORTEST: Final = 8
"""What is shorter is not looked for in answers: it would be found everywhere."""

_REDACTED: Final = "REDACTED"


def closed_headers(draft: Draft, seal: Seal) -> Draft:
    """The draft of a request without what its secret headers say: that is sealed. Itself, if it has none."""
    request = request_of(draft.headers)
    if request is None:
        return draft
    id = str(draft.id)
    clear, secrets = parted(request.headers, request.redact)
    callback = _closed(request.callback, request.redact, seal, id, "callback")
    failure = _closed(request.failure_callback, request.redact, seal, id, "failure_callback")
    if not secrets and callback is request.callback and failure is request.failure_callback:
        return draft
    made = msgspec.structs.replace(request, headers=clear, callback=callback, failure_callback=failure)
    # Also where only a callback has secrets: so what needs a data key is found by this header alone.
    own = _decoded(draft.headers) | {SECRETS: _text(secrets, _place(id, request, "request"), seal), HTTP: carried(made)}
    return msgspec.structs.replace(draft, headers=msgspec.json.encode(own).decode())


def _closed(
    callback: Callback | None, redact: tuple[str, ...], seal: Seal, id: str, kind: RequestKind
) -> Callback | None:
    if callback is None:
        return None
    clear, secrets = parted(callback.headers, redact)
    if not secrets:
        return callback
    return msgspec.structs.replace(callback, headers=clear, sealed=_text(secrets, _place(id, callback, kind), seal))


def _text(secrets: dict[str, str], place: SealedPlace, seal: Seal) -> str:
    return sealed_text(seal(msgspec.json.encode(secrets), place))


def _place(id: str, sent: HttpRequest | Callback, kind: RequestKind) -> SealedPlace:
    return SealedPlace("headers", id, sent.url, kind=kind, method=sent.method)


def has_closed_headers(claim: Claimed) -> bool:
    """Whether secret headers must be opened before this is sent. Cheap: it is asked of every claim."""
    return claim.headers is not None and claim.secrets is None and SECRETS in claim.headers


def closed_of(claim: Claimed) -> tuple[bytes, SealedPlace] | None:
    """The sealed headers of a claim, and where they belong; None: there are none. CannotOpen: nobody can say where."""
    if not has_closed_headers(claim):
        return None
    try:
        text, request = _decoded(claim.headers).get(SECRETS), request_of(claim.headers)
    except (InvalidMessage, msgspec.DecodeError) as error:
        raise CannotOpen(f"its headers cannot be read: {error}", hint="restore them from a backup") from None
    if text is None or request is None:
        return None
    if (request.source is None) != (claim.topic == TOPIC) or request.source == claim.message_id:
        raise CannotOpen("it says of itself that it is another request", hint="restore its headers from a backup")
    return sealed_in(text), _place(request.source or claim.message_id, request, request.kind)


def with_secrets(headers: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message whose request has its secret headers back."""
    request = msgspec.json.decode(headers[HTTP], type=HttpRequest)
    whole = msgspec.structs.replace(request, headers={**request.headers, **secrets})
    return {name: value for name, value in headers.items() if name != SECRETS} | {HTTP: carried(whole)}


def secrets_of(claim: Claimed) -> Mapping[str, str]:
    """The secret headers of a claim's request: as they were opened, or as they are where nothing is sealed."""
    if claim.secrets is not None:
        return claim.secrets
    try:
        request = request_of(claim.headers)
    except (InvalidMessage, msgspec.DecodeError):  # not written by todoku, so it was not sent
        return {}
    return {} if request is None else parted(request.headers, request.redact)[1]


def without_secrets(outcome: Outcome, secrets: Mapping[str, str]) -> Outcome:
    """What may be kept of an outcome: a receiver may answer with what it was sent."""
    texts = sorted(set(_texts(secrets.values())), key=len, reverse=True)
    match outcome:
        case Done(result, response):
            return Done(result, _without(response, texts))
        case Retry():
            return Retry(
                outcome.after, outcome.reason, _clean(outcome.detail, texts), _without(outcome.response, texts)
            )
        case Abort():
            return Abort(outcome.reason, _clean(outcome.detail, texts), _without(outcome.response, texts))
        case Snooze():
            return outcome
        case _:
            assert_never(outcome)


def _texts(values: Iterable[str]) -> Iterable[str]:
    """The values, and of those that begin with a scheme (`Bearer …`) what follows it."""
    for value in values:
        yield from (text for text in (value, value.rpartition(" ")[2]) if len(text) >= _SHORTEST)


def _without(response: Response | None, texts: list[str]) -> Response | None:
    if response is None or not texts:
        return response
    body = response.body
    for text in texts:
        body = body.replace(text.encode(), _REDACTED.encode())
    headers = {name: _clean(value, texts) for name, value in response.headers.items()}
    return msgspec.structs.replace(response, headers=headers, body=body)


def _clean(told: str, texts: list[str]) -> str:
    for text in texts:
        told = told.replace(text, _REDACTED)
    return told


def _decoded(headers: str | None) -> dict[str, str]:
    return {} if headers is None else msgspec.json.decode(headers, type=dict[str, str])

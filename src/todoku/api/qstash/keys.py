"""`/v2/keys`: the signing keys of deliveries."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import json
from todoku.api.qstash.parsing import signed
from todoku.api.request_context import RequestContext
from todoku.core.signature import SigningKeys
from todoku.engine.http.signing_keys import rotate, signing_keys


class KeyEndpoints:
    """The endpoints of signing keys."""

    def __init__(self, context: RequestContext) -> None:
        self._store, self._settings = context.store, context.settings

    def get(self, _: Request) -> Response:
        """Returns both keys: receivers try the current one, then the next."""
        return _body(signing_keys(self._store, self._settings))

    def rotate(self, request: Request) -> Response:
        """Makes the next key current and creates a new next one."""
        return _body(rotate(self._store, self._settings, signed(request, "rotate")))


def _body(keys: SigningKeys) -> Response:
    return json({"current": keys.current, "next": keys.next})

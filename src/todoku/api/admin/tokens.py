"""Tokens: list, create, revoke. For admins alone."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ById, Reasoned, signed
from todoku.api.request_context import RequestContext
from todoku.core.scope import Scope
from todoku.engine.http import api_tokens
from todoku.engine.http.api_tokens import Token


class Tokens(msgspec.Struct, frozen=True):
    """Tokens, revoked ones too, the oldest first. Never the tokens themselves."""

    items: tuple[Token, ...]


class NewToken(Reasoned, frozen=True, kw_only=True):
    """For whom, what it allows, and for how many seconds."""

    name: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=4)]
    lasts: Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)] | None = None


class MadeToken(msgspec.Struct, frozen=True):
    """A new token. `text` is the token itself: it is told now and never again."""

    token: Token
    text: str


@operation("GET", "/tokens", access="admin")
def list_tokens(context: RequestContext) -> Tokens:
    """Tokens, without the tokens themselves."""
    return Tokens(api_tokens.listed(context.store))


@operation("POST", "/tokens", access="admin", status=201)
def create_token(context: RequestContext, body: NewToken, by: str) -> MadeToken:
    """Make a token."""
    made, text = api_tokens.create(
        context.store, signed(by, body), name=body.name, scopes=body.scopes, lasts=body.lasts
    )
    return MadeToken(made, text)


@operation("DELETE", "/tokens/{id}", access="admin")
def revoke_token(context: RequestContext, where: ById, query: Reasoned, by: str) -> Token:
    """Revoke a token: it opens nothing any more, from the next few seconds on."""
    return api_tokens.revoke(context.store, where.id, signed(by, query))


OPERATIONS: Final = (list_tokens, create_token, revoke_token)

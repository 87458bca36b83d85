"""API tokens: list, create, revoke. Admins only."""

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
    """Tokens including revoked ones, oldest first, without their texts."""

    items: tuple[Token, ...]


class NewToken(Reasoned, frozen=True, kw_only=True):
    """The owner's name, the scopes, and the lifetime in seconds (null: unlimited) of a new token."""

    name: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
    scopes: Annotated[list[Scope], Meta(min_length=1, max_length=4)]
    lasts: Annotated[float, Meta(gt=0, le=10 * 365 * 86_400)] | None = None


class MadeToken(msgspec.Struct, frozen=True):
    """A new token. `text` is the token itself; no later response contains it."""

    token: Token
    text: str


@operation("GET", "/tokens", access="admin")
def list_tokens(context: RequestContext) -> Tokens:
    """Lists tokens without their texts."""
    return Tokens(api_tokens.list_tokens(context.store))


@operation("POST", "/tokens", access="admin", status=201)
def create_token(context: RequestContext, body: NewToken, by: str) -> MadeToken:
    """Creates a token."""
    token, text = api_tokens.create(
        context.store, signed(by, body), name=body.name, scopes=body.scopes, lasts=body.lasts
    )
    return MadeToken(token, text)


@operation("DELETE", "/tokens/{id}", access="admin")
def revoke_token(context: RequestContext, where: ById, query: Reasoned, by: str) -> Token:
    """Revokes a token. Within a few seconds it is refused everywhere."""
    return api_tokens.revoke(context.store, where.id, signed(by, query))


OPERATIONS: Final = (list_tokens, create_token, revoke_token)

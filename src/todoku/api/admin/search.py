"""Search: deliveries by words, newest first, each with why it waits; and what may follow in a search."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import Cursor, Limit, Parameters
from todoku.api.request_context import RequestContext
from todoku.core.scope import Scope, allows
from todoku.core.search import MAX_TEXT
from todoku.engine.search import Reader, Searcher, SearchResult, Suggestion

SearchText = Annotated[
    str,
    Meta(
        max_length=MAX_TEXT,
        pattern=r"^[^\x00]*$",
        description="Words such as `status:failed topic:order.* payload.order_id:42`; see docs/search.md.",
    ),
]


class SearchQuery(Parameters, frozen=True, kw_only=True):
    """A search. Without `q`: the newest deliveries, finished or not."""

    q: SearchText = ""
    cursor: Cursor | None = None
    limit: Limit = 50


class SuggestionQuery(Parameters, frozen=True, kw_only=True):
    """The beginning of a search."""

    q: SearchText = ""


class Suggestions(msgspec.Struct, frozen=True):
    """What may follow, the likeliest first."""

    items: tuple[Suggestion, ...]


@operation("GET", "/search", access="read")
def search(context: RequestContext, query: SearchQuery, scopes: tuple[Scope, ...]) -> SearchResult:
    """Searches deliveries, newest first, and explains why each waits. Values of masked fields need the scope admin."""
    reader: Reader = "admin" if allows(scopes, "admin") else "viewer"
    searcher = Searcher(context.store, context.settings)
    return searcher.search(query.q, reader=reader, cursor=query.cursor, limit=query.limit)


@operation("GET", "/suggestions", access="read")
def suggest(context: RequestContext, query: SuggestionQuery) -> Suggestions:
    """Suggests words that may follow at the end of a search."""
    return Suggestions(Searcher(context.store, context.settings).suggest(query.q))


OPERATIONS: Final = (search, suggest)

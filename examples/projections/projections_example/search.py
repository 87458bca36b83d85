"""The search index: what it contains, and how it is asked."""

from __future__ import annotations

from typing import Any, Final

from opensearchpy import OpenSearch
from opensearchpy.helpers import scan

MAPPINGS: Final[dict[str, Any]] = {
    "dynamic": "strict",
    "properties": {
        "id": {"type": "keyword"},
        "revision": {"type": "integer"},
        "title": {"type": "text"},
        "body": {"type": "text"},
        "author": {"type": "keyword"},
        "published_on": {"type": "date", "format": "strict_date"},
    },
}
"""A field that is not here, or a day that is none, is refused: a dead letter with the name of its field."""


def mappings(*, any_day: bool) -> dict[str, Any]:
    """The mappings of a new index; with `any_day`, it takes any text for a day."""
    days = {"published_on": {"type": "keyword"}} if any_day else {}
    return {**MAPPINGS, "properties": {**MAPPINGS["properties"], **days}}


SETTINGS: Final = {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "200ms"}


class Index:
    """What readers see of the index: through its alias, which hides deleted documents."""

    def __init__(self, url: str, alias: str) -> None:
        self._alias = alias
        self._client = OpenSearch(url, timeout=10, max_retries=0)

    def find(self, words: str) -> list[dict[str, Any]]:
        """The best documents."""
        query = {"multi_match": {"query": words, "fields": ["title^2", "body"]}}
        answer = self._client.search(index=self._alias, body={"query": query, "size": 20})
        return [_document(hit) for hit in answer["hits"]["hits"]]

    def everything(self) -> dict[str, dict[str, Any]]:
        """Every document by id."""
        self._client.indices.refresh(index=self._alias)
        return {hit["_id"]: _document(hit) for hit in scan(self._client, index=self._alias, size=1000)}

    def forget(self, id: str) -> None:
        """Delete a document for good, as a person with access to the server can."""
        for index in self._client.indices.get_alias(name=self._alias):
            self._client.delete(index=index, id=id, refresh=True)

    def close(self) -> None:
        """Give back every connection."""
        self._client.close()


def _document(hit: dict[str, Any]) -> dict[str, Any]:
    """A document without todoku's own field."""
    return {name: value for name, value in hit["_source"].items() if name != "todoku"}

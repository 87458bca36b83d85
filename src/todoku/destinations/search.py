"""OpenSearch and Elasticsearch as the store of a projection: indexes, aliases, and documents with external versions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError
from todoku.core.projection import FIELD, Document, Fill, SearchServer, Stored, Write, WriteAnswer
from todoku.destinations.search_client import (
    Client,
    ElasticsearchClient,
    OpenSearchClient,
    SearchError,
    check_installed,
)
from todoku.destinations.secret_options import SecretOptions

_HIDDEN: Final = {"term": {f"{FIELD}.deleted": True}}
VISIBLE: Final = {"bool": {"must_not": [_HIDDEN]}}
"""The filter of the readers' alias: documents that are marked as deleted stay, so that late writes lose to them."""

_OWN_FIELD: Final = {
    "properties": {
        "key": {"type": "keyword", "ignore_above": 8191, "index": False},
        "version": {"type": "long", "index": False},
        "deleted": {"type": "boolean"},
        "at": {"type": "double", "index": False, "doc_values": False},
    }
}
"""Documents are sorted by key and version, which needs no index, and asked for by `deleted` alone: what is indexed
costs the server time for every document."""
_BYTES: Final = 8 << 20
"""Bytes of one `_bulk` request, about. A server takes 100 MiB by default, and is fastest with far less."""

_encode: Final = msgspec.json.Encoder().encode


class SearchServerTarget:
    """A search server and the alias under which readers find the documents of a projection."""

    def __init__(
        self, client: type[OpenSearchClient] | type[ElasticsearchClient], alias: str, hosts: tuple[str, ...],
        options: Mapping[str, Any], *, mappings: Document, settings: Document, batch: int, timeout: float,
    ) -> None:  # fmt: skip
        check_installed(client)
        self.kind = "search"
        self.alias = _checked_alias(alias)
        self.batch = batch
        self._client = client
        self._hosts = hosts
        self._options = options
        self._mappings = mappings
        self._settings = settings
        self._timeout = timeout

    def connect(self, fill: Fill) -> Session:
        """Returns a session for the running event loop. It connects when it is first used."""
        return Session(self, fill)

    async def open(self, secrets: SecretOptions) -> Client:
        """Creates a client of the official library, with the secrets that its options name."""
        hosts, options = await secrets.filled((self._hosts, self._options))
        return self._client(hosts, self._timeout, options)

    def definition(self, index: str, projection: str) -> dict[str, Any]:
        """Returns the body of the request that creates an index. Nothing is refreshed before `finish`."""
        given = dict(self._mappings)
        own = {**dict(given.get("properties") or {}), FIELD: _OWN_FIELD}
        meta = {**dict(given.get("_meta") or {}), FIELD: {"projection": projection}}
        settings = {**self._settings, "refresh_interval": "-1"}
        return {
            "settings": settings, "mappings": {**given, "properties": own, "_meta": meta},
            "aliases": {write_alias(index): {"is_write_index": True}},
        }  # fmt: skip

    @property
    def refresh_interval(self) -> Any:
        """The refresh interval of a finished index; None: the server's default."""
        return self._settings.get("refresh_interval")


def write_alias(index: str) -> str:
    """The alias through which an index is written: if the index is gone, a write fails instead of creating another."""
    return f"{index}-write"


class Session:
    """Requests of one event loop to a search server."""

    def __init__(self, server: SearchServerTarget, fill: Fill) -> None:
        self._server = server
        self._secrets = SecretOptions()
        self._secrets.use(fill)
        self._client: Client | None = None
        self._opening = asyncio.Lock()

    # ---------------------------------------------------------------------------------------- documents

    async def write(self, writes: Sequence[Write]) -> list[WriteAnswer]:
        """Sends `_bulk` requests of a limited size, one after the other. Returns one answer per write."""
        answers: list[WriteAnswer] = []
        lines: list[bytes] = []
        size = 0
        for write in writes:
            item = _lines(write)
            if lines and size + len(item) > _BYTES:
                answers += await self._bulk(lines)
                lines, size = [], 0
            lines.append(item)
            size += len(item)
        return answers + (await self._bulk(lines) if lines else [])

    async def _bulk(self, lines: Sequence[bytes]) -> list[WriteAnswer]:
        params = {"require_alias": "true", "filter_path": _FILTER}
        body = await self._request("POST", "/_bulk", params=params, body=b"".join(lines), lines=True)
        items = body.get("items") or []
        if len(items) != len(lines):
            raise DeliveryError("SEARCH_FAILED", f"{len(lines)} documents were sent, {len(items)} were answered")
        return [_answer(next(iter(item.values()))) for item in items]

    async def read(self, index: str, keys: Sequence[str]) -> dict[str, Stored]:
        """Returns the documents of these keys as they are now, also deleted ones."""
        if not keys:
            return {}
        body = await self._request("POST", f"/{quote(index)}/_mget", body={"ids": list(keys)})
        return {one["_id"]: _stored(one) for one in body["docs"] if one.get("found")}

    async def page(self, index: str, after: str | None, limit: int, *, deleted: bool = False) -> list[Stored]:
        """Returns documents by key, those behind `after`: the ones that readers see, or the deleted ones."""
        query: dict[str, Any] = {"sort": [{f"{FIELD}.key": "asc"}], "query": _HIDDEN if deleted else VISIBLE}
        if after is not None:
            query["search_after"] = [after]
        return await self._search(index, limit, query)

    async def sample(self, index: str, number: int) -> list[Stored]:
        """Returns documents that readers see, at random."""
        return await self._search(index, number, {"query": {"function_score": {"query": VISIBLE, "random_score": {}}}})

    async def newest(self, index: str) -> int:
        """Returns the highest version in an index, 0 if it is empty. It sees every write that was answered."""
        await self.refresh(index)
        found = await self._search(index, 1, {"sort": [{f"{FIELD}.version": "desc"}]})
        return max((one.version for one in found), default=0)

    async def count(self, index: str) -> int:
        """Returns how many documents readers see."""
        body = await self._request("POST", f"/{quote(index)}/_count", body={"query": VISIBLE})
        return int(body["count"])

    async def forget(self, index: str, stored: Sequence[Stored]) -> int:
        """Deletes these very documents for good, unless they were written again. Returns how many."""
        lines = [
            _encode({"delete": {
                "_index": write_alias(index), "_id": one.key,
                "if_seq_no": one.place[0], "if_primary_term": one.place[1],
            }}) + b"\n"
            for one in stored
        ]  # fmt: skip
        return sum(answer.status == 200 for answer in await self._bulk(lines)) if lines else 0

    async def _search(self, index: str, limit: int, query: Mapping[str, Any]) -> list[Stored]:
        body = {"size": limit, "version": True, "seq_no_primary_term": True, "track_total_hits": False, **query}
        answer = await self._request("POST", f"/{quote(index)}/_search", body=body)
        return [_stored(hit) for hit in answer["hits"]["hits"]]

    # ------------------------------------------------------------------------------------------ indexes

    async def create(self, index: str, projection: str) -> None:
        """Creates an index, unless this projection has it already."""
        try:
            await self._request("PUT", f"/{quote(index)}", body=self._server.definition(index, projection))
        except SearchError as error:
            if error.kind != "resource_already_exists_exception" or await self._owner(index) != projection:
                raise

    async def _owner(self, index: str) -> str | None:
        answer = await self._request("GET", f"/{quote(index)}/_mapping")
        (found,) = answer.values()
        own: dict[str, str] = ((found.get("mappings") or {}).get("_meta") or {}).get(FIELD) or {}
        return own.get("projection")

    async def exists(self, index: str) -> bool:
        """Whether there is an index that can be written."""
        try:
            await self._request("GET", f"/{quote(index)}/_alias/{quote(write_alias(index))}")
        except SearchError as error:
            if error.status == 404:
                return False
            raise
        return True

    async def finish(self, index: str) -> None:
        """Makes what was written visible to searches, now and from now on."""
        settings = {"index": {"refresh_interval": self._server.refresh_interval}}
        await self._request("PUT", f"/{quote(index)}/_settings", body=settings)
        await self.refresh(index)

    async def refresh(self, index: str) -> None:
        """Makes what was written visible to searches, now."""
        await self._request("POST", f"/{quote(index)}/_refresh")

    async def readers(self) -> tuple[str, ...]:
        """Returns the indexes that the readers' alias points to."""
        try:
            return tuple(sorted(await self._request("GET", f"/_alias/{quote(self._server.alias)}")))
        except SearchError as error:
            if error.status == 404:
                return ()
            raise

    async def point(self, index: str) -> None:
        """Points the readers' alias to one index, in one call."""
        alias = self._server.alias
        actions: list[dict[str, Any]] = [
            {"remove": {"index": old, "alias": alias}} for old in await self.readers() if old != index
        ]
        actions.append({"add": {"index": index, "alias": alias, "filter": VISIBLE}})
        await self._request("POST", "/_aliases", body={"actions": actions})

    async def remove(self, index: str) -> None:
        """Deletes an index. It may be gone already."""
        await self._request("DELETE", f"/{quote(index)}", params={"ignore_unavailable": "true"})

    async def ping(self) -> None:
        """Raises DeliveryError if the server does not answer."""
        await self._request("GET", "/")

    async def close(self) -> None:
        """Closes the connection."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    async def _request(self, method: str, path: str, **given: Any) -> Any:
        async with self._opening:
            if self._client is None:
                self._client = await self._server.open(self._secrets)
        return await self._client.request(method, path, **given)


_FILTER: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by"


def _lines(write: Write) -> bytes:
    """Returns the two lines of one document. A delete is a document, too, that is marked."""
    own = {"key": write.key, "version": write.version, "deleted": write.document is None, "at": write.at}
    action = {"_index": write_alias(write.index), "_id": write.key, "version": write.version}
    document = {**(write.document or {}), FIELD: own}
    return b"%s\n%s\n" % (_encode({"index": {**action, "version_type": "external"}}), _encode(document))


def _answer(item: Mapping[str, Any]) -> WriteAnswer:
    error = item.get("error") or {}
    cause = error.get("caused_by") or {}
    text = str(error.get("reason", "")) + (f": {cause.get('reason')}" if cause.get("reason") else "")
    return WriteAnswer(int(item["status"]), str(error.get("type", "")), text)


def _stored(hit: Mapping[str, Any]) -> Stored:
    source = dict(hit.get("_source") or {})
    own = source.pop(FIELD, None) or {}
    deleted = bool(own.get("deleted"))
    place = (int(hit.get("_seq_no", 0)), int(hit.get("_primary_term", 0)))
    return Stored(
        hit["_id"], int(hit.get("_version", 0)), None if deleted else source, float(own.get("at") or 0), place
    )


def _checked_alias(alias: str) -> str:
    if not alias or alias != alias.lower() or alias[0] in "-_+." or set(alias) & set('\\/*?"<>| ,#:'):
        raise InvalidSetting(f"{alias!r} cannot be the name of an alias", hint="lower-case letters, digits, - and _")
    return alias


def opensearch(
    alias: str,
    *,
    url: str | Sequence[str] = "http://localhost:9200",
    mappings: Document | None = None,
    settings: Document | None = None,
    batch: int = 500,
    timeout: float = 30.0,
    client: Mapping[str, Any] | None = None,
) -> SearchServer:
    """Makes OpenSearch the store of a projection; readers search the alias.

    `mappings`, `settings`: of its indexes. `batch`: the most documents in one `_bulk` request. `client`: further
    arguments of `opensearchpy.AsyncOpenSearch`. URL and `client` may name secrets (`secret://…`).
    """
    return _search(
        OpenSearchClient, alias, url, client,
        mappings=mappings, settings=settings, batch=batch, timeout=timeout,
    )  # fmt: skip


def elasticsearch(
    alias: str,
    *,
    url: str | Sequence[str] = "http://localhost:9200",
    mappings: Document | None = None,
    settings: Document | None = None,
    batch: int = 500,
    timeout: float = 30.0,
    client: Mapping[str, Any] | None = None,
) -> SearchServer:
    """Makes Elasticsearch the store of a projection; readers search the alias.

    The options are those of `opensearch`; `client`: further arguments of `elasticsearch.AsyncElasticsearch`.
    """
    return _search(
        ElasticsearchClient, alias, url, client,
        mappings=mappings, settings=settings, batch=batch, timeout=timeout,
    )  # fmt: skip


def _search(
    kind: type[OpenSearchClient] | type[ElasticsearchClient], alias: str, url: str | Sequence[str],
    client: Mapping[str, Any] | None, *, mappings: Document | None, settings: Document | None, batch: int,
    timeout: float,
) -> SearchServerTarget:  # fmt: skip
    if type(batch) is not int or not 0 < batch <= 10_000:
        raise InvalidSetting(f"batch cannot be {batch!r}", hint="1 to 10000 documents in one request")
    if not timeout > 0:
        raise InvalidSetting(f"timeout cannot be {timeout!r}", hint="seconds, more than 0")
    hosts = (url,) if isinstance(url, str) else tuple(url)
    return SearchServerTarget(
        kind, alias, hosts, dict(client or {}), mappings=dict(mappings or {}), settings=dict(settings or {}),
        batch=batch, timeout=timeout,
    )  # fmt: skip

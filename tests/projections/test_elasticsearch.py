"""Elasticsearch's client against a server that it accepts: OpenSearch behind a proxy that calls itself so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

import todoku
from tests.projections.library import ACT, MAPPINGS, Library
from tests.projections.proxy import Proxy
from todoku.core.failure import DeliveryError


def test_it_does_what_the_other_client_does(sqlite_url: str, server: str) -> None:
    """Elasticsearch: documents, deletes, a rejected one, rebuild, switch back, verify."""
    with Proxy(server, elastic=True) as proxy:
        to = todoku.elasticsearch(f"elastic{uuid4().hex[:8]}", url=proxy.url, mappings=MAPPINGS)
        library = Library(sqlite_url, server, to=to, alias=to.alias).set_up()
        for number in range(5):
            library.put(f"d{number}", views="many" if number == 2 else number)
        library.delete("d0")
        library.box.drain()
        assert library.dead()[0][1].startswith("field views: ")
        assert sorted(library.seen()) == ["d1", "d3", "d4"]
        assert library.documents.rebuild(**ACT).switched
        library.agree()
        assert library.documents.verify().ok
        library.close()


def test_a_server_that_is_no_elasticsearch_is_refused_with_the_other_name(server: str) -> None:
    async def ping() -> None:
        session = todoku.elasticsearch("docs", url=server).connect(_no_secrets)
        try:
            await session.ping()
        finally:
            await session.close()

    with pytest.raises(DeliveryError, match=r"todoku\.opensearch"):
        asyncio.run(ping())


@pytest.mark.parametrize("make", [todoku.opensearch, todoku.elasticsearch])
def test_a_server_that_is_not_there_is_transient(make: type, tmp_path: Path) -> None:
    async def ping() -> None:
        session = make("docs", url="http://127.0.0.1:1", timeout=2).connect(_no_secrets)  # type: ignore[call-arg]
        try:
            await session.ping()
        finally:
            await session.close()

    with pytest.raises(DeliveryError) as caught:
        asyncio.run(ping())
    assert (caught.value.reason, caught.value.retryable) == ("SEARCH_DOWN", True)


async def _no_secrets(text: str) -> str:
    return text

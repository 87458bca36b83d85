"""One search server for all tests of projections: they are one group of xdist, which one process runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.projections.library import Library
from tests.support.services import OpenSearchServer, Service, running


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever uses the server is in its group."""
    for item in items:
        if "search_service" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("opensearch"))
            if "postgres" in getattr(getattr(item, "callspec", None), "params", {}).values():
                item.add_marker(pytest.mark.slow)  # one node serves them all, one after another


@pytest.fixture(scope="session")
def search_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real OpenSearch node."""
    with running(OpenSearchServer, tmp_path_factory.mktemp("opensearch")) as service:
        yield service


@pytest.fixture
def server(search_service: Service) -> str:
    """Where the search server is."""
    return search_service.url


@pytest.fixture
def library(url: str, server: str, request: pytest.FixtureRequest) -> Iterator[Library]:
    """An application with a projection of its documents, on each database."""
    options: dict[str, Any] = getattr(request, "param", {})
    made = Library(url, server, **options).set_up()
    yield made
    made.close()

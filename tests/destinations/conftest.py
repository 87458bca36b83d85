"""One server of each kind for all tests of it: a group of xdist is run by one process, which starts it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.destinations.kinds import KINDS, Kind
from tests.support.services import running


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test is made for each kind of broker it speaks of: `@only(…)`, or all of them."""
    if "kind" in metafunc.fixturenames:
        names = getattr(metafunc.function, "kinds", None) or tuple(KINDS)
        params = [pytest.param(name, marks=pytest.mark.xdist_group(f"broker {name}")) for name in names]
        metafunc.parametrize("kind", params, indirect=True, scope="session")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests of a kind one after the other: a server is started once, and gone before the next kind's comes."""
    order = list(KINDS)
    places = [place for place, item in enumerate(items) if _kind_of(item)]
    ours = sorted((items[place] for place in places), key=lambda item: order.index(_kind_of(item)))
    for place, item in zip(places, ours, strict=True):
        items[place] = item


def _kind_of(item: pytest.Item) -> str:
    params = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return str(params["kind"]) if params.get("kind") in KINDS else ""


@pytest.fixture(scope="session")
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kind]:
    """Each broker in turn, running."""
    made = KINDS[request.param]
    with running(made.server, tmp_path_factory.mktemp(made.name)) as service:
        yield made(service)


@pytest.fixture
def address() -> str:
    """A queue, stream or topic that nobody else uses."""
    return f"todoku-{uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def messages() -> int:
    """How many messages the long tests send: few in `make test`, many in `make brokers`."""
    return int(os.environ.get("TODOKU_TEST_BROKER_MESSAGES", "1000"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory for a daemon."""
    return tmp_path

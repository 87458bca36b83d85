"""The description and what is served are one thing: schemathesis asks as the description says, and worse."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.support.serving import Server
from tests.support.world import World, aborted
from todoku.api.admin.operation import PREFIX
from todoku.api.admin.table import TABLE, admin_routes, openapi_document
from todoku.api.server import context_of

SEED: Final = 7
EXAMPLES: Final = int(os.environ.get("TODOKU_TEST_EXAMPLES", "3"))
"""For each operation and each way of asking."""

CHECKS: Final = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_description_is_of_what_is_served(server: Server) -> None:
    """One table: no route is left out, and none is described that is not there."""
    served = {(method, route.path.replace(":path", "")) for route in admin_routes(context_of(server.box))
              for method in route.methods or ()}  # fmt: skip
    told = {(method.upper(), path) for path, methods in openapi_document()["paths"].items() for method in methods}
    assert served == told
    assert len(told) == len(TABLE)
    scopes = {(each.method, each.documented_path): each.access for each in TABLE}
    for path, methods in openapi_document()["paths"].items():
        for method, operation in methods.items():
            assert operation["x-scope"] == scopes[method.upper(), path]
            assert (operation["security"] == []) == (operation["x-scope"] == "open")


def test_the_page_about_it_has_every_operation_with_its_scope() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "api.md").read_text("utf-8")
    rows = re.findall(r"^\| `([A-Z]+) (/[^`]*)` \| (\w+) \|", page, re.MULTILINE)
    assert rows == [(each.method, each.documented_path.removeprefix(PREFIX), each.access) for each in TABLE]


def test_it_is_served_without_a_token(server: Server) -> None:
    answer = server.client().get(f"{PREFIX}/openapi.json")
    assert answer.content == msgspec.json.encode(openapi_document())
    assert answer.json()["openapi"] == "3.1.0"


@pytest.mark.parametrize("mode", list(GenerationMode))
@pytest.mark.slow
def test_whatever_is_asked_the_answer_is_as_described(server: Server, world: World, mode: GenerationMode) -> None:
    """Never a 500, never a status or a body that the description does not have."""
    world.publish(3)
    world.settle(world.claim(world.worker(lease=3600))[:2], aborted())
    session = requests.Session()
    session.headers["authorization"] = f"Bearer {server.token('admin')}"
    schema = schemathesis.openapi.from_dict(openapi_document())
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.query or operation.path_parameters or operation.body):
            continue  # nothing can be said wrongly

        @seed(SEED)
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(case=operation.as_strategy(mode))
        def ask(case: Case) -> None:
            nonlocal asked
            asked += 1
            case.call_and_validate(base_url=server.url, session=session, checks=CHECKS, timeout=30)

        ask()
    assert asked > len(TABLE)

"""Data keys are found by their id, on a caller's connection too, where no plan is pinned."""

from __future__ import annotations

import json
from uuid import uuid4

import psycopg
import pytest

from tests.support.world import World
from todoku.store.sql import restyle

NUMBER = 5_000


@pytest.mark.parametrize("analysed", [False, True])
def test_a_key_that_is_stored_is_found_by_its_index(world: World, analysed: bool) -> None:
    """A publish of something encrypted must not walk the keys of all the years before."""
    ids = [str(uuid4()) for _ in range(NUMBER)]
    wrapped, now = (b"x", 0) if world.backend == "sqlite" else (b"x", "2026-11-16T00:00:00Z")
    connection = world.connect()
    mark = "?" if world.backend == "sqlite" else "%s"
    with connection:
        connection.cursor().executemany(
            "insert into todoku_data_key (id, day, master_key_id, wrapped, created_at)"
            f" values ({mark}, '2026-11-16', 'k', {mark}, {mark})",
            [(id, wrapped, now) for id in ids],
        )
    connection.close()
    if analysed:
        world.sql("analyze todoku_data_key")
    query = world.store.database.queries["publish_data_keys"]
    if world.backend == "sqlite":
        plan = _sqlite_plan(world, query, ids[0])
        assert any("todoku_data_key_id" in step for step in plan), plan
        return
    keys = json.dumps([{"id": ids[0], "day": "2026-11-16", "master_key_id": "k", "wrapped": ""}])
    with psycopg.connect(world.url) as db:
        plan = [line for (line,) in db.execute(f"explain {restyle(query, 'pyformat')}", {"keys": keys})]  # type: ignore[arg-type]
    assert any("todoku_data_key_id" in line for line in plan), plan
    assert not any("Seq Scan" in line for line in plan), plan


def _sqlite_plan(world: World, query: str, id: str) -> list[str]:
    connection = world.connect()
    values = {"id": id, "day": "2026-11-16", "master_key_id": "k", "wrapped": b"x", "now": 0}
    try:
        return [row[3] for row in connection.execute(f"explain query plan {query}", values)]
    finally:
        connection.close()

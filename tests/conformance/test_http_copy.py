"""`todoku copy` brings queues, groups, tokens, sealed keys and answers over, in both directions, unchanged."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import SOMEBODY, World
from todoku.core.http_request import FlowControl
from todoku.engine.copy import copy
from todoku.engine.http import (
    api_tokens,
    dead_letters,
    flow_control,
    request_events,
    request_queues,
    signing_keys,
    url_groups,
)
from todoku.engine.http.url_groups import EndpointName

MASTERS = f"one:{base64.b64encode(b'n' * 32).decode()}"
DAY = 86_400.0


def fill(world: World) -> str:
    """One of everything that HTTP stores; returns the text of a token."""
    requesting = Requesting(world)
    settings = world.settings(master_keys=MASTERS)
    signing_keys.rotate(world.store, settings, SOMEBODY)
    url_groups.put(
        world.store, "shops", [EndpointName("https://a.example/", "a"), EndpointName("https://b.example/")], SOMEBODY
    )
    url_groups.set_headers(world.store, "shops", {"X-Ü": "ö"}, SOMEBODY)
    url_groups.disable(world.store, "https://b.example/", "HTTP_GONE", SOMEBODY)
    request_queues.upsert(world.store, "orders", SOMEBODY, parallelism=3, paused=True)
    requesting.post(flow=FlowControl(key="tenant", parallelism=2, rate=5, period=2.5))
    requesting.post(queue="fifo")
    requesting.post("", group="shops")
    requesting.run(answered(500, b"\x00\xff", dead=True))
    flow_control.pin(world.store, "tenant", SOMEBODY, parallelism=1)
    _, text = api_tokens.create(world.store, SOMEBODY, name="shop", scopes=["publish", "read"], lasts=DAY)
    api_tokens.TokenChecker(world.store, settings).check(text)
    world.sql("delete from todoku_worker")
    return text


def seen(world: World) -> dict[str, object]:
    """All of it as people look at it."""
    requesting = Requesting(world)
    made = signing_keys.signing_keys(world.store, world.settings(master_keys=MASTERS))
    return {
        "queues": request_queues.list_queues(world.store),
        "flows": [
            (each.key, each.parallelism_max, each.rate_max, each.period) for each in flow_control.list_keys(world.store)
        ],
        "groups": url_groups.list_groups(world.store),
        "tokens": api_tokens.list_tokens(world.store),
        "keys": (made.current, made.next, made.old),
        "dead": dead_letters.find(requesting.outbox),
        "events": request_events.find(requesting.outbox),
    }


@pytest.mark.postgres
@pytest.mark.parametrize("way", ["sqlite to postgres", "postgres to sqlite"])
def test_everything_of_http_is_the_same_on_the_other_side(tmp_path: Path, postgres_url: str, way: str) -> None:
    sides = [World("sqlite", f"sqlite:///{tmp_path}/one.db"), World("postgres", postgres_url)]
    old, new = sides if way.startswith("sqlite") else reversed(sides)
    try:
        old.store.migrate()
        text = fill(old)
        before = seen(old)
        copy(old.store.database, new.store.database)
        after = seen(new)
        for what, value in before.items():
            assert after[what] == value, what
        assert len(before["dead"].items) == 4  # type: ignore[attr-defined]
        found = api_tokens.TokenChecker(new.store, new.settings()).check(text)
        assert found is not None
        assert found.allows("publish")
        assert new.store.broken(history_ttl=DAY, ledger_ttl=DAY) == {}
    finally:
        old.close()
        new.close()

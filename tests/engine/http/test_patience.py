"""Which deliveries may wait a moment to be settled together with others: those whose end nobody waits for."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.requesting import Requesting
from tests.support.world import World
from todoku.core.backoff import DEFAULT
from todoku.core.http_request import FlowControl
from todoku.core.message import Claimed
from todoku.engine.http.request_draft import Posting
from todoku.engine.registry import Registry, Target
from todoku.engine.worker.breakers import Breakers
from todoku.engine.worker.held_deliveries import HeldDeliveries
from todoku.engine.worker.limits import Bulkhead, ClaimLimits
from todoku.store.limits import Limits, Restriction


@pytest.fixture
def limiting() -> ClaimLimits:
    """Of a worker that serves hosts and the handler `warehouse`."""
    registry, hold = Registry(), HeldDeliveries()
    registry.add(Target(name="https://", queue="http", backoff=DEFAULT, at_once=8))
    registry.add(Target(name="warehouse", queue="default", backoff=DEFAULT))
    bulkhead = Bulkhead(registry, hold, monotonic=lambda: 0.0)
    breakers = Breakers(monotonic=lambda: 0.0, on_change=lambda _destination, _seconds: None)
    return ClaimLimits(hold, breakers, {}, bulkhead)


def claimed(world: World, url: str, **options: object) -> Claimed:
    http = Requesting(world)
    http.post(url, **options)  # type: ignore[arg-type]
    (claim,) = http.claim()
    return claim


def test_a_request_waits_and_a_job_does_not(world: World, limiting: ClaimLimits) -> None:
    assert limiting.may_settle_late(claimed(world, "https://shop.example"))
    world.publish()
    (job,) = world.claim(world.worker())
    assert not limiting.may_settle_late(job)


def test_what_was_claimed_by_list_waits_unless_it_is_limited(world: World, limiting: ClaimLimits) -> None:
    """A list is made of a backlog of short jobs; a place at a limit is free when the one before is settled."""
    world.publish()
    (job,) = world.claim(world.worker())
    listed = msgspec.structs.replace(job, claim_list=1)
    assert limiting.may_settle_late(listed)
    limiting.update(Limits((), (Restriction("warehouse", False, 2, None, 0.0, 0),), ()))
    assert not limiting.may_settle_late(listed)


def test_what_others_wait_behind_does_not_wait(world: World, limiting: ClaimLimits) -> None:
    """A lane goes on, and a place at a limit is free, when the one before is settled."""
    assert not limiting.may_settle_late(
        claimed(world, "https://shop.example", queue="orders", posting=Posting(fifo=True))
    )
    plain, flow = (
        claimed(world, "https://slow.example"),
        claimed(world, "https://shop.example", flow=FlowControl(key="team")),
    )
    assert limiting.may_settle_late(plain)
    assert limiting.may_settle_late(flow)
    queue, host = (Restriction(name, False, 2, None, 0.0, 0) for name in ("flow:team", "https://slow.example"))
    limiting.update(Limits((queue,), (host,), ()))
    assert not limiting.may_settle_late(plain)
    assert not limiting.may_settle_late(flow)

"""Requests go to hosts that nobody has registered one by one: `https://` stands for every host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import World, aborted, failed
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.http_request import SCHEMES, served_as
from todoku.core.message import Claimed
from todoku.engine.claim import ClaimCursor
from todoku.engine.diagnostics.doctor import examine
from todoku.engine.diagnostics.explanation import explain
from todoku.engine.http.request_draft import Posting
from todoku.engine.operations import limit
from todoku.store.audit import Signed
from todoku.store.claims import Waiting
from todoku.store.database import Slice

SOMEBODY = Signed("somebody", "a test")
FIFO = Posting(fifo=True)


@pytest.fixture
def http(world: World) -> Requesting:
    return Requesting(world)


def places(waiting: Waiting) -> set[str]:
    return {place[1] for place in (*waiting.groups, *waiting.suspects, *waiting.lanes, *waiting.gates)}


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        ("https://shop.example", "https://"),
        ("http://127.0.0.1:9", "http://"),
        ("http://[::1]:9", "http://"),
        ("https://", "https://"),
        ("http", "http"),
        ("mail", "mail"),
    ],
)
def test_a_host_is_served_by_its_scheme_and_anything_else_by_its_name(destination: str, name: str) -> None:
    assert served_as(destination) == name


@pytest.mark.parametrize(
    ("served", "found"),
    [
        (["https://"], {"https://a.example", "https://b.example:8443"}),
        (["http://"], {"http://a.example"}),
        (["http://", "https://"], {"https://a.example", "https://b.example:8443", "http://a.example"}),
        (["http", "h"], {"http", "h"}),
        (["https://a.example"], {"https://a.example"}),
        (["mail"], set()),
    ],
)
def test_a_worker_finds_the_hosts_of_its_schemes_and_no_others(
    world: World, http: Requesting, served: Sequence[str], found: set[str]
) -> None:
    """The queries say the same as `served_as`; also of what waits in lanes, and of what lost its worker."""
    for url in ("https://a.example/x", "https://b.example:8443/", "http://a.example/"):
        http.post(url)
        http.post(url, queue="orders", posting=FIFO)
    world.publish(to=("http", "h"))
    assert places(world.store.claims.waiting(served)) == found
    world.claim(world.worker(lease=30))
    world.advance(60)
    world.store.leases.reclaim()
    assert {place[1] for place in world.store.claims.waiting(served).suspects} == found
    assert world.store.claims.waiting(None).only(served) == world.store.claims.waiting(served)


def test_a_host_is_known_as_long_as_its_scheme_is_announced(world: World, http: Requesting) -> None:
    """UNKNOWN_DESTINATION is for what nobody serves; and the doctor and `explain` say the same."""
    world.worker(lease=10_000)
    http.post("https://a.example/")
    http.post("http://b.example/")
    world.advance(700)
    world.store.destinations.announce(["https://"])
    told = [finding.text for finding in examine(world.store, world.settings()) if finding.what == "destinations"]
    assert told == ["deliveries wait for http://b.example, which no worker has registered"]
    for delivery in world.deliveries():
        situation = world.store.situation(delivery.id)
        assert situation is not None
        causes = {because.cause for because in explain(situation)}
        assert causes == ({"ready"} if delivery.destination == "https://a.example" else {"unregistered"})
    assert world.store.retention.expire(unknown_after=600) == (0, 1)
    (dead,) = world.deliveries(status="aborted")
    assert (dead.destination, dead.reason) == ("http://b.example", "UNKNOWN_DESTINATION")


def test_a_limit_on_a_host_is_one_on_a_destination(world: World) -> None:
    """`todoku limit https://shop.example` needs no --of."""
    world.store.destinations.announce(SCHEMES)
    assert limit(world.store, "https://shop.example", SOMEBODY, concurrency=2) == "destination"
    assert limit(world.store, "flow:team", SOMEBODY, concurrency=2) == "queue"


def test_hundreds_of_hosts_get_their_turn(world: World, http: Requesting) -> None:
    """However many wait, and however little is claimed at once."""
    hosts = {f"https://h{number}.example" for number in range(150)}
    for host in sorted(hosts):
        http.post(host)
    world.publish(50, to=("mail",), queue="mail")
    claims = ClaimCursor(world.store, world.worker(lease=600), ["https://"], monotonic=lambda: 0.0)
    seen: set[str] = set()
    for _ in range(20):
        seen |= {claim.destination for claim in claims.claim(10)}
    assert seen == hosts


def test_a_host_without_room_keeps_none_of_the_others_back(world: World, http: Requesting) -> None:
    """The bulkhead: of one host nothing more may be held, of the others all there is."""
    for number in range(80):
        http.post(f"https://h{number}.example")
        http.post("https://slow.example")

    def room(_queue: str, destination: str) -> int:
        return 0 if destination == "https://slow.example" else 5

    claims = ClaimCursor(world.store, world.worker(lease=600), ["https://"], monotonic=lambda: 0.0, room=room)
    found = [claim.destination for _ in range(10) for claim in claims.claim(100)]
    assert len(found) == len(set(found)) == 80


def test_hosts_share_a_claim(world: World, http: Requesting) -> None:
    """Side by side, each over few connections; and what has no bound is taken as it comes."""
    for number in range(90):
        http.post(f"https://h{number // 30}.example")
    worker = world.worker(lease=600)
    shared = ClaimCursor(world.store, worker, ["https://"], monotonic=lambda: 0.0, room=lambda _queue, _destination: 20)
    found = Counter(claim.destination for claim in shared.claim(30))
    assert found == {f"https://h{number}.example": 10 for number in range(3)}
    unlimited_room = ClaimCursor(world.store, worker, ["https://"], monotonic=lambda: 0.0)
    assert len({claim.destination for claim in unlimited_room.claim(20)}) == 1


def test_lanes_with_little_room_keep_none_of_the_others_back(world: World, http: Requesting) -> None:
    for number in range(30):
        http.post(f"https://h{number % 3}.example", queue=f"q{number}", posting=FIFO)

    def room(_queue: str, destination: str) -> int:
        return {"https://h0.example": 0, "https://h1.example": 1}.get(destination, 1 << 30)

    claims = ClaimCursor(world.store, world.worker(lease=600), ["https://"], monotonic=lambda: 0.0, room=room)
    found = [claim.destination for _ in range(2) for claim in claims.claim_lanes(lanes=50, limit=100)]
    assert sorted(found) == ["https://h1.example", *["https://h2.example"] * 10]


def test_a_queue_of_requests_waits_for_the_retries_of_its_first_and_then_goes_on(
    world: World, http: Requesting
) -> None:
    """I10, S4: one at a time, in order, whatever hosts they are for; a dead letter does not block the queue."""
    for url in ("https://a.example", "https://b.example", "http://c.example"):
        http.post(url, queue="orders", posting=FIFO)
    (first,) = _heads(http, failed("HTTP_5XX", delay=60))
    assert first.destination == "https://a.example"
    assert http.claim() == []
    world.advance(61)
    (again,) = _heads(http, answered(500, dead=True))
    assert (again.id, again.attempt) == (first.id, 2)
    assert [claim.destination for claim in _heads(http, SUCCEEDED)] == ["https://b.example"]
    assert [claim.destination for claim in _heads(http, SUCCEEDED)] == ["http://c.example"]


def test_a_lane_of_a_host_whose_owner_died_goes_on_too(world: World, http: Requesting) -> None:
    for _ in range(2):
        http.post("https://a.example", queue="orders", posting=FIFO)
    assert world.claim_lanes(world.worker(lease=30))
    world.advance(60)
    assert world.store.leases.reclaim(max_lost=1).aborted >= 1
    assert not [lane for lane in world.sql("select parked from todoku_lane") if lane[0]]


def test_a_lane_of_anything_else_is_parked_by_its_dead_letter(world: World) -> None:
    """The default stays for ordered destinations."""
    world.publish(2, ordered=True, key="k")
    world.settle(world.claim_lanes(world.worker(), limit=1), aborted())
    assert [bool(parked) for (parked,) in world.sql("select parked from todoku_lane")] == [True]


def _heads(http: Requesting, settlement: Settlement) -> list[Claimed]:
    """The first of each lane, settled; what was claimed behind it is given back, as a worker does."""
    first, *rest = http.claim()
    http.world.settle([first], settlement)
    http.world.store.claims.release(rest)
    return [first]


def test_slices_of_hosts_are_as_any_others(world: World, http: Requesting) -> None:
    http.post("https://a.example")
    (claim,) = world.store.claims.take(world.worker(), [Slice("http", "https://a.example", 0)], limit=5)
    assert claim.topic == "http.request"

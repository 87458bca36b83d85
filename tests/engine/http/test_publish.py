"""Publishing requests: groups fan out, queues and flow keys come into being, and nothing is half stored (I1, I2)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec
import pytest

from tests.support.world import SOMEBODY, World
from todoku.app import App
from todoku.core.errors import InvalidMessage
from todoku.core.http_request import FlowControl, HttpRequest, request_of
from todoku.engine.group_commit import GroupCommit
from todoku.engine.http import flow_control, request_queues, url_groups
from todoku.engine.http.publish_requests import CheckedRequest, RequestPublisher
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.url_groups import EndpointName
from todoku.store.deliveries import Filter

URL = "https://shop.example/hook"


@pytest.fixture
def box(world: World) -> Iterator[App]:
    box = App(world.url)
    yield box
    box.close()


@pytest.fixture
def posts(box: App) -> RequestPublisher:
    return RequestPublisher(box.outbox)


def post(url: str = URL, *, body: bytes = b"{}", posting: Posting | None = None, **request: object) -> CheckedRequest:
    made = msgspec.structs.replace(HttpRequest(url=url), **request)
    return CheckedRequest(request=made, body=body, posting=posting or Posting())


def test_a_url_is_one_message_with_one_delivery(world: World, posts: RequestPublisher) -> None:
    ((published,)) = posts.put([post()])
    assert [sent.url for sent in published.sent] == [URL]
    assert not published.to_group
    (delivery,) = world.deliveries()
    assert (delivery.destination, delivery.queue, delivery.max_attempts) == ("https://shop.example", "http", 4)


def test_a_group_is_a_message_for_each_endpoint_with_its_headers_as_defaults(
    world: World, posts: RequestPublisher
) -> None:
    url_groups.put(
        world.store, "shops", [EndpointName("https://a.example/", "a"), EndpointName("https://b.example/")], SOMEBODY
    )
    url_groups.set_headers(world.store, "shops", {"X-Group": "yes", "X-Both": "group"}, SOMEBODY)
    (published,) = posts.put([post("", group="shops", headers={"X-Both": "message"})])
    assert published.to_group
    assert {sent.url for sent in published.sent} == {"https://a.example/", "https://b.example/"}
    assert len({sent.message.id for sent in published.sent}) == 2
    stories = [world.store.messages.story(sent.message.id) for sent in published.sent]
    found = [request_of(story.message.headers) for story in stories if story is not None]
    assert {(each.url, each.group, each.endpoint) for each in found if each} == {
        ("https://a.example/", "shops", "a"),
        ("https://b.example/", "shops", None),
    }
    assert all(each and each.headers == {"X-Group": "yes", "X-Both": "message"} for each in found)


def test_a_group_that_is_not_there_is_an_error_and_nothing_of_the_batch_is_stored(
    world: World, posts: RequestPublisher
) -> None:
    with pytest.raises(InvalidMessage, match=r"nobody.*no endpoints"):
        posts.put([post(), post("", group="nobody")])
    assert world.deliveries() == []


def test_a_disabled_endpoint_is_a_dead_letter_and_never_nothing(world: World, posts: RequestPublisher) -> None:
    """I1: what was published to a group can be found for each of its endpoints."""
    url_groups.put(
        world.store, "shops", [EndpointName("https://a.example/"), EndpointName("https://gone.example/")], SOMEBODY
    )
    assert url_groups.disable(world.store, "https://gone.example/", "HTTP_410", SOMEBODY)
    posts.put([post("", group="shops")])
    assert {(each.destination, each.status, each.reason) for each in world.deliveries()} == {
        ("https://a.example", "pending", None),
        ("https://gone.example", "aborted", "ENDPOINT_DISABLED"),
    }
    assert url_groups.enable(world.store, "https://gone.example/", SOMEBODY)
    assert not url_groups.enable(world.store, "https://gone.example/", SOMEBODY)


def test_an_id_deduplicates_each_endpoint_of_a_group_by_itself(world: World, posts: RequestPublisher) -> None:
    url_groups.put(
        world.store, "shops", [EndpointName("https://a.example/"), EndpointName("https://b.example/")], SOMEBODY
    )
    again = post("", group="shops", posting=Posting(deduplication_id="order-7"))
    first, second = posts.put([again]), posts.put([again])
    assert [sent.message.duplicate for sent in first[0].sent] == [False, False]
    assert [sent.message.duplicate for sent in second[0].sent] == [True, True]
    assert [sent.message.id for sent in first[0].sent] == [sent.message.id for sent in second[0].sent]
    assert len(world.deliveries()) == 2


def test_by_content_the_same_body_is_a_repetition_and_another_is_not(world: World, posts: RequestPublisher) -> None:
    same = msgspec.structs.replace(post(body=b"1"), by_content=True)
    other = msgspec.structs.replace(post(body=b"2"), by_content=True)
    duplicates = [published.sent[0].message.duplicate for published in posts.put([same, other, same])]
    assert duplicates == [False, False, True]


def test_a_queue_comes_into_being_one_at_a_time_and_is_a_lane(world: World, posts: RequestPublisher) -> None:
    """I10: what is enqueued to one queue is sent in order, whatever hosts it goes to."""
    posts.put([post(queue="orders"), post("https://other.example/", queue="orders")])
    found = request_queues.get(world.store, "orders")
    assert found is not None
    assert (found.parallelism, found.paused, found.lag) == (1, False, 2)
    lanes = {each.lane for each in world.deliveries()}
    assert len(lanes) == 1
    assert None not in lanes
    claims = world.claim_lanes(world.worker())
    assert [claim.destination for claim in claims] == ["https://shop.example", "https://other.example"]


def test_a_queue_with_more_at_once_is_a_limit(world: World, posts: RequestPublisher) -> None:
    request_queues.upsert(world.store, "orders", SOMEBODY, parallelism=3)
    posts.put([post(queue="orders")])
    assert {each.lane for each in world.deliveries()} == {None}
    (limit,) = [limit for limit in world.store.limits.read().queues if limit.name == "http:orders"]
    assert limit.concurrency == 3


def test_a_flow_key_is_known_after_the_first_publish_and_a_pin_stays(world: World, posts: RequestPublisher) -> None:
    flow = FlowControl(key="tenant", parallelism=2, rate=10, period=5.0)
    posts.put([post(flow=flow)])
    found = flow_control.get(world.store, "tenant")
    assert found is not None
    assert (found.parallelism_max, found.rate_max, found.period, found.waiting) == (2, 10, 5.0, 1)
    flow_control.pin(world.store, "tenant", SOMEBODY, parallelism=1)
    RequestPublisher(App(world.url).outbox).put(
        [post(flow=FlowControl(key="tenant", parallelism=9, rate=10, period=5.0))]
    )
    found = flow_control.get(world.store, "tenant")
    assert found is not None
    assert (found.parallelism_max, found.pinned_parallelism, found.pinned_rate) == (1, True, False)
    flow_control.unpin(world.store, "tenant", SOMEBODY)
    found = flow_control.get(world.store, "tenant")
    assert found is not None
    assert (found.parallelism_max, found.pinned_parallelism) == (9, False)


def test_with_a_queue_and_a_flow_key_the_queue_rules_and_the_key_is_recorded(
    world: World, posts: RequestPublisher
) -> None:
    posts.put([post(queue="orders", flow=FlowControl(key="tenant", parallelism=2))])
    (delivery,) = world.deliveries()
    assert (delivery.queue, delivery.key) == ("http:orders", "tenant")
    assert flow_control.get(world.store, "tenant") is None


def test_the_usual_publish_asks_the_database_for_nothing(world: World, box: App) -> None:
    """A queue and a flow key that are known cost a publish no query of their own."""
    posts, now = RequestPublisher(box.outbox), [0.0]
    posts = RequestPublisher(box.outbox, monotonic=lambda: now[0])
    usual = [post(queue="orders"), post(flow=FlowControl(key="tenant", rate=5)), post()]

    class Puts:
        async def put(self, drafts: list) -> list:  # type: ignore[type-arg]
            return await box.outbox.aput(drafts, None)

    asyncio.run(posts.publish(Puts(), usual))
    world.sql("update todoku_queue set spec = null, created_at = null")  # whoever looks would make it anew
    asyncio.run(posts.publish(Puts(), usual))
    assert request_queues.get(world.store, "orders") is None
    now[0] += 60
    asyncio.run(posts.publish(Puts(), usual))
    assert request_queues.get(world.store, "orders") is not None


def test_callers_that_publish_together_get_their_own_messages(world: World, box: App) -> None:
    posts, together = RequestPublisher(box.outbox), GroupCommit(box.outbox)
    url_groups.put(
        world.store, "shops", [EndpointName("https://a.example/"), EndpointName("https://b.example/")], SOMEBODY
    )

    async def all_of_them() -> list[list[str]]:
        calls = [posts.publish(together, [post(f"https://x{n}.example/"), post("", group="shops")]) for n in range(10)]
        return [[sent.url for each in done for sent in each.sent] for done in await asyncio.gather(*calls)]

    found = asyncio.run(all_of_them())
    assert [urls[0] for urls in found] == [f"https://x{n}.example/" for n in range(10)]
    assert all(sorted(urls[1:]) == ["https://a.example/", "https://b.example/"] for urls in found)
    assert len(world.store.deliveries.find(Filter(), limit=100).items) == 30


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (post(queue="no spaces"), "queue"),
        (post(flow=FlowControl(key="a/b")), "flow control key"),
        (post(flow=FlowControl(key="k", parallelism=0)), "parallelism"),
        (post(flow=FlowControl(key="k", rate=-1)), "rate"),
        (post(flow=FlowControl(key="k", rate=1, period=1e9)), "period"),
        (post("", group="a b"), "URL group"),
        (post(body=b"x" * (1 << 20) + b"x"), "body"),
    ],
)
def test_bad_input_is_refused_by_its_name_and_nothing_is_stored(
    world: World, posts: RequestPublisher, bad: CheckedRequest, named: str
) -> None:
    with pytest.raises(InvalidMessage, match=named):
        posts.put([post(), bad])
    assert world.deliveries() == []
    assert world.store.queues.page("flow:") == world.store.queues.page("http:") == ()

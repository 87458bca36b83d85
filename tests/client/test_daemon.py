"""The client and a real `todoku run`, to a real receiver: the same words as at QStash, and a server that is killed."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.api.qstash.receiving import Receiver, receiver
from tests.client.conftest import fell_back
from tests.daemon.running import Daemon, Shop, shop_at, until
from tests.support.ports import free_port
from tests.support.world import World
from todoku.client import Queue, QueueRefused, connect
from todoku.client.failed_events import FailedEvents

TOKEN = "a-token-of-the-tests-0123456789"
PUBLISHES = 1000
ENVIRON = {
    "TODOKU_TOKEN": TOKEN, "TODOKU_HTTP_LOOPBACK": "true", "TODOKU_API_RATE": "100000",
    "TODOKU_LEASE_SEC": "3",  # what a worker that was killed alone with its supervisor held is free after that
}  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path, url: str) -> Iterator[Shop]:
    with shop_at(tmp_path, url) as shop:
        shop.box.migrate()
        yield shop


@pytest.fixture
def there() -> Iterator[Receiver]:
    with receiver() as found:
        yield found


def started(shop: Shop, port: int) -> Daemon:
    """A daemon on a port that can be had again."""
    daemon = shop.start("run", "--app", "shop:box", "--workers", "1", TODOKU_PORT=str(port), **ENVIRON)
    daemon.url = f"http://127.0.0.1:{port}"
    daemon.until_ready()
    return daemon


def test_what_is_published_arrives_and_what_died_is_cared_for(shop: Shop, there: Receiver) -> None:
    """S4-13, S4-28 to S4-33, on both databases; then the failed events of this queue in a table of the same one."""
    daemon = started(shop, free_port())
    with connect(daemon.url, token=TOKEN, within=60) as queue:
        done = queue.publish(f"{there.url}/paid", {"n": 1}, deduplication_id="evt_1", headers={"X-Event-Id": "evt_1"})
        assert queue.publish(f"{there.url}/paid", {"n": 1}, deduplication_id="evt_1").duplicate
        received = there.one("/paid")
        assert (received.body, received.headers["content-type"]) == (b'{"n":1}', "application/json")
        assert received.headers["idempotency-key"] == received.headers["x-event-id"] == "evt_1"
        assert received.headers["upstash-message-id"] == done.id
        assert queue.messages.get(done.id).body == b'{"n":1}'
        cared_for(queue, there, shop)
        with pytest.raises(QueueRefused, match="nobody"):
            queue.publish("nobody", 1)


def cared_for(queue: Queue, there: Receiver, shop: Shop) -> None:
    refused = f"{there.url}/status/489"
    first = queue.enqueue("orders", refused, {"n": 2}, deduplication_id="evt_2")
    (died,) = until(lambda: queue.dlq.list().items, "a dead letter")
    assert (died.message.id, died.status, died.message.queue) == (first.id, 489, "orders")
    events = FailedEvents(shop.box)
    assert [(event.event_id, new) for event, new in events.sync(queue)] == [("evt_2", True)]
    assert [new for _, new in events.sync(queue)] == [False]
    events.rerun(queue, "evt_2", by="ada", why="mended")
    again = until(lambda: [one for one in queue.dlq.list(to=refused).items if one.id != died.id], "it died again")[0]
    assert [(event.dlq_id, new) for event, new in events.sync(queue)] == [(again.id, True)]
    queue.dlq.delete(again.id, by="ada", why="a test")
    with pytest.raises(QueueRefused, match="404"):
        queue.dlq.get(again.id)
    later = queue.publish(f"{there.url}/later", 1, delay=3600)
    queue.messages.cancel(later.id, by="ada", why="a test")
    assert there.at("/later") == []


@pytest.mark.crash
@pytest.mark.slow
def test_a_server_that_is_killed_in_the_middle_of_a_thousand_publishes_has_each_once(
    tmp_path: Path, sqlite_url: str, there: Receiver
) -> None:
    """I1, S4-52: kill -9 of the server and its workers, and back. Each event is one message, and arrives.

    A request that was under way when its worker was killed is sent again (I13), under the same message id.
    """
    with shop_at(tmp_path, sqlite_url) as shop:
        shop.box.migrate()
        port = free_port()
        daemon = started(shop, port)
        pids = [worker["pid"] for worker in daemon.workers()]
        half, gone = threading.Event(), threading.Event()
        with connect(daemon.url, token=TOKEN, fallback="spool", spool=str(tmp_path / "spool.db"), within=5) as queue:

            def publish(thread: int) -> None:
                for n in range(thread, PUBLISHES, 4):
                    if n >= PUBLISHES // 2:
                        half.set()
                    if n >= PUBLISHES - 100:
                        assert gone.wait(120)  # however fast the others were
                    queue.publish(f"{there.url}/paid", n, deduplication_id=f"evt_{n}")

            threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            assert half.wait(120)
            killed(daemon, pids)
            gone.set()
            until(lambda: queue.spooled() > 5, "something is spooled")
            started(shop, port)
            for thread in threads:
                thread.join(120)
            until(lambda: queue.spooled() == 0, "everything is forwarded")
            assert fell_back(queue)["spool"] > 5
        until(lambda: len({one.body for one in there.at("/paid")}) == PUBLISHES, "each has arrived", seconds=150)
        world = World("sqlite", sqlite_url)
        ((stored,),) = world.sql("select count(*) from todoku_message where topic = 'http.request'")
        world.close()
        ids = {(json.loads(one.body), one.headers["upstash-message-id"]) for one in there.at("/paid")}
    assert (stored, len(ids)) == (PUBLISHES, PUBLISHES)
    assert set(Counter(n for n, _ in ids).values()) == {1}


def killed(daemon: Daemon, pids: list[int]) -> None:
    daemon.process.kill()
    daemon.process.wait()
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

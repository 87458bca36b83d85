"""`@box.after`: whoever is told how deliveries end, is told by a job like any other."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import UUID

import msgspec
import pytest

import todoku
from tests.support.world import SOMEBODY, World
from todoku.store.deliveries import Filter


def test_a_hook_is_told_of_every_end_it_asked_for(box: todoku.App, world: World) -> None:
    told: list[todoku.Ending] = []

    @box.after("succeeded", "aborted")
    async def note(ctx: todoku.Context, ending: todoku.Ending) -> None:
        assert ctx.topic == f"todoku.{ending.status}"
        told.append(ending)

    @box.job(max_attempts=2, backoff=todoku.table(0))
    async def work(how: str) -> None:
        if how == "abort":
            raise todoku.Abort("REFUSED", "no such person")
        if how == "fail":
            raise ValueError("always")

    done = work.using(key="k").enqueue("done")
    refused = work.enqueue("abort")
    failing = work.enqueue("fail")
    box.drain()
    found = {ending.message_id: ending for ending in told}
    assert len(told) == 3
    assert found[done.id].status is todoku.Status.SUCCEEDED
    assert (found[done.id].topic, found[done.id].destination, found[done.id].queue) == ("work", "work", "default")
    assert (found[done.id].key, found[done.id].attempts, found[done.id].reason) == ("k", 1, None)
    assert (found[refused.id].status, found[refused.id].reason) == ("aborted", "REFUSED")
    assert found[refused.id].error == "no such person"
    assert (found[failing.id].status, found[failing.id].attempts) == ("aborted", 2)
    assert box.drain() == 0  # what hooks do fires no hooks


def test_a_hook_hears_only_of_what_it_asked_for(box: todoku.App) -> None:
    told: list[str] = []

    @box.job(queue="fast")
    async def one() -> None: ...

    @box.job
    async def two() -> None: ...

    @box.on("order.created", name="third")
    async def three(event: Any) -> None: ...

    @box.after("succeeded", destination=one)
    async def of_a_job(ending: todoku.Ending) -> None:
        told.append(f"job {ending.destination}")

    @box.after("succeeded", from_queue="fast", queue="hooks")
    async def of_a_queue() -> None:
        told.append("queue fast")

    @box.after("succeeded", topic="order.*", name="orders")
    async def of_a_topic(ending: todoku.Ending) -> None:
        told.append(f"topic {ending.topic}")

    @box.after("aborted")
    async def of_nothing(ending: todoku.Ending) -> None:
        told.append("aborted")

    one.enqueue()
    two.enqueue()
    box.publish("order.created", {}, tx=None)
    box.drain()
    assert sorted(told) == ["job one", "queue fast", "topic order.created"]
    assert {hook.name for hook in box.store.hooks()} == {"of_a_job", "of_a_queue", "orders", "of_nothing"}


def test_a_hook_that_fails_is_retried_and_then_a_dead_letter_like_any_job(box: todoku.App, world: World) -> None:
    attempts: list[int] = []

    @box.after("succeeded", max_attempts=2, backoff=todoku.table(0))
    def broken(ctx: todoku.Context, ending: todoku.Ending) -> None:
        attempts.append(ctx.attempt)
        raise OSError("nobody there")

    @box.job
    def work() -> None: ...

    work.enqueue()
    box.drain()
    assert attempts == [1, 2]
    (dead,) = world.deliveries(status="aborted")
    assert (dead.destination, dead.topic) == ("broken", "todoku.succeeded")


def test_a_transactional_hook_writes_its_audit_with_its_success(box: todoku.App, world: World) -> None:
    """I6, S3-97: an audit row for each end, once, whichever end it is."""
    world.sql("create table my_audit (message text, status text)")

    @box.after("succeeded", "aborted", transactional=True)
    def audit(ctx: todoku.Context, ending: todoku.Ending) -> None:
        text = (
            "insert into my_audit values (?, ?)"
            if world.backend == "sqlite"
            else "insert into my_audit values (%s, %s)"
        )
        ctx.tx.execute(text, (str(ending.message_id), ending.status.value))

    @box.job(transactional=True)
    def work(ctx: todoku.Context, fails: bool) -> None:
        if fails:
            raise todoku.Abort("REFUSED")

    well, badly = work.enqueue(False), work.enqueue(True)
    box.drain()
    assert sorted(world.sql("select message, status from my_audit")) == sorted(
        [(str(well.id), "succeeded"), (str(badly.id), "aborted")]
    )


def test_a_cancel_by_somebody_without_the_program_fires_the_hook(box: todoku.App, world: World) -> None:
    told: list[str | None] = []

    @box.after("aborted")
    async def note(ending: todoku.Ending) -> None:
        told.append(ending.reason)

    @box.job
    async def work() -> None: ...

    box.migrate()  # announces what is declared here
    work.using(delay=3600).enqueue()
    world.another_store().acts.cancel(Filter(destination="work"), SOMEBODY)
    box.drain()
    assert told == ["CANCELLED"]


# ---------------------------------------------------------------------------------------------- webhooks


class Endpoint(ThreadingHTTPServer):
    """An HTTP server that answers 503 so many times, then takes what it is sent."""

    def __init__(self, failures: int) -> None:
        super().__init__(("127.0.0.1", 0), _Receiving)
        self.failures = failures
        self.received: list[tuple[str | None, dict[str, Any]]] = []
        self.refused = 0


class _Receiving(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        endpoint = self.server
        assert isinstance(endpoint, Endpoint)
        body = self.rfile.read(int(self.headers["content-length"]))
        if endpoint.failures > 0:
            endpoint.failures -= 1
            endpoint.refused += 1
            self.send_response(503)
        else:
            endpoint.received.append((self.headers["idempotency-key"], msgspec.json.decode(body)))
            self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def endpoint(failures: int = 0) -> Iterator[Endpoint]:
    server = Endpoint(failures)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()


def test_a_webhook_that_fails_twice_arrives(box: todoku.App, world: World) -> None:
    """S3-95: the document is sent until somebody takes it; its key is the same on every attempt."""
    keys: list[str] = []
    with endpoint(failures=2) as server:

        def webhook(message: todoku.Outgoing) -> None:
            keys.append(message.idempotency_key)
            headers = {"content-type": message.content_type, "idempotency-key": message.idempotency_key}
            with closing(HTTPConnection(*server.server_address, timeout=10)) as connection:
                connection.request("POST", "/hook", message.payload, headers)
                status = connection.getresponse().status
            if status >= 300:
                raise todoku.Retry(reason=f"HTTP_{status // 100}XX")

        box.after("aborted", to=webhook, topic="work")

        @box.job(max_attempts=1)
        def work() -> None:
            raise todoku.Abort("REFUSED")

        handle = work.enqueue()
        for _ in range(3):
            box.drain()
            world.advance(12)  # past the back-off
        ((key, document),) = server.received
    assert (server.refused, len(keys), set(keys)) == (2, 3, {key})
    ending = msgspec.convert(document, todoku.Ending)
    assert (ending.message_id, ending.reason, ending.status) == (handle.id, "REFUSED", "aborted")
    assert "payload" not in document


def test_a_hook_may_be_a_destination_or_the_name_of_one_served_elsewhere(box: todoku.App, world: World) -> None:
    batches: list[list[todoku.Outgoing]] = []

    class Sink:
        name = "sink"

        async def send(self, batch: Any) -> None:
            batches.append(list(batch))

    box.after("succeeded", "aborted", to=Sink())
    box.after("succeeded", to="elsewhere")

    @box.job
    async def work() -> None: ...

    handle = work.enqueue()
    box.drain()
    ((message,),) = batches
    assert message.topic == "todoku.succeeded"
    assert UUID(msgspec.json.decode(message.payload)["message_id"]) == handle.id
    assert [each.queue for each in world.deliveries(destination="elsewhere")] == ["elsewhere"]


# ------------------------------------------------------------------------------------------------ refused


def refusals(box: todoku.App) -> Iterator[tuple[str, Any]]:
    def hook(ending: todoku.Ending) -> None: ...

    @box.job
    def work(n: int) -> None: ...

    yield "'failed'", lambda: box.after("failed")  # type: ignore[arg-type]
    yield "nothing", box.after
    yield "'aborted', 'aborted'", lambda: box.after("aborted", "aborted")
    yield "a hook cannot be ordered", lambda: box.after("aborted", ordered=True)(hook)
    yield "a hook cannot be unique_for", lambda: box.after("aborted", unique_for=5)(hook)
    yield "is a job already", lambda: box.after("aborted")(work)
    yield "a job takes arguments", lambda: box.after("aborted", to=work)  # type: ignore[call-overload]
    yield "its own options", lambda: box.after("aborted", to="there", queue="x")  # type: ignore[call-overload]
    yield "destination cannot be 7", lambda: box.after("aborted", destination=7)  # type: ignore[call-overload]
    yield "queue cannot be ''", lambda: box.after("aborted", from_queue="")
    yield "max_attempts cannot be 0", lambda: box.after("aborted", max_attempts=0)(hook)
    yield "takes one event", lambda: box.after("aborted", name="two")(lambda one, two: None)


def test_what_cannot_be_a_hook_is_refused_where_it_is_declared(box: todoku.App) -> None:
    for text, declare in refusals(box):
        with pytest.raises(todoku.InvalidSetting) as caught:
            declare()
        assert text in str(caught.value) or text in caught.value.hint, str(caught.value)
        assert caught.value.hint
    assert box.registry.hooks == []


def test_a_hook_hears_of_an_event_once(box: todoku.App) -> None:
    box.after("aborted", to="there")
    box.after("succeeded", to="there")
    with pytest.raises(todoku.InvalidSetting, match="there is declared twice for aborted"):
        box.after("aborted", to="there", topic="order.*")


def test_a_bad_pattern_of_topics_is_refused(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidMessage, match="is not a topic"):
        box.after("aborted", topic="no spaces here")

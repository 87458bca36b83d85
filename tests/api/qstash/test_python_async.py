"""The async client for Python: the same endpoints, awaited."""

from __future__ import annotations

import asyncio
import time

import pytest
from qstash import AsyncQStash
from qstash.dlq import ListDlqMessagesResponse
from qstash.errors import QStashError
from qstash.log import LogState
from qstash.message import PublishResponse

from tests.api.qstash.conftest import CURRENT, NEXT, Server
from tests.daemon.running import PATIENCE


async def _dead(aclient: AsyncQStash, label: str) -> ListDlqMessagesResponse:
    """Wait until there is a dead letter with this label."""
    deadline = time.monotonic() + PATIENCE
    while True:
        found = await aclient.dlq.list(filter={"label": label})
        if found.messages:
            return found
        assert time.monotonic() < deadline, "waited for a dead letter"
        await asyncio.sleep(0.02)


async def test_publish_log_get_and_dead_letter(aclient: AsyncQStash, server: Server, name: str) -> None:
    published = await aclient.message.publish_json(url=server.to("/status/404"), body={"n": 1}, retries=0, label=name)
    assert isinstance(published, PublishResponse)
    message = await aclient.message.get(published.message_id)
    assert (message.body, message.label) == ('{"n": 1}', name)
    letters = (await _dead(aclient, name)).messages
    letter = await aclient.dlq.get(letters[0].dlq_id)
    assert (letter.response_status, letter.response_body) == (404, "404 Not Found")
    logs = (await aclient.log.list(filter={"message_id": published.message_id})).logs
    assert {LogState.CREATED, LogState.FAILED} <= {log.state for log in logs}
    assert await aclient.dlq.delete_many([letter.dlq_id]) == 1
    with pytest.raises(QStashError, match="404"):
        await aclient.dlq.delete(letter.dlq_id)


async def test_enqueue_batch_and_cancel(aclient: AsyncQStash, server: Server, name: str) -> None:
    await aclient.queue.upsert(name, parallelism=2, paused=True)
    await aclient.message.enqueue(queue=name, url=server.to(f"/{name}"), body="1")
    await aclient.message.batch_json([{"queue": name, "url": server.to(f"/{name}"), "body": {"n": 2}}])
    queue = await aclient.queue.get(name)
    assert (queue.parallelism, queue.lag, queue.paused) == (2, 2, True)
    assert name in [each.name for each in await aclient.queue.list()]
    await aclient.queue.resume(name)
    await aclient.queue.pause(name)
    await aclient.queue.delete(name)
    waiting = await aclient.message.publish(url=server.to(f"/{name}/later"), delay="1h")
    assert isinstance(waiting, PublishResponse)
    await aclient.message.cancel(waiting.message_id)
    assert await aclient.message.cancel_many([waiting.message_id]) in (0, 1)


async def test_groups_and_schedules(aclient: AsyncQStash, server: Server, name: str) -> None:
    await aclient.url_group.delete(name)
    await aclient.url_group.upsert_endpoints(name, [{"url": server.to(f"/{name}"), "name": "one"}])
    assert [each.name for each in (await aclient.url_group.get(name)).endpoints] == ["one"]
    assert name in [each.name for each in await aclient.url_group.list()]
    id = await aclient.schedule.create(destination=name, cron="0 0 1 1 *")
    await aclient.schedule.pause(id)
    assert (await aclient.schedule.get(id)).paused
    await aclient.schedule.resume(id)
    assert [each.destination for each in await aclient.schedule.list() if each.schedule_id == id] == [name]
    await aclient.schedule.delete(id)
    await aclient.url_group.remove_endpoints(name, [{"name": "one"}])


async def test_flow_control_and_keys(aclient: AsyncQStash, server: Server, name: str) -> None:
    await aclient.message.publish(url=server.to("/ok"), flow_control={"key": name, "parallelism": 2})
    assert (await aclient.flow_control.get(name)).parallelism_max == 2
    await aclient.flow_control.pause(name)
    await aclient.flow_control.resume(name)
    await aclient.flow_control.pin(name, {"parallelism": 7})
    assert (await aclient.flow_control.get(name)).is_pinned_parallelism
    await aclient.flow_control.unpin(name, {"parallelism": True})
    await aclient.flow_control.reset_rate(name)
    assert (await aclient.flow_control.get_global_parallelism()).parallelism_max > 0
    keys = await aclient.signing_key.get()
    assert (keys.current, keys.next) == (CURRENT, NEXT)

"""What is over is gone for the clients, who wait for it: their own tests cancel, send again and delete like this."""

from __future__ import annotations

import httpx
import pytest
from qstash import QStash
from qstash.errors import QStashError
from qstash.message import PublishResponse

from tests.api.qstash.conftest import Server
from tests.daemon.running import until
from tests.support.nodejs import NodeClient, NodeError


def test_a_cancelled_message_is_not_found(node: NodeClient, client: QStash, server: Server, name: str) -> None:
    """The client for Node waits for these words after it cancelled by a filter. A delivered one is still told."""
    kept = client.message.publish(url=server.to(f"/{name}"), delay="1h")
    gone = client.message.publish(url=server.to(f"/{name}"), delay="1h", label=name)
    assert isinstance(kept, PublishResponse)
    assert isinstance(gone, PublishResponse)
    assert node.call("messages.cancel", {"filter": {"label": name}}) == {"cancelled": 1}
    with pytest.raises(NodeError, match="not found") as told:
        node.call("messages.get", gone.message_id)
    assert told.value.status == 404
    with pytest.raises(QStashError, match="not found"):
        client.message.get(gone.message_id)
    assert client.message.get(kept.message_id).message_id == kept.message_id
    client.message.cancel(kept.message_id)


def test_a_dead_letter_that_was_sent_again_may_be_deleted_and_one_that_never_was_may_not(
    node: NodeClient, raw: httpx.Client, server: Server, name: str
) -> None:
    """A client that sends again and then deletes by the same id has what it wants: the letter is not there."""
    node.call("publish", {"url": server.to("/status/404"), "retries": 0, "label": name})

    def letters() -> list[str]:
        return [each["dlqId"] for each in raw.get("/v2/dlq", params={"label": name}).json()["messages"]]

    (first,) = until(letters, "a dead letter")
    assert node.call("dlq.retry", first)["responses"]
    assert node.call("dlq.delete", first) == {"deleted": 1}
    (second,) = until(lambda: [id for id in letters() if id != first], "dead again, under another id")
    assert raw.delete(f"/v2/dlq/{first}").status_code == 200
    assert letters() == [second]
    assert [raw.delete(f"/v2/dlq/{id}").status_code for id in (second, second, first)] == [200, 404, 404]
    assert raw.delete("/v2/dlq/999999999-0").status_code == 404

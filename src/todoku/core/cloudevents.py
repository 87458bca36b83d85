"""The headers of a message on its way to a broker: CloudEvents 1.0 in binary mode, and todoku's own.

The payload travels as it is; what a consumer may want to know about it is in headers. Each broker's binding of
CloudEvents spells the attributes its own way (`ce_id`, `ce-id`, `cloudEvents:id`): that is the prefix.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidSetting

MESSAGE_ID: Final = "todoku-message-id"
"""By this a consumer knows that it has seen a message before."""

IDEMPOTENCY_KEY: Final = "todoku-idempotency-key"
TOPIC: Final = "todoku-topic"
KEY: Final = "todoku-key"

DEFAULT_SOURCE: Final = "/todoku"


def check_source(source: str) -> str:
    """A source names who produced an event: a URI reference, not empty."""
    if not source or any(character.isspace() for character in source):
        raise InvalidSetting(
            f"source cannot be {source!r}", hint="give a URI reference, as https://shop.example/orders or /shop"
        )
    return source


def attributes(message: Outgoing, *, source: str) -> dict[str, str]:
    """The CloudEvents attributes of a message, but for `datacontenttype`: that is the broker's own content type.

    (source, id) is unique for an event, however often it is sent. A key is the `subject`, and the `partitionkey`.
    """
    found = {
        "specversion": "1.0",
        "id": message.message_id,
        "source": source,
        "type": message.topic,
        "time": datetime.fromtimestamp(message.created_at, UTC).isoformat().replace("+00:00", "Z"),
    }
    if message.key is not None:
        found["subject"] = found["partitionkey"] = message.key
    return found


def headers(message: Outgoing, *, source: str, prefix: str) -> dict[str, str]:
    """All headers: the publisher's and the trace's as they are, CloudEvents under `prefix`, then todoku's own."""
    found = dict(message.headers)
    for name, value in attributes(message, source=source).items():
        found[prefix + name] = value
    found[MESSAGE_ID] = message.message_id
    found[IDEMPOTENCY_KEY] = message.idempotency_key
    found[TOPIC] = message.topic
    if message.key is not None:
        found[KEY] = message.key
    return found

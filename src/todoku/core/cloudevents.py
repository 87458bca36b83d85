"""The headers of a message to a broker: CloudEvents 1.0 in binary mode, and todoku's own.

The payload is sent unchanged; the headers describe it. Each broker's CloudEvents binding has its own prefix for the
attributes (`ce_id`, `ce-id`, `cloudEvents:id`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidSetting

MESSAGE_ID: Final = "todoku-message-id"
"""Consumers use it to recognise a message that they have received before."""

IDEMPOTENCY_KEY: Final = "todoku-idempotency-key"
TOPIC: Final = "todoku-topic"
KEY: Final = "todoku-key"

DEFAULT_SOURCE: Final = "/todoku"


def check_source(source: str) -> str:
    """Returns `source` if it can identify the producer of events; raises InvalidSetting."""
    if not source or any(character.isspace() for character in source):
        raise InvalidSetting(
            f"source cannot be {source!r}", hint="give a URI reference: https://shop.example/orders or /shop"
        )
    return source


def attributes(message: Outgoing, *, source: str) -> dict[str, str]:
    """Returns the CloudEvents attributes of a message without `datacontenttype`, which the broker has a field for.

    (source, id) is the same each time an event is sent. The message's key is both `subject` and `partitionkey`.
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
    """Returns the headers of the publisher and of the trace, the CloudEvents attributes under `prefix`, and todoku's
    own headers."""
    found = dict(message.headers)
    for name, value in attributes(message, source=source).items():
        found[prefix + name] = value
    found[MESSAGE_ID] = message.message_id
    found[IDEMPOTENCY_KEY] = message.idempotency_key
    found[TOPIC] = message.topic
    if message.key is not None:
        found[KEY] = message.key
    return found

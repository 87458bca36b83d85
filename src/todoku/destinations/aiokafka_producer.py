"""All uses of the private interface of aiokafka's producer, for `kafka.py`.

aiokafka has no public method for any of this. The attributes are the same in every version that `pyproject.toml`
allows. The type of a producer is `Any`, because aiokafka is an extra, imported when the first message is sent.
"""

from __future__ import annotations

from itertools import chain
from typing import Any


def mark_closed(producer: Any) -> None:
    """Marks a producer as closed after `start` failed: `stop` would wait for a sender task that never started."""
    producer._closed = True


def is_lost(producer: Any) -> bool:
    """Whether the producer cannot send any more: it was closed, or its sender task has ended."""
    sender = producer._sender.sender_task
    return bool(producer._closed or sender is None or sender.done())


def drop_waiting(producer: Any) -> None:
    """Drops messages that wait to be sent. `stop` would wait until all are sent: for ever, if the broker is gone."""
    waiting = producer._message_accumulator
    for batch in (*chain.from_iterable(waiting._batches.values()), *waiting._pending_batches):
        batch.future.cancel()
    if producer._sender.sender_task is not None:
        producer._sender.sender_task.cancel()

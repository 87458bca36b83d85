"""The parts of aiokafka's producer that are not its public interface: `kafka.py` takes them from here alone.

aiokafka has no public call for any of this. The attributes are the same in every version that `pyproject.toml` allows.
A producer is `Any` here: aiokafka is an extra, and is imported when the first message is sent.
"""

from __future__ import annotations

from itertools import chain
from typing import Any


def mark_closed(producer: Any) -> None:
    """Call a producer closed whose `start` failed: its `stop` would wait for a sender task that never began."""
    producer._closed = True


def is_lost(producer: Any) -> bool:
    """Whether nothing more can be sent through it: it was closed, or the task that sends has ended."""
    sender = producer._sender.sender_task
    return bool(producer._closed or sender is None or sender.done())


def drop_waiting(producer: Any) -> None:
    """Drop what waits to be sent. `stop` alone would wait until all of it is sent, for ever if the broker is gone."""
    waiting = producer._message_accumulator
    for batch in (*chain.from_iterable(waiting._batches.values()), *waiting._pending_batches):
        batch.future.cancel()
    if producer._sender.sender_task is not None:
        producer._sender.sender_task.cancel()

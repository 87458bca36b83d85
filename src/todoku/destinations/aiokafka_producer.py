"""The private names of aiokafka's producer: `kafka.py` takes them from here alone.

aiokafka has no public call for any of this. The names are the same in all versions of `TESTED`. With another version,
or one without these names, only the public interface is used, and each function says what is lost by that. A producer
is `Any` here: aiokafka is an extra, and is imported when the first message is sent.
"""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import Any, Final

from todoku.core.version_range import VersionRange

TESTED: Final = VersionRange((0, 12), (0, 15))


def is_tested(producer: Any) -> bool:
    """Whether the private names of this producer can be relied on."""
    waiting, sender = getattr(producer, "_message_accumulator", None), getattr(producer, "_sender", None)
    has_names = (
        hasattr(producer, "_closed")
        and hasattr(sender, "sender_task")
        and hasattr(waiting, "_batches")
        and hasattr(waiting, "_pending_batches")
    )
    return has_names and TESTED.includes(import_module("aiokafka").__version__)


def mark_closed(producer: Any) -> None:
    """Calls a producer closed whose `start` failed: its `stop` would wait for a sender task that never began.

    Not tested: nothing is done, and aiokafka warns of a producer that was not closed.
    """
    if is_tested(producer):
        producer._closed = True


def is_lost(producer: Any) -> bool:
    """Whether nothing more can be sent through it: it was closed, or the task that sends has ended.

    Not tested: it is never lost. The next send fails, and the one after it has a new producer.
    """
    if not is_tested(producer):
        return False
    sender = producer._sender.sender_task
    return bool(producer._closed or sender is None or sender.done())


async def stop(producer: Any) -> None:
    """Closes a producer and drops what waits in it. Its own `stop` waits until all is sent, for ever without a broker.

    Not tested: its connections are closed first, so that nothing more is sent; `stop` may then last as long as the
    caller allows.
    """
    if is_tested(producer):
        _drop_waiting(producer)
    else:
        await producer.client.close()
    try:
        await producer.stop()
    finally:
        await producer.client.close()


def _drop_waiting(producer: Any) -> None:
    waiting = producer._message_accumulator
    for batch in (*chain.from_iterable(waiting._batches.values()), *waiting._pending_batches):
        batch.future.cancel()
    if producer._sender.sender_task is not None:
        producer._sender.sender_task.cancel()

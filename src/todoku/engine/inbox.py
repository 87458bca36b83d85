"""The inbox: a consumer processes each message once, in its own transaction, also if it is delivered twice (I6)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from todoku.core.errors import InvalidMessage
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.engine.outbox import Outbox
from todoku.engine.publish import check_text
from todoku.engine.transaction_block import Block, BlockSteps
from todoku.store.ledger import record_newer, record_seen
from todoku.store.publish import Publishing
from todoku.store.statements import Steps

_LARGEST = 2**63 - 1


class Inbox:
    """The messages one consumer has seen, stored in the consumer's database, which need not be the publisher's."""

    def __init__(self, outbox: Outbox, consumer: str) -> None:
        check_text(consumer, "consumer", MAX_TOPIC_LENGTH)
        self._outbox = outbox
        self._consumer = consumer

    def once(self, message_id: UUID | str, *, tx: Any) -> Block[bool]:
        """`with box.inbox("points").once(id, tx=db) as first:`, or `async with`: True the first time only.

        The mark commits with your rows, or not at all; if the block raises, both are undone. It is stored for 90 days.
        """
        id = _as_uuid(message_id)
        return self._block(tx, lambda to: record_seen(to, self._consumer, id))

    def newer(self, key: str, sequence: int, *, tx: Any) -> Block[bool]:
        """`with box.inbox("stock").newer(key, sequence, tx=db) as first:`: False if a newer one of the key was seen.

        For consumers that store only the latest state of each key, and whose messages carry a rising number.
        """
        check_text(key, "key", MAX_KEY_LENGTH)
        if type(sequence) is not int or not -_LARGEST <= sequence <= _LARGEST:
            raise InvalidMessage(f"sequence cannot be {sequence!r}", hint="a whole number of at most 63 bits")
        return self._block(tx, lambda to: record_newer(to, self._consumer, key, sequence))

    def _block(self, tx: Any, begin: Any) -> Block[bool]:
        if tx is None:
            raise InvalidMessage(
                "an inbox needs a transaction", hint="pass tx=, the connection that your own writes use"
            )
        return Block(self._outbox, tx, BlockSteps(begin, _no_steps, _no_steps), twin="use `async with`")


def _no_steps(_to: Publishing) -> Steps[None]:
    yield from ()


def _as_uuid(message_id: UUID | str) -> UUID:
    try:
        return message_id if isinstance(message_id, UUID) else UUID(message_id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidMessage(
            f"message_id cannot be {message_id!r}", hint="pass the UUID that todoku sent in the message's headers"
        ) from None

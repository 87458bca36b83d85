"""What people do with a queue beside publishing: look at messages, cancel them, and care for the dead letters."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any, Final

from todoku.client.answers import Backend, DeadLetter, DeadLetters, Queued, Which
from todoku.core.errors import InvalidAct
from todoku.engine.outbox import refuse_in_event_loop

_MOST: Final = 100


class MessageCalls:
    """`queue.messages`: those that wait, and for a while those that were sent."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def get(self, id: str) -> Queued:
        """A message by its id; QueueRefused with status 404: there is none."""
        refuse_in_event_loop("queue.messages.aget(…)")
        return self._backend.message(id)

    async def aget(self, id: str) -> Queued:
        """As `get`, for async code."""
        return await asyncio.to_thread(self._backend.message, id)

    def cancel(self, id: str, *, by: str, why: str) -> None:
        """Let it not be sent; what runs at this moment goes on."""
        refuse_in_event_loop("queue.messages.acancel(…)")
        self._backend.cancel(id, **_signed(by, why))

    async def acancel(self, id: str, *, by: str, why: str) -> None:
        """As `cancel`, for async code."""
        await asyncio.to_thread(self._backend.cancel, id, **_signed(by, why))


class DeadLetterCalls:
    """`queue.dlq`: the dead letters. An App audits who and why; a queue elsewhere names the token's owner."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def list(
        self,
        *,
        queue: str | None = None,
        to: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        cursor: str | None = None,
        count: int = _MOST,
    ) -> DeadLetters:
        """A page of at most 100 dead letters: of a queue, to a URL or topic, that died in this time."""
        refuse_in_event_loop("queue.dlq.alist(…)")
        which = Which(queue=queue, to=to, since=since, until=until)
        return self._backend.dead_letters(which, cursor=cursor, count=_count(count))

    async def alist(self, **which: Any) -> DeadLetters:
        """As `list`, for async code, with the same keywords."""
        return await asyncio.to_thread(self.list, **which)

    def get(self, id: str) -> DeadLetter:
        """One of them; QueueRefused with status 404: there is none."""
        refuse_in_event_loop("queue.dlq.aget(…)")
        return self._backend.dead_letter(id)

    async def aget(self, id: str) -> DeadLetter:
        """As `get`, for async code."""
        return await asyncio.to_thread(self._backend.dead_letter, id)

    def retry(self, id: str, *, by: str, why: str) -> str:
        """Let it be sent again, with all its attempts; returns the id of the message that is."""
        refuse_in_event_loop("queue.dlq.aretry(…)")
        return self._backend.retry(id, **_signed(by, why))

    async def aretry(self, id: str, *, by: str, why: str) -> str:
        """As `retry`, for async code."""
        return await asyncio.to_thread(self._backend.retry, id, **_signed(by, why))

    def delete(self, id: str, *, by: str, why: str) -> None:
        """Remove it for good."""
        refuse_in_event_loop("queue.dlq.adelete(…)")
        self._backend.delete(id, **_signed(by, why))

    async def adelete(self, id: str, *, by: str, why: str) -> None:
        """As `delete`, for async code."""
        await asyncio.to_thread(self._backend.delete, id, **_signed(by, why))


def _signed(by: str, why: str) -> dict[str, str]:
    for name, said in (("by", by), ("why", why)):
        if not str(said or "").strip():
            raise InvalidAct(f"{name} cannot be empty", hint="it goes into the audit")
    return {"by": by.strip(), "why": why.strip()}


def _count(count: int) -> int:
    if type(count) is not int or not 1 <= count <= _MOST:
        raise InvalidAct(f"count cannot be {count!r}", hint=f"1 to {_MOST}; the cursor leads to the next page")
    return count

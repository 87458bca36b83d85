"""Threads that publish at the same time share a commit, where the transaction is not a caller's own.

A commit costs the client, the server and the disk far more than a row in it. So one thread commits at a time, for
itself and for all who wait; a thread that comes meanwhile waits for the next commit. A lone publisher does not wait,
and there is no further thread.

Callers share the commit and nothing else. Each returns after the commit that has its messages. If the database refuses
a shared transaction, nothing of it is stored, and each caller stores its own messages by itself. Only messages that
take no lock are shared, so that no caller waits for another's (`store.publish.is_plain`). Coroutines of the HTTP server
have a line of their own (`group_commit.py`), because they must not wait in threads.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Final

from todoku.core.errors import DATABASE_ERRORS, DatabaseBusy, DatabaseUnavailable
from todoku.core.message import Draft, Message

MOST: Final = 500
"""Drafts in one commit."""

MOST_BYTES: Final = 1 << 20
"""Bytes of payload in one commit: large payloads have more to lose by waiting for each other than by a commit each."""

PATIENCE: Final = 1.0
"""Seconds that a caller waits for the next commit to begin. Then it commits by itself: the connections of those who
commit may hang."""

_CONCERNS_ALL: Final = (DatabaseBusy, *DATABASE_ERRORS)
"""Errors of the database and not of a draft: without the others it would fail again."""

Drafts = Sequence[Draft]
Messages = Sequence[Message]


class SharedCommit:
    """Stores the messages of concurrent threads together.

    `store` stores drafts in one transaction, all or none. `stored` is called after it, once for each transaction.
    """

    def __init__(
        self, store: Callable[[list[Draft]], list[Message]], stored: Callable[[Drafts, Messages], None]
    ) -> None:
        self._store = store
        self._stored = stored
        self.forget()
        _instances.add(self)

    def forget(self) -> None:
        """Forgets all callers, in a forked child: they are threads of its parent."""
        self._lock = threading.Lock()
        self._waiting: deque[_WaitingThread] = deque()
        self._is_led = False
        self._was_shared = False

    def put(self, drafts: list[Draft]) -> list[Message]:
        """Stores drafts, all or none, and returns after the commit.

        DatabaseUnavailable: nobody knows whether they are stored, as after any commit without an answer.
        """
        if threading.current_thread() is threading.main_thread():
            return self._alone(drafts)  # a signal raises its error here: it must not end a commit that others wait for
        caller = _WaitingThread(drafts)
        if self._leads(caller):
            return self._lead(caller)
        try:
            if not caller.turn.acquire(timeout=PATIENCE) and not self._leaves(caller):
                caller.turn.acquire()  # another thread is committing its messages, or it was just given the lead
        except BaseException:
            self._is_interrupted(caller)
            raise
        if caller.leads:
            return self._lead(caller)
        if isinstance(caller.answer, Exception):
            raise caller.answer
        return self._alone(drafts) if caller.answer is None else caller.answer

    def _alone(self, drafts: list[Draft]) -> list[Message]:
        messages = self._store(drafts)
        self._stored(drafts, messages)
        return messages

    def _lead(self, leader: _WaitingThread) -> list[Message]:
        """Commits for this caller, whose thread this is, and for all who wait. Returns its own messages."""
        others: list[_WaitingThread] = []
        try:
            if self._was_shared:
                time.sleep(0)  # callers that were answered just now run first, and may come again
            others = self._take(leader)
            self._was_shared = bool(others)
            drafts = leader.drafts + [draft for other in others for draft in other.drafts]
            messages = self._store(drafts)
        except BaseException as error:
            for other in others:
                other.wake(_for_another(error))
            self._hand_over()
            if others and _is_of_one_caller(error):
                return self._alone(leader.drafts)
            raise
        place = len(leader.drafts)
        for other in others:
            start, place = place, place + len(other.drafts)
            other.wake(messages[start:place])
        self._hand_over()
        self._stored(drafts, messages)
        return messages[: len(leader.drafts)]

    def _leads(self, caller: _WaitingThread) -> bool:
        """Whether the caller commits at once. Otherwise it is in the line."""
        with self._lock:
            leads = not self._is_led
            if leads:
                self._is_led = True
            else:
                self._waiting.append(caller)
            return leads

    def _leaves(self, caller: _WaitingThread) -> bool:
        """Takes a caller out of the line. False: it is not in it any more."""
        with self._lock:
            waits = caller in self._waiting
            if waits:
                self._waiting.remove(caller)
            return waits

    def _is_interrupted(self, caller: _WaitingThread) -> None:
        """The caller does not wait any more. If it was to commit, another one does."""
        if not self._leaves(caller) and caller.leads:
            self._hand_over()

    def _hand_over(self) -> None:
        """Lets the first of those who wait commit.

        It takes the others when it runs: callers that were answered just now may have come again by then.
        """
        with self._lock:
            if not self._waiting:
                self._is_led = False
                return
            leader = self._waiting.popleft()
            leader.leads = True
        leader.turn.release()

    def _take(self, leader: _WaitingThread) -> list[_WaitingThread]:
        """Takes callers from the line, in order of arrival, as many as fit into one commit with the leader's."""
        others: list[_WaitingThread] = []
        number, size = len(leader.drafts), leader.size
        with self._lock:
            while self._waiting:
                caller = self._waiting[0]
                number, size = number + len(caller.drafts), size + caller.size
                if number > MOST or size > MOST_BYTES:
                    break
                others.append(self._waiting.popleft())
        return others


class _WaitingThread:
    """A thread that waits for its messages to be stored."""

    __slots__ = ("answer", "drafts", "leads", "size", "turn")

    def __init__(self, drafts: list[Draft]) -> None:
        self.drafts = drafts
        self.size = sum([len(draft.payload or draft.payload_bytes or "") for draft in drafts])
        self.turn = threading.Lock()
        """Released when it has its answer, or is to commit."""
        self.turn.acquire()
        self.leads = False
        """Whether it is to commit, for itself and others."""
        self.answer: list[Message] | Exception | None = None
        """None: nothing is stored, and it is to store its messages by itself."""

    def wake(self, answer: list[Message] | Exception | None) -> None:
        """Gives it its answer."""
        self.answer = answer
        self.turn.release()


def _is_of_one_caller(error: BaseException) -> bool:
    return isinstance(error, Exception) and not isinstance(error, _CONCERNS_ALL)


def _for_another(error: BaseException) -> Exception | None:
    """What an error of a shared commit is to a caller in whose thread it was not raised."""
    if _is_of_one_caller(error):
        return None
    if isinstance(error, Exception):
        return copy(error)  # two threads must not raise the same object: each adds its own traceback
    return DatabaseUnavailable(
        "the thread that stored this message with others was interrupted",
        hint="it is unknown whether the message was stored",
    )


_instances: Final[weakref.WeakSet[SharedCommit]] = weakref.WeakSet()


def _forget_all() -> None:
    for shared in list(_instances):
        shared.forget()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forget_all)

"""A process that publishes from many coroutines and prints what was acknowledged, until it is killed at a commit.

`python -m tests.support.acknowledging URL FAILPOINT COMMIT`: it dies at the COMMIT-th passing of FAILPOINT.
"""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import count

import todoku
from todoku.engine.group_commit import GroupCommit
from todoku.store import failpoint

CALLERS = 12


async def publish(box: todoku.App, fatal: str, commit: int) -> None:
    """Each caller publishes one message after the other, and says so by one write once it is stored."""
    together, numbers, passed = GroupCommit(box.outbox), count(), count(1)

    def pass_by() -> None:
        if next(passed) == commit:
            failpoint.kill()

    async def call() -> None:
        while True:
            number = next(numbers)
            (message,) = await together.put([box.declarations.draft("order.created", {"n": number}, {})])
            os.write(1, f"{message.id} {number}\n".encode())

    with failpoint.armed(fatal, pass_by):
        await asyncio.gather(*(call() for _ in range(CALLERS)))


def main() -> None:
    url, fatal, commit = sys.argv[1:]
    box = todoku.App(url)
    box.route("**", to=todoku.log(), name="warehouse")
    asyncio.run(publish(box, fatal, int(commit)))


if __name__ == "__main__":
    main()

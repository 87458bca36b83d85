"""Acts on requests that were named, one by one or by a filter: none of them is lost to somebody else's lock.

An act passes over what is being changed at that moment, and a lane that is being published to. A person with a screen
sees the count and asks again; a program over HTTP would be told that its message is not there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from todoku.core.errors import DatabaseBusy
from todoku.store.acts import Acted
from todoku.store.requests import RequestRow
from todoku.store.store import Store

_TRIES: Final = 50
_PAUSE: Final = 0.02
"""Seconds. Whoever changes a delivery is done with it in less."""


def insisted(
    store: Store,
    rows: Sequence[RequestRow],
    act: Callable[[tuple[int, ...]], Acted],
    may: Callable[[RequestRow], bool],
) -> frozenset[int]:
    """Act on rows until each is changed, or is one that the act may not change (any more). Returns those changed.

    DatabaseBusy: somebody keeps some locked. The others are changed; to ask again does no harm.
    """
    changed: set[int] = set()
    left = [row for row in rows if may(row)]
    for tries in range(_TRIES):
        if tries > 0:
            time.sleep(_PAUSE)
        if left:
            changed.update(act(tuple(row.delivery_id for row in left)).changed)
        left = _still([row for row in left if row.delivery_id not in changed], store, may)
        if not left:
            return frozenset(changed)
    raise DatabaseBusy(f"somebody else keeps {len(left)} messages locked", hint="try again")


def _still(rows: list[RequestRow], store: Store, may: Callable[[RequestRow], bool]) -> list[RequestRow]:
    """Those of some rows that can still be changed, and were not sent again meanwhile, as they are now."""
    was = {row.delivery_id: row.replay_count for row in rows}
    now = store.requests.of([row.message_id for row in rows])
    return [row for row in now if was.get(row.delivery_id) == row.replay_count and may(row)]

"""The chronicle: each event becomes entries of a table, exactly once.

In the App's own database the entries commit with the delivery's success. In another one they commit with a row of that
database's inbox, by which an event that comes again is recognised.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.outcome import DONE, Abort, Outcome
from todoku.core.projection import SUPERSEDED, Change
from todoku.engine.context import Context
from todoku.engine.jobs.handler import is_async
from todoku.engine.projections.document_writer import read_change
from todoku.engine.registry import outgoing
from todoku.store.store import Store

WriteEntries = Callable[[Change, Any], object]
"""Writes the entries of an event through a connection, and neither commits nor rolls back."""

_LIMIT: Final = 30.0
"""Seconds that a transaction in another database may take."""


class Chronicle(msgspec.Struct, frozen=True):
    """Writes the entries of events to a table; `into`: the App of another database than the projection's."""

    write: WriteEntries
    into: Any = None


def chronicle(write: WriteEntries, *, into: Any = None) -> Chronicle:
    """Makes a table the store of a projection: `write(change, tx)` inserts the entries of an event, exactly once.

    `tx` is an open connection, which todoku commits. With `into`, an App, it is a connection to that App's database.
    """
    if is_async(write):
        raise InvalidSetting("a chronicle needs a plain function", hint="def write(change, tx): tx.execute(…)")
    if into is not None and not (isinstance(getattr(into, "store", None), Store) and hasattr(into, "inbox")):
        raise InvalidSetting(f"into cannot be {into!r}", hint="the App of the other database: into=todoku.App(url)")
    return Chronicle(write, into)


def entry_writer(made: Chronicle, name: str) -> Callable[[Context], Outcome]:
    """Returns what a worker calls for each event of a chronicle."""
    archive = made.into

    def write_here(context: Context) -> Outcome:
        made.write(_change(context), context.tx)
        return DONE

    if archive is None:
        return write_here

    def write_there(context: Context) -> Outcome:
        change = _change(context)
        with archive.store.database.open_transaction(_LIMIT) as opened:
            seen: AbstractContextManager[bool] = archive.inbox(name).once(change.message_id, tx=opened.connection)
            with seen as first:
                if first:
                    made.write(change, opened.connection)
            opened.check()
            opened.commit()
        return DONE if first else SUPERSEDED

    return write_there


def _change(context: Context) -> Change:
    message = outgoing(context.claim)
    if message.sequence is None:
        raise Abort("UNORDERED", "its route is not ordered, or it has no key: its entries could be in the wrong order")
    return read_change(message)

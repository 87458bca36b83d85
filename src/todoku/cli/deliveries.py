"""Commands that look at many deliveries: stats, list, reasons, workers, tail."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress

import click

from todoku.app import App
from todoku.cli.database_option import opened
from todoku.cli.options import database_option, duration, json_option
from todoku.cli.output import nothing, preview, print_json, print_table, say, show_rows, told
from todoku.core.status import Status
from todoku.store.values import Counts, Delivery, Filter
from todoku.store.views import Event

STATUSES = [status.value for status in Status]


@click.command()
@database_option
@json_option
def stats(database: str | None, schema: str | None, as_json: bool) -> None:
    """Say how many deliveries there are in each state."""
    with opened(database, schema) as box:
        counts, workers = box.store.counts(max_age=5.0), box.store.limits().workers
    numbers = {status: counts.of(status) for status in STATUSES}
    if as_json:
        print_json({**numbers, "workers": len(workers), "exact": counts.exact, "age": round(counts.age, 3)})
        return
    print_table(["destination", *STATUSES], [*_by_destination(counts), ("all", *numbers.values())])
    say(f"{len(workers)} workers alive" + ("" if counts.exact else f"; counted {counts.age:.0f} s ago, sampled"))


def _by_destination(counts: Counts) -> list[tuple[object, ...]]:
    """What is unfinished, by destination; the history is not counted by destination."""
    names = sorted({row.destination for row in counts.rows})
    found: dict[tuple[str, str], int] = {}
    for row in counts.rows:
        found[row.destination, row.status] = found.get((row.destination, row.status), 0) + row.number
    return [(name, *(_number(found, name, status) for status in STATUSES)) for name in names]


def _number(found: dict[tuple[str, str], int], name: str, status: str) -> int | None:
    return None if status == "succeeded" else found.get((name, status), 0)


COLUMNS = ("id", "message", "topic", "destination", "status", "priority", "attempts", "max_attempts", "reason",
           "error", "payload", "created")  # fmt: skip


@click.command("list")
@database_option
@click.option("--status", type=click.Choice(STATUSES), help="Only these; without it all of them.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="At most so many.")
@click.option("--due", is_flag=True, help="Only what should run now.")
@click.option("--topic", help="Only this topic.")
@click.option("--destination", help="Only to this destination.")
@click.option("--queue", help="Only in this queue.")
@click.option("--reason", help="Only failed for this reason.")
@click.option("--key", help="Only with this key.")
@json_option
def list_(
    database: str | None,
    schema: str | None,
    status: str | None,
    limit: int,
    as_json: bool,
    due: bool,
    **which: str | None,
) -> None:
    """List deliveries, newest first, with a masked glance at what is inside."""
    with opened(database, schema) as box:
        rows = _newest(box, Filter(status=status, due=due, **which), limit)  # type: ignore[arg-type]
        inside = box.store.previews([row.message_id for row in rows if row.message_id is not None])
        fields = box.settings.mask_fields
    if not rows:
        nothing()
    shown = [
        (
            row.id, row.message_id, row.topic, row.destination, row.status, row.priority, row.attempts,
            row.max_attempts, row.reason, row.error,
            preview(inside.get(row.message_id) if row.message_id else None, fields), row.created_at,
        )
        for row in rows
    ]  # fmt: skip
    if as_json:
        show_rows(COLUMNS, shown, as_json=True)
    else:
        short = ("id", "topic", "destination", "status", "prio", "tries", *COLUMNS[8:])
        print_table(short, [(row[0], *row[2:6], f"{row[6]}/{row[7]}", *row[8:]) for row in shown])


def _newest(box: App, which: Filter, limit: int) -> list[Delivery]:
    """The newest of those that match; without a status, of the unfinished and the finished ones together."""
    rows = [*box.store.find(which, limit=limit).items]
    if which.status is None:
        finished = Filter(status="succeeded", topic=which.topic, destination=which.destination, queue=which.queue,
                          key=which.key, reason=which.reason, due=which.due)  # fmt: skip
        rows += box.store.find(finished, limit=limit).items
    return sorted(rows, key=lambda row: -row.id)[:limit]


@click.command()
@database_option
@json_option
def reasons(database: str | None, schema: str | None, as_json: bool) -> None:
    """Group the dead letters by why they died."""
    with opened(database, schema) as box:
        groups = box.store.dead()
    if not groups and not as_json:
        say("no dead letters")
        return
    columns = ("reason", "destination", "number", "first", "last", "example", "error")
    show_rows(
        columns,
        [
            (group.reason, group.destination, group.number, group.since, group.until, group.newest, group.error)
            for group in groups
        ],
        as_json=as_json,
    )


@click.command()
@database_option
@json_option
def workers(database: str | None, schema: str | None, as_json: bool) -> None:
    """List the workers, their leases, and how much each holds."""
    with opened(database, schema) as box:
        rows, now = box.store.workers(), box.store.ping()
    if not rows and not as_json:
        say("no workers")
        return
    columns = ("id", "name", "state", "alive", "held", "started", "lease_ends")
    show_rows(
        columns,
        [
            (row.id, row.name, row.state, row.expires_at.timestamp() > now, row.held, row.started_at, row.expires_at)
            for row in rows
        ],
        as_json=as_json,
    )


_OVERLAP = 5.0
"""What commits late carries the time its statement ran: look again at the last seconds, and show each event once."""


@click.command()
@database_option
@click.option("--since", type=duration, default="0", help="Begin with what happened so long ago.")
@click.option("--for", "lasts", type=duration, help="Stop after so long; without it, on Ctrl-C.")
@click.option("--interval", type=duration, default="0.5", show_default=True, help="How often to look.")
@json_option
def tail(
    database: str | None, schema: str | None, since: float, lasts: float | None, interval: float, as_json: bool
) -> None:
    """Show what happens, as it happens: publishes, ends of attempts, acts of people."""
    end = None if lasts is None else time.monotonic() + lasts
    with opened(database, schema) as box, suppress(KeyboardInterrupt):
        for event in _happening(box, since, interval, end):
            _show(event, as_json=as_json)


def _happening(box: App, since: float, interval: float, end: float | None) -> Iterator[Event]:
    """Each event once, as it is seen, until `end` on the monotonic clock."""
    begin = box.store.ping() - since
    seen: dict[tuple[str, str], float] = {}
    while True:
        now = box.store.ping()
        for event in box.store.tail(since=max(begin, now - since - _OVERLAP - interval)):
            if seen.setdefault((event.what, event.mark), now) == now:
                yield event
        since = 0.0
        seen = {mark: at for mark, at in seen.items() if at > now - 4 * (_OVERLAP + interval)}
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(max(interval, 0.05))


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json({
            "at": event.at, "what": event.what, "delivery": event.delivery_id, "message": event.message_id,
            "topic": event.topic, "destination": event.destination, "told": event.told,
        })  # fmt: skip
        return
    who = " → ".join(filter(None, (event.topic, event.destination)))
    number = "" if event.delivery_id is None else f"#{event.delivery_id} "
    say(f"{told(event.at)}  {event.what:<10} {number}{who}  {told(event.told) if event.told else ''}".rstrip())

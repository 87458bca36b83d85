"""Commands that show deliveries (stats, list, reasons, tail) or a single one (explain, ledger)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from uuid import UUID

import click
import msgspec

from todoku.app import App
from todoku.cli.options import database_option, duration, json_option, open_app, utc_option
from todoku.cli.output import (
    ROUTE,
    exit_not_found,
    format_value,
    on_terminal,
    preview,
    print_json,
    print_table,
    say,
    say_event,
    say_wrapped,
    show_rows,
)
from todoku.core.identity import key_hash
from todoku.core.status import Status
from todoku.daemon.terminal import route_text
from todoku.engine.diagnostics.explanation import explain as find_causes
from todoku.engine.diagnostics.masked_json import masked
from todoku.engine.event_tail import EventTail
from todoku.engine.search import Searcher, SearchResult
from todoku.store.attempts import Event
from todoku.store.deliveries import Delivery, Filter
from todoku.store.statistics import Counts


def id_argument(text: str) -> UUID | int:
    """Parses a message id or a delivery number."""
    if text.isdecimal() and 0 < int(text) < 1 << 63:
        return int(text)
    try:
        return uuid.UUID(text)
    except ValueError:
        message = f"{text!r} is not an id; give a delivery number or a message id, as shown by `todoku list`."
        raise click.BadParameter(message) from None


def message_of(box: App, id: UUID | int) -> UUID | None:
    """The id of the message that an ID names by itself, or by one of its deliveries."""
    if isinstance(id, UUID):
        return id
    found = box.store.deliveries.get(id)
    return None if found is None else found.message_id


@click.command()
@database_option
@click.argument("id", type=id_argument, metavar="ID")
@json_option
def explain(database: str | None, schema: str | None, id: UUID | int, as_json: bool) -> None:
    """Explain why a delivery has not run, and what to do.

    For example: its queue is paused, an earlier delivery of its lane is not finished, a limit is reached, it is due
    later, or no worker is alive.

    ID is a message id, or the number of a delivery.
    """
    with open_app(database, schema) as box:
        message = message_of(box, id)
        story = None if message is None else box.store.messages.story(message)
        rows: list[tuple[int, str, str, str, str]] = []
        for row in () if story is None else story.deliveries:
            if id not in (message, row.id):
                continue
            situation = box.store.situation(row.id)
            if situation is None:
                ended = row.status == "succeeded"
                text = f"it succeeded at {format_value(row.updated_at)}" if ended else "it has just ended"
                rows.append((row.id, row.destination, "succeeded", text, ""))
                continue
            causes = find_causes(situation)
            rows += [(row.id, row.destination, cause.cause, cause.text, cause.hint) for cause in causes]
    if not rows:
        exit_not_found(f"there is no message or delivery {id}")
    if as_json:
        show_rows(("delivery", "destination", "cause", "text", "hint"), rows, as_json=True)
        return
    for number, destination, _, text, hint in rows:
        say_wrapped(f"{number} → {destination}: {text}" + (f" ({hint})" if hint else ""), indent=0)


@click.command()
@database_option
@click.argument("key")
@click.option("--scope", required=True, help="publish:TOPIC or effect:DESTINATION.")
@json_option
def ledger(database: str | None, schema: str | None, key: str, scope: str, as_json: bool) -> None:
    """Show the ledger entry of an idempotency key.

    KEY is the key itself, or its hash as shown in logs.
    """
    with open_app(database, schema) as box:
        found = box.store.ledger.entry(scope, key_hash(key)) or box.store.ledger.entry(scope, key)
        fields = box.settings.mask_fields
    if found is None:
        exit_not_found(f"the ledger has no entry for {key!r} in {scope}")
        return
    row = {
        "scope": scope, "state": found.state, "message": found.message_id, "digest": found.digest,
        "status": found.http_status, "response": masked(found.response, fields), "created": found.created_at,
        "updated": found.updated_at,
    }  # fmt: skip
    if as_json:
        print_json(row)
    else:
        for name, value in row.items():
            say(f"{name:<9} {format_value(value)}")


STATUSES = [status.value for status in Status]


@click.command()
@database_option
@json_option
def stats(database: str | None, schema: str | None, as_json: bool) -> None:
    """Count deliveries by status and destination, hooks apart."""
    with open_app(database, schema) as box:
        counts, workers = box.store.statistics.counts(max_age=5.0), box.store.limits.read().workers
        parked = box.store.statistics.parked()
    numbers = {status: counts.of(status) for status in STATUSES}
    hooks = {status: counts.of_hooks(status) for status in STATUSES}
    if as_json:
        print_json({
            **numbers, "workers": len(workers), "exact": counts.exact, "age": round(counts.age, 3),
            "parked_keys": parked.keys, "parked_waiting": parked.waiting, "hooks": hooks,
        })  # fmt: skip
        return
    print_table(["destination", *STATUSES], [*_by_destination(counts), ("all", *numbers.values())], keep=STATUSES)
    if told := ", ".join(f"{number} {status}" for status, number in hooks.items() if number):
        say(f"hooks, not counted above: {told}")
    alive = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
    say(f"{alive} alive" + ("" if counts.exact else f"; counted {counts.age:.0f} s ago, sampled"))
    if parked.waiting:
        keys = "a key" if parked.keys == 1 else f"{parked.keys} keys"
        waits = "1 delivery waits" if parked.waiting == 1 else f"{parked.waiting} deliveries wait"
        say(f"{waits} behind a dead letter of {keys}: todoku explain {parked.example} names it")


def _by_destination(counts: Counts) -> list[tuple[object, ...]]:
    """Counts unfinished deliveries by destination. Succeeded ones are not counted by destination."""
    names = sorted({row.destination for row in counts.rows if not row.hook})
    found: dict[tuple[str, str], int] = {}
    for row in filter(lambda row: not row.hook, counts.rows):
        found[row.destination, row.status] = found.get((row.destination, row.status), 0) + row.number
    return [(name, *(_count(found, name, status) for status in STATUSES)) for name in names]


def _count(found: dict[tuple[str, str], int], name: str, status: str) -> int | None:
    return None if status == "succeeded" else found.get((name, status), 0)


COLUMNS = ("id", "message", "topic", "destination", "status", "priority", "attempts", "max_attempts", "reason",
           "error", "payload", "created")  # fmt: skip


@click.command("list")
@database_option
@click.option("--status", type=click.Choice(STATUSES), help="Only this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Show at most this many.")
@click.option("--due", is_flag=True, help="Only deliveries that are due now.")
@click.option("--topic", help="Only this topic.")
@click.option("--destination", help="Only to this destination.")
@click.option("--queue", help="Only in this queue.")
@click.option("--reason", help="Only with this failure reason.")
@click.option("--fingerprint", help="Only with this fingerprint of the traceback.")
@click.option("--key", help="Only with this key.")
@click.option("--label", help="Only with this label.")
@utc_option
@json_option
def list_(
    database: str | None,
    schema: str | None,
    status: str | None,
    limit: int,
    as_json: bool,
    due: bool,
    **filters: str | None,
) -> None:
    """List deliveries, newest first.

    Payloads are shortened; values of sensitive fields are shown as ***.
    """
    with open_app(database, schema) as box:
        rows = _newest(box, Filter(status=status, due=due, **filters), limit)  # type: ignore[arg-type]
        payloads = box.store.messages.previews([row.message_id for row in rows if row.message_id is not None])
        fields = box.settings.mask_fields
    if not rows:
        exit_not_found()
    table = [
        (
            row.id, row.message_id, row.topic, row.destination, row.status, row.priority, row.attempts,
            row.max_attempts, row.reason, row.error,
            preview(payloads.get(row.message_id) if row.message_id else None, fields), row.created_at,
        )
        for row in rows
    ]  # fmt: skip
    if as_json:
        show_rows(COLUMNS, table, as_json=True)
        return
    names: tuple[str, ...] = (ROUTE,) if on_terminal() else ("topic", "destination")
    cells = [
        (
            row[0], *((route_text(one.topic, one.destination),) if on_terminal() else row[2:4]), *row[4:6],
            one.tries, *row[8:],
        )
        for one, row in zip(rows, table, strict=True)
    ]  # fmt: skip
    print_table(("id", *names, "status", "prio", "tries", *COLUMNS[8:]), cells)


@click.command()
@database_option
@click.argument("text", nargs=-1, required=True)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="Show at most this many.")
@click.option("--cursor", help="Go on from here: as the page before said.")
@utc_option
@json_option
def search(
    database: str | None, schema: str | None, text: tuple[str, ...], limit: int, cursor: str | None, as_json: bool
) -> None:
    """Search deliveries by words; say why each waits.

    TEXT is words such as status:failed topic:order.* payload.order_id:42 since:2h, or an id, a key, a label, a part of
    an error.
    """
    with open_app(database, schema) as box:
        searcher = Searcher(box.store, box.settings)
        found = searcher.search(" ".join(text), reader="admin", cursor=cursor, limit=limit)
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print_found(found)
    if not found.items:
        exit_not_found()


def _print_found(found: SearchResult) -> None:
    rows = [
        (
            one.id, one.topic, one.destination, one.status, one.tries,
            each.why.text if each.why is not None else one.reason, one.updated_at,
        )
        for each in found.items
        for one in [each.delivery]
    ]  # fmt: skip
    if rows:
        print_table(("id", "topic", "destination", "status", "tries", "why", "changed"), rows)
    for line in (*found.notes, *_looked(found)):
        say_wrapped(line, indent=0)


def _looked(found: SearchResult) -> Iterator[str]:
    """What a search did not look at, if it left something out."""
    if found.sealed:
        yield f"{found.sealed} payloads are encrypted, and were passed over"
    if not found.complete:
        yield f"looked at the newest {found.looked_at}; go on: --cursor {found.next}"
    elif found.next is not None:
        yield f"there may be more: --cursor {found.next}"


def _newest(box: App, filters: Filter, limit: int) -> list[Delivery]:
    """The newest matching deliveries; without a status, unfinished and succeeded ones together."""
    rows = [*box.store.deliveries.find(filters, limit=limit).items]
    if filters.status is None:
        finished = msgspec.structs.replace(filters, status="succeeded")
        rows += box.store.deliveries.find(finished, limit=limit).items
    return sorted(rows, key=lambda row: -row.id)[:limit]


@click.command()
@database_option
@click.option("--by-fingerprint", is_flag=True, help="Also by where the code failed, so that each cause is a group.")
@utc_option
@json_option
def reasons(database: str | None, schema: str | None, by_fingerprint: bool, as_json: bool) -> None:
    """Group dead letters by reason and destination."""
    with open_app(database, schema) as box:
        groups = box.store.statistics.dead_letters(by_fingerprint=by_fingerprint)
    if not groups and not as_json:
        say("no dead letters")
        return
    columns: tuple[str, ...] = ("reason", "destination", "number", "first", "last", "example", "error")
    rows: list[tuple[object, ...]] = [
        (group.reason, group.destination, group.number, group.since, group.until, group.newest, group.error)
        for group in groups
    ]
    if by_fingerprint:
        columns = (*columns, "fingerprint")
        rows = [(*row, group.fingerprint) for row, group in zip(rows, groups, strict=True)]
    show_rows(columns, rows, as_json=as_json)


@click.command()
@database_option
@click.option("--since", type=duration, default="0", help="Also show past events, from this long ago: 10m.")
@click.option("--for", "seconds", type=duration, help="Stop after this time (default: on Ctrl-C).")
@click.option("--interval", type=duration, default="0.5", show_default=True, help="How often to poll.")
@utc_option
@json_option
def tail(
    database: str | None, schema: str | None, since: float, seconds: float | None, interval: float, as_json: bool
) -> None:
    """Show events as they happen, until Ctrl-C.

    Events are publishes, ends of attempts, and what operators do.
    """
    end = None if seconds is None else time.monotonic() + seconds
    with open_app(database, schema) as box, suppress(KeyboardInterrupt):
        for event in _follow(box, since, interval, end):
            _print_event(event, as_json=as_json)


def _follow(box: App, since: float, interval: float, end: float | None) -> Iterator[Event]:
    """Yields each event once, until `end` on the monotonic clock."""
    following = EventTail(box.store, since=since)
    while True:
        yield from following.poll().events
        if end is not None and time.monotonic() >= end:
            return
        time.sleep(max(interval, 0.05))


def _print_event(event: Event, *, as_json: bool) -> None:
    if as_json:
        print_json({
            "at": event.at, "what": event.what, "delivery": event.delivery_id, "message": event.message_id,
            "topic": event.topic, "destination": event.destination, "told": event.told,
        })  # fmt: skip
        return
    number = "" if event.delivery_id is None else f"#{event.delivery_id} "
    detail = format_value(event.told) if event.told else ""
    say_event(event.at, event.what, f"{number}{route_text(event.topic, event.destination)}  {detail}".rstrip())

"""Commands that show deliveries: stats, list, reasons, workers, tail; and one of them: show, explain, ledger."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from uuid import UUID

import click

from todoku.app import App
from todoku.cli.database_option import opened
from todoku.cli.options import database_option, duration, json_option
from todoku.cli.output import nothing, preview, print_json, print_table, say, show_rows, told
from todoku.core.identity import key_hash
from todoku.core.outcome import Response
from todoku.core.sealed import shown
from todoku.core.status import Status
from todoku.engine.diagnostics.explanation import explain as because
from todoku.engine.diagnostics.masked_json import masked, masked_headers
from todoku.store.attempts import Event
from todoku.store.deliveries import Delivery
from todoku.store.filter import Filter
from todoku.store.messages import Story
from todoku.store.statistics import Counts

_GLANCE = 200
"""So many bytes of an answer are shown."""

Happened = tuple[datetime, int | None, str, str | None]


def id_argument(text: str) -> UUID | int:
    """A message's id, or a delivery's number."""
    if text.isdecimal() and 0 < int(text) < 1 << 63:
        return int(text)
    try:
        return uuid.UUID(text)
    except ValueError:
        message = f"{text!r} is no id; give a delivery's number or a message's id, as `todoku list` shows them."
        raise click.BadParameter(message) from None


def _message_of(box: App, id: UUID | int) -> UUID | None:
    if isinstance(id, UUID):
        return id
    for status in (None, "succeeded"):
        for found in box.store.deliveries.find(Filter(ids=(id,), status=status), limit=1).items:
            return found.message_id
    return None


@click.command()
@database_option
@click.argument("id", type=id_argument, metavar="ID")
@json_option
def show(database: str | None, schema: str | None, id: UUID | int, as_json: bool) -> None:
    """Show a message: what is in it, where it goes, every failed attempt, and everything that happened to it.

    ID is the message's, or the number of one of its deliveries.
    """
    with opened(database, schema) as box:
        message = _message_of(box, id)
        story = None if message is None else box.store.messages.story(message)
        if story is None:
            nothing(f"there is no message or delivery {id}")
            return
        results = {row.id: box.store.deliveries.result(row.id) for row in story.deliveries if row.status == "succeeded"}
        fields = box.settings.mask_fields
    whole = _whole(story, results, fields)
    if as_json:
        print_json(whole)
    else:
        _print(story, whole)


def _whole(story: Story, results: dict[int, str | None], fields: tuple[str, ...]) -> dict[str, object]:
    message = story.message
    inside: object = masked(message.payload, fields)
    if message.payload_bytes is not None:
        inside = shown(message.content_type, len(message.payload_bytes))
    return {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "created": message.created_at,
        "headers": masked_headers(message.headers, fields),
        "payload": inside,
        "deliveries": [
            {
                "id": row.id, "destination": row.destination, "queue": row.queue, "status": row.status,
                "priority": row.priority, "attempts": row.attempts, "max_attempts": row.max_attempts,
                "replays": row.replay_count, "reason": row.reason, "error": row.error, "next_run": row.next_run_at,
                "worker": row.worker, "result": masked(results.get(row.id), fields),
            }
            for row in story.deliveries
        ],
        "timeline": [
            {"at": at, "delivery": number, "what": what, "told": text} for at, number, what, text in _timeline(story)
        ],
    }  # fmt: skip


def _timeline(story: Story) -> list[Happened]:
    """Everything that happened, in order."""
    events: list[Happened] = [(story.message.created_at, None, "published", None)]
    for attempt in story.attempts:
        text = attempt.reason + (f": {attempt.error}" if attempt.error else "") + _answer(attempt.response)
        events.append((attempt.ended_at, attempt.delivery_id, f"attempt {attempt.number} failed", text))
    for act in story.audit:
        kind, _, number = act.target.partition(":")
        events.append((act.at, int(number) if kind == "delivery" else None, act.action, f"{act.by}: {act.why}"))
    over = [row for row in story.deliveries if row.status in ("succeeded", "aborted")]
    events += [(row.updated_at, row.id, row.status, row.reason) for row in over]
    return sorted(events, key=lambda event: event[0])


def _answer(response: Response | None) -> str:
    """The beginning of what a receiver answered."""
    said = "" if response is None else " ".join(response.body[:_GLANCE].decode("utf-8", "replace").split())
    return f" ({said})" if said else ""


def _print(story: Story, whole: dict[str, object]) -> None:
    for name in ("id", "topic", "key", "created", "headers", "payload"):
        if whole[name] is not None:
            say(f"{name:<9} {told(whole[name])}")
    say()
    columns = ("delivery", "destination", "queue", "status", "attempts", "next run", "reason", "error")
    print_table(
        columns,
        [
            (
                row.id, row.destination, row.queue, row.status, f"{row.attempts}/{row.max_attempts}",
                row.next_run_at if row.status in ("pending", "failed") else None, row.reason, row.error,
            )
            for row in story.deliveries
        ],
    )  # fmt: skip
    say()
    print_table(("at", "delivery", "what", "told"), _timeline(story))


@click.command()
@database_option
@click.argument("id", type=id_argument, metavar="ID")
@json_option
def explain(database: str | None, schema: str | None, id: UUID | int, as_json: bool) -> None:
    """Say why a delivery has not run: paused, behind another, at a limit, due later, nobody there."""
    with opened(database, schema) as box:
        message = _message_of(box, id)
        story = None if message is None else box.store.messages.story(message)
        rows: list[tuple[int, str, str, str, str]] = []
        for row in () if story is None else story.deliveries:
            if id not in (message, row.id):
                continue
            situation = box.store.situation(row.id)
            if situation is None:
                text = f"it succeeded at {told(row.updated_at)}" if row.status == "succeeded" else "it just ended"
                rows.append((row.id, row.destination, "succeeded", text, ""))
            else:
                rows += [(row.id, row.destination, cause.cause, cause.text, cause.hint) for cause in because(situation)]
    if not rows:
        nothing(f"there is no message or delivery {id}")
    if as_json:
        show_rows(("delivery", "destination", "cause", "text", "hint"), rows, as_json=True)
        return
    for number, destination, _, text, hint in rows:
        say(f"{number} → {destination}: {text}" + (f" ({hint})" if hint else ""))


@click.command()
@database_option
@click.argument("key")
@click.option("--scope", required=True, help="publish:TOPIC, or effect:DESTINATION.")
@json_option
def ledger(database: str | None, schema: str | None, key: str, scope: str, as_json: bool) -> None:
    """Say what the ledger knows of an idempotency KEY (or of its hash, as logs have it)."""
    with opened(database, schema) as box:
        found = box.store.ledger.entry(scope, key_hash(key)) or box.store.ledger.entry(scope, key)
        fields = box.settings.mask_fields
    if found is None:
        nothing(f"the ledger knows nothing of {key!r} in {scope}")
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
            say(f"{name:<9} {told(value)}")


STATUSES = [status.value for status in Status]


@click.command()
@database_option
@json_option
def stats(database: str | None, schema: str | None, as_json: bool) -> None:
    """Say how many deliveries there are in each state."""
    with opened(database, schema) as box:
        counts, workers = box.store.statistics.counts(max_age=5.0), box.store.limits.read().workers
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
        inside = box.store.messages.previews([row.message_id for row in rows if row.message_id is not None])
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
    rows = [*box.store.deliveries.find(which, limit=limit).items]
    if which.status is None:
        finished = Filter(status="succeeded", topic=which.topic, destination=which.destination, queue=which.queue,
                          key=which.key, reason=which.reason, due=which.due)  # fmt: skip
        rows += box.store.deliveries.find(finished, limit=limit).items
    return sorted(rows, key=lambda row: -row.id)[:limit]


@click.command()
@database_option
@json_option
def reasons(database: str | None, schema: str | None, as_json: bool) -> None:
    """Group the dead letters by why they died."""
    with opened(database, schema) as box:
        groups = box.store.statistics.dead_letters()
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
        rows, now = box.store.leases.workers(), box.store.ping()
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
        for event in box.store.attempts.tail(since=max(begin, now - since - _OVERLAP - interval)):
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

"""Commands that copy the dead letters of a remote queue into a table, and send them again: dlq-sync, dlq-rerun."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import click

from todoku.cli.options import act_options, duration, identify_operator, json_option, open_app
from todoku.cli.output import print_json, say
from todoku.client.connection import connect
from todoku.client.failed_events import FailedEvents, default_event_id, parse_event_id_rule
from todoku.client.queue import Queue
from todoku.core.alert import Reading
from todoku.core.errors import QueueUnavailable
from todoku.engine.observability.alerts import Alarm
from todoku.engine.observability.log import configure_logging
from todoku.store.failed_event_table import TABLE

_TIMEOUT: Final = 30.0
"""Seconds. Longer than an application would wait: no request depends on a command."""

F = TypeVar("F", bound=Callable[..., Any])

_QUEUE = (
    click.option("--queue-url", "url", metavar="URL", help="Queue: a todoku server or QStash (QSTASH_URL)."),
    click.option("--token", envvar="QSTASH_TOKEN", help="Token of the queue (QSTASH_TOKEN)."),
)
_TABLE = (
    click.option("--db", "--database", "database", metavar="URL", help="Database with the table (TODOKU_DATABASE)."),
    click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA)."),
    click.option("--table", default=TABLE, show_default=True, help="Table; created if it does not exist."),
    *_QUEUE,
)


def _add_options(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.command("dlq-sync")
@_add_options(*_TABLE)
@click.option("--event-id", metavar="RULE", help="Where to find an event's id: header:NAME or body:FIELD.")
@click.option("--watch", type=duration, metavar="DURATION", help="Repeat at this interval until stopped: 30s.")
@json_option
def dlq_sync(
    *, database: str | None, schema: str | None, table: str, url: str | None, token: str | None,
    event_id: str | None, watch: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Copy the dead letters of a queue into a table.

    The table has the columns event_id, payload, error, created_at. Each event has one row, however often you run this.
    An event that was sent again and failed again is open again; one whose dead letter is gone is closed. With --watch,
    the dead letters of the queue raise the alerts dead_letters and dead_letter_age, as those of a daemon do.
    """
    rule = default_event_id if event_id is None else parse_event_id_rule(event_id)
    with open_app(database, schema) as box, connect(url, token=token, within=_TIMEOUT) as queue:
        events = FailedEvents(box, table, event_id=rule)
        if watch is None:
            _sync(events, queue, as_json=as_json)
            return
        settings = box.settings
        configure_logging(masked=settings.mask_fields)  # alerts go there, too
        every, alarm = max(watch, 0.1), Alarm(settings, about=queue.name)
        while True:
            try:
                alarm.check(_sync(events, queue, as_json=as_json), every=every)
            except QueueUnavailable as error:
                say(f"todoku: {error}", err=True)  # the next round may succeed
            time.sleep(every)


def _sync(events: FailedEvents, queue: Queue, *, as_json: bool) -> Reading:
    """Copies once. Returns the number of dead letters, and the age of the oldest."""
    number = added = 0
    now = oldest = datetime.now(UTC).timestamp()
    for event, new in events.sync(queue):
        number += 1
        added += new
        if event.created_at:
            oldest = min(oldest, datetime.fromisoformat(event.created_at).timestamp())
        if as_json and new:
            print_json(
                {
                    "event_id": event.event_id,
                    "message_id": event.message_id,
                    "dlq_id": event.dlq_id,
                    "error": event.error,
                }
            )
    if not as_json:
        say(f"{number} dead letter{'' if number == 1 else 's'}, {added} new")
    sys.stdout.flush()
    return Reading(dead_letters=number, dead_letter_age=now - oldest if number else 0.0)


@click.command("dlq-rerun")
@_add_options(*_TABLE)
@click.argument("event_id", metavar="EVENT_ID")
@click.option("--publish", is_flag=True, help="Publish a new message, even if the dead letter is gone.")
@act_options
@json_option
def dlq_rerun(
    *, database: str | None, schema: str | None, table: str, url: str | None, token: str | None, event_id: str,
    publish: bool, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send an event of the dlq-sync table again.

    Records in the table who did it, and why.
    """
    operator = identify_operator(by, why, dry_run=dry_run)
    with open_app(database, schema) as box, connect(url, token=token, within=_TIMEOUT) as queue:
        events = FailedEvents(box, table)
        event = events.get(event_id)
        id = None if dry_run else events.rerun(queue, event_id, by=operator.by, why=operator.why, publish=publish)
    if as_json:
        print_json({"event_id": event_id, "dlq_id": event.dlq_id, "message_id": id, "dry_run": dry_run})
    elif dry_run:
        before = "" if event.rerun_at is None else f" (sent again at {event.rerun_at} by {event.rerun_by})"
        say(f"would send {event_id} again: {event.error}{before}")
    else:
        say(f"sent {event_id} again as {id}")

"""Commands that add a message (publish, enqueue) or show one (show)."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import click

from todoku.cli.deliveries import id_argument, message_of
from todoku.cli.options import (
    database_option,
    duration,
    json_option,
    json_text,
    moment,
    open_app,
    open_named_app,
    utc_option,
)
from todoku.cli.output import (
    exit_not_found,
    format_time,
    format_value,
    pretty_json,
    print_json,
    print_table,
    say,
    say_title,
    say_wrapped,
)
from todoku.core.errors import InvalidMessage, NoRoute
from todoku.core.outcome import Response
from todoku.core.sealed import payload_placeholder, shown_traceback
from todoku.daemon.banner import command
from todoku.engine.diagnostics.masked_json import masked, masked_headers
from todoku.engine.publish import MessageOptions, directed
from todoku.store.attempts import Attempt
from todoku.store.deliveries import Delivery
from todoku.store.messages import Story

_OPTIONS = (
    click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app)."),
    click.option("--delay", type=duration, metavar="DURATION", help="Run no earlier than this from now: 90, 30m, 2h."),
    click.option("--at", type=moment, metavar="TIME", help="Run no earlier than this time: 2026-01-31T12:00:00Z."),
    click.option("--priority", type=click.IntRange(0, 15), default=0, show_default=True, help="Higher runs first."),
    click.option("--key", help="Ordered routes deliver messages with the same key in order."),
    click.option("--idempotency-key", help="Publish only once: a repetition returns the first message."),
    click.option(
        "--max-attempts", type=click.IntRange(1), metavar="N", help="Override the declared number of attempts."
    ),
)


def message_options(command: Any) -> Any:
    """Adds the options of a message, named as in Python."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@database_option
@click.argument("topic")
@click.argument("payload", type=str, metavar="[JSON]", default="null")
@message_options
@click.option("--to", metavar="DESTINATION", help="Send to this destination only; ignore the routes.")
@json_option
def publish(
    *, database: str | None, schema: str | None, topic: str, payload: str, app: str | None,
    max_attempts: int | None, to: str | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Publish a message.

    JSON is its payload (default: null); `-` reads it from standard input. The routes of your App decide where the
    message goes; without an App, pass --to.
    """
    body = json.loads(json_text(sys.stdin.read() if payload == "-" else payload))
    with usage_errors(), open_named_app(app, database, schema) as box:
        if not box.routes and to is None:
            hint = "name your App with --app, or pass --to DESTINATION"
            raise NoRoute("there are no routes that say where the message goes", hint=hint)
        routes = directed(
            box.routes, box.registry, to=to, max_attempts=max_attempts, usual=box.settings.max_attempts
        )  # fmt: skip
        draft = box.outbox.draft(topic, body, MessageOptions(**given), routes)
        (message,) = box.outbox.put([draft], None, twin="apublish")
    if as_json:
        print_json({"id": message.id, "topic": topic, "duplicate": message.duplicate, "created": message.created_at})
    else:
        say(f"{message.id}" + (" (already published)" if message.duplicate else ""))


@click.command()
@database_option
@click.argument("job")
@click.argument("arguments", nargs=-1, metavar="[JSON|NAME=VALUE]...")
@message_options
@json_option
def enqueue(
    *, database: str | None, schema: str | None, job: str, arguments: tuple[str, ...], app: str | None,
    max_attempts: int | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Enqueue a job of your App.

    Give its arguments as one JSON object, one JSON array, or name=value pairs. A value that is valid JSON (7, true,
    null) is read as JSON, any other as text.
    """
    args, kwargs = call_arguments(arguments)
    with usage_errors(), open_named_app(app, database, schema) as box:
        if not box.jobs:
            raise click.UsageError("There are no jobs; name your App with --app.")
        handle = box.jobs[job].using(max_attempts=max_attempts, **given).enqueue(*args, **kwargs)
    if as_json:
        print_json({"id": handle.id, "job": job, "duplicate": handle.duplicate})
    else:
        say(f"{handle.id}" + (" (already enqueued)" if handle.duplicate else ""))


def call_arguments(texts: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """Parses the words after a job's name into positional and named arguments."""
    if len(texts) == 1 and texts[0].lstrip()[:1] in ("{", "["):
        value = json.loads(json_text(texts[0]))
        return (value, {}) if isinstance(value, list) else ([], value)
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"{text!r} is not an argument; write name=value, or one JSON object.")
        named[name] = _json_or_text(value)
    return [], named


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turns InvalidMessage into wrong usage (exit 2). NoRoute stays a problem (exit 1)."""
    try:
        yield
    except NoRoute:
        raise
    except InvalidMessage as error:
        raise click.UsageError(str(error)) from None


# ------------------------------------------------------------------------------------------------------------ show

_SHOWN_BYTES: Final = 200
"""How many bytes of a receiver's response are shown."""

TimelineEntry = tuple[datetime, int | None, str, str | None]


@click.command()
@database_option
@click.argument("id", type=id_argument, metavar="ID")
@utc_option
@json_option
def show(database: str | None, schema: str | None, id: UUID | int, as_json: bool) -> None:
    """Show a message, its deliveries and its history.

    ID is a message id, or the number of one of its deliveries.
    """
    with open_app(database, schema) as box:
        message = message_of(box, id)
        story = None if message is None else box.store.messages.story(message)
        if story is None:
            exit_not_found(f"there is no message or delivery {id}")
            return
        results = {row.id: box.store.deliveries.result(row.id) for row in story.deliveries if row.status == "succeeded"}
        fields = box.settings.mask_fields
    document = _document(story, results, fields)
    if as_json:
        print_json(document)
        return
    _print_message(story, document)
    for row in story.deliveries:
        if row.error:
            _print_error(row, [attempt for attempt in story.attempts if attempt.delivery_id == row.id])
    for number, text in results.items():
        if text is not None:
            say_title(f"result of delivery {number}")
            say(*(f"  {line}" for line in pretty_json(masked(text, fields))))
    say_title("payload")
    say(*(f"  {line}" for line in pretty_json(document["payload"])))
    say_title("timeline")
    _print_timeline(story)
    say_title("next")
    _print_next(story.deliveries, database, schema)


def _document(story: Story, results: dict[int, str | None], fields: tuple[str, ...]) -> dict[str, object]:
    message = story.message
    payload: object = masked(message.payload, fields)
    if message.payload_bytes is not None:
        payload = payload_placeholder(message.content_type, len(message.payload_bytes))
    return {
        "id": message.id,
        "topic": message.topic,
        "key": message.key,
        "created": message.created_at,
        "headers": masked_headers(message.headers, fields),
        "payload": payload,
        "deliveries": [
            {
                "id": row.id, "destination": row.destination, "queue": row.queue, "status": row.status,
                "priority": row.priority, "attempts": row.attempts, "max_attempts": row.max_attempts,
                "replays": row.replay_count, "reason": row.reason, "error": row.error, "next_run": row.next_run_at,
                "worker": row.worker, "result": masked(results.get(row.id), fields),
            }
            for row in story.deliveries
        ],
        "attempts": [
            {
                "delivery": each.delivery_id, "replay": each.replay, "number": each.number, "ended": each.ended_at,
                "reason": each.reason, "error": each.error, "fingerprint": each.fingerprint,
                "traceback": shown_traceback(each.traceback),
            }
            for each in story.attempts
        ],
        "timeline": [
            {"at": at, "delivery": number, "what": what, "told": text} for at, number, what, text in _timeline(story)
        ],
    }  # fmt: skip


def _timeline(story: Story) -> list[TimelineEntry]:
    """Everything that happened to the message, oldest first."""
    events: list[TimelineEntry] = [(story.message.created_at, None, "published", None)]
    for attempt in story.attempts:
        text = attempt.reason + (f": {attempt.error}" if attempt.error else "") + _response_excerpt(attempt.response)
        events.append((attempt.ended_at, attempt.delivery_id, f"attempt {attempt.number} failed", text))
    for act in story.audit:
        kind, _, number = act.target.partition(":")
        events.append((act.at, int(number) if kind == "delivery" else None, act.action, f"{act.by}: {act.why}"))
    ended = [row for row in story.deliveries if row.status in ("succeeded", "aborted")]
    events += [(row.updated_at, row.id, row.status, row.reason) for row in ended]
    return sorted(events, key=lambda event: event[0])


def _response_excerpt(response: Response | None) -> str:
    """The first bytes of the receiver's response, in parentheses."""
    text = "" if response is None else " ".join(response.body[:_SHOWN_BYTES].decode("utf-8", "replace").split())
    return f" ({text})" if text else ""


def _print_message(story: Story, document: dict[str, object]) -> None:
    """Prints what the message is, and a table of its deliveries."""
    for name in ("id", "topic", "key", "headers"):
        if document[name]:
            say_wrapped(format_value(document[name]), indent=10, label=name)
    say(f"{'created':<10}{format_time(story.message.created_at)}", "")
    columns = ("delivery", "destination", "queue", "status", "attempts", "next run", "reason")
    print_table(
        columns,
        [
            (
                row.id, row.destination, row.queue, row.status, row.tries,
                row.next_run_at if row.status in ("pending", "failed") else None, row.reason,
            )
            for row in story.deliveries
        ],
        keep=columns[:5],
    )  # fmt: skip


def _print_error(row: Delivery, attempts: Sequence[Attempt]) -> None:
    """Prints the whole error of a delivery, then the traceback of the attempt that ended with it."""
    say_title(f"error of delivery {row.id}")
    for line in (row.error or "").splitlines():
        say_wrapped(line, indent=2)
    last = max(attempts, key=lambda attempt: attempt.epoch, default=None)
    if last is not None and (text := shown_traceback(last.traceback)) is not None:
        say_title(f"traceback (fingerprint {last.fingerprint})")
        say(*(f"  {line}" for line in text.splitlines()))


def _print_timeline(story: Story) -> None:
    """Prints what happened, oldest first; of which delivery, if there are several."""
    several = len(story.deliveries) > 1
    columns = ("at", "delivery", "what", "told") if several else ("at", "what", "told")
    print_table(
        columns,
        [(at, number, what, told) if several else (at, what, told) for at, number, what, told in _timeline(story)],
        keep=("at", "what"),
    )


def _print_next(deliveries: Sequence[Delivery], database: str | None, schema: str | None) -> None:
    """Prints what a person can do about each delivery that has not succeeded."""
    steps = [(step, row) for row in deliveries for step in _NEXT[row.status]]
    if not steps:
        say("  nothing: it has succeeded")
        return
    lines = [(command(verb, str(row.id), database=database, schema=schema), what) for (verb, what), row in steps]
    widest = max(len(text) for text, _ in lines)
    for text, what in lines:
        say_wrapped(what, indent=widest + 4, label=f"  {text}")


_NEXT: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "pending": (("explain", "says why it has not run yet"), ("cancel", "makes it a dead letter instead")),
    "sending": (("cancel", "asks its worker to stop it"),),
    "failed": (("explain", "says when it runs again"), ("cancel", "makes it a dead letter instead")),
    "aborted": (("replay", "sends it again, with a full set of attempts"), ("explain", "says what ended it")),
    "succeeded": (),
}
"""What a person can do about a delivery, by its status: a command and what it does."""

"""Commands that add messages: publish, enqueue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from todoku.cli.options import database_option, duration, json_option, json_text, moment, open_named_app
from todoku.cli.output import print_json, say
from todoku.core.errors import InvalidMessage, NoRoute
from todoku.engine.publish import MessageOptions, directed

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

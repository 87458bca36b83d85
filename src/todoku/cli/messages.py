"""Commands that put work in: publish, enqueue."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from todoku.cli.database_option import opened_app
from todoku.cli.options import database_option, duration, json_option, json_text, moment
from todoku.cli.output import print_json, say
from todoku.core.errors import InvalidMessage, NoRoute
from todoku.engine.publish import MessageOptions, directed

_OPTIONS = (
    click.option("--app", metavar="MODULE:ATTR", help="The App (TODOKU_APP, or [tool.todoku] app)."),
    click.option("--delay", type=duration, metavar="DURATION", help="Not before so long: 90, 30m, 2h."),
    click.option("--at", type=moment, metavar="TIME", help="Not before this time: 2026-01-31T12:00:00Z."),
    click.option("--priority", type=click.IntRange(0, 15), default=0, show_default=True, help="Larger is sooner."),
    click.option("--key", help="What shares it stays in order, where a route is ordered."),
    click.option("--idempotency-key", help="Once: a repetition finds the first."),
    click.option("--max-attempts", type=click.IntRange(1), metavar="N", help="Other than declared."),
)


def message_options(command: Any) -> Any:
    """The options of a message, the same words as in Python."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@database_option
@click.argument("topic")
@click.argument("payload", type=str, metavar="JSON", default="null")
@message_options
@click.option("--to", metavar="DESTINATION", help="Straight to this destination, whatever the routes say.")
@json_option
def publish(
    *, database: str | None, schema: str | None, topic: str, payload: str, app: str | None,
    max_attempts: int | None, to: str | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Publish a message: TOPIC, and its payload as JSON (`-`: from standard input).

    The App's routes say where it goes; without an App, say --to.
    """
    body = json.loads(json_text(sys.stdin.read() if payload == "-" else payload))
    with usage_errors(), opened_app(app, database, schema) as box:
        if not box.routes and to is None:
            raise NoRoute("without an App nothing says where a message goes", hint="name it with --app, or say --to")
        routes = directed(
            box.routes, box.registry, to=to, max_attempts=max_attempts, usual=box.settings.max_attempts
        )  # fmt: skip
        draft = box.outbox.draft(topic, body, MessageOptions(**given), routes)
        (message,) = box.outbox.put([draft], None, twin="apublish")
    if as_json:
        print_json({"id": message.id, "topic": topic, "duplicate": message.duplicate, "created": message.created_at})
    else:
        say(f"{message.id}" + (" (was published before)" if message.duplicate else ""))


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
    """Call a JOB of the App later. Its arguments: one JSON object, one JSON array, or name=value…

    A value is JSON if it can be (7, true, null), else text.
    """
    args, kwargs = call_arguments(arguments)
    with usage_errors(), opened_app(app, database, schema) as box:
        if not box.jobs:
            raise click.UsageError("Without an App there are no jobs; name it with --app.")
        handle = box.jobs[job].using(max_attempts=max_attempts, **given).enqueue(*args, **kwargs)
    if as_json:
        print_json({"id": handle.id, "job": job, "duplicate": handle.duplicate})
    else:
        say(f"{handle.id}" + (" (was enqueued before)" if handle.duplicate else ""))


def call_arguments(texts: tuple[str, ...]) -> tuple[list[Any], dict[str, Any]]:
    """What people write after a job's name, as positional and named arguments."""
    if len(texts) == 1 and texts[0].lstrip()[:1] in ("{", "["):
        value = json.loads(json_text(texts[0]))
        return (value, {}) if isinstance(value, list) else ([], value)
    named: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise click.UsageError(f"{text!r} is no argument; write name=value, or one JSON object.")
        named[name] = _value(value)
    return [], named


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


@contextmanager
def usage_errors() -> Iterator[None]:
    """What cannot be published as said is wrong usage; that no route takes it is a problem."""
    try:
        yield
    except NoRoute:
        raise
    except InvalidMessage as error:
        raise click.UsageError(str(error)) from None

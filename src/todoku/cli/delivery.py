"""Commands that tell of one thing: show, explain, ledger."""

from __future__ import annotations

import uuid
from datetime import datetime
from uuid import UUID

import click

from todoku.app import App
from todoku.cli.database_option import opened
from todoku.cli.options import database_option, json_option
from todoku.cli.output import nothing, print_json, print_table, say, show_rows, told
from todoku.core.identity import key_hash
from todoku.core.outcome import Response
from todoku.core.sealed import shown
from todoku.engine.diagnostics.explanation import explain as because
from todoku.engine.diagnostics.masked_json import masked, masked_headers
from todoku.store.values import Filter, Story

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
        for found in box.store.find(Filter(ids=(id,), status=status), limit=1).items:
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
        story = None if message is None else box.store.story(message)
        if story is None:
            nothing(f"there is no message or delivery {id}")
            return
        results = {row.id: box.store.result(row.id) for row in story.deliveries if row.status == "succeeded"}
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
        story = None if message is None else box.store.story(message)
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
        found = box.store.entry(scope, key_hash(key)) or box.store.entry(scope, key)
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

"""Commands about runs of workflows: flow show, export, rewind, signal, undo."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import click
import msgspec

from todoku.app import App
from todoku.cli.deliveries import id_argument
from todoku.cli.options import (
    act_options,
    database_option,
    identify_operator,
    json_option,
    json_text,
    open_app,
    utc_option,
)
from todoku.cli.output import (
    format_time,
    on_terminal,
    print_json,
    print_table,
    say,
    say_title,
    say_wrapped,
    terminal_width,
)
from todoku.core.duration import span_text
from todoku.daemon.banner import command
from todoku.engine.flows import history, operations
from todoku.engine.flows.operations import RunAct, ShownRun, ShownStep

_COLUMNS: Final = ("#", "name", "state", "took", "time", "told")
_BAR: Final = 40
"""How wide bars are, at most."""

_WORK, _WAIT, _REST = "█", "░", "·"
"""What bars are made of: of steps that work, of those that wait, and the time before and after."""


_id = click.argument("id", type=id_argument, metavar="[ID]", required=False)
_key = click.option("--key", metavar="KEY", help="Instead of ID: the idempotency key that the run was started with.")


def _named(box: App, id: UUID | int | None, key: str | None) -> UUID | int:
    """The run that a person names, by its id, or by its key."""
    if key is not None and id is None:
        return operations.find_run(box.store, key)
    if id is None or key is not None:
        raise click.UsageError("Say which run: give one of ID and --key KEY.")
    return id


@click.command("show")
@database_option
@_id
@_key
@utc_option
@json_option
def _show(database: str | None, schema: str | None, id: UUID | int | None, key: str | None, as_json: bool) -> None:
    """Show a run and its steps, one line each.

    A bar says when a step ran or waited, and for how long. ID is the id of the run, or the number of its delivery.
    """
    with open_app(database, schema) as box:
        found = operations.show(box.store, _named(box, id, key), mask_fields=box.settings.mask_fields)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    for label, text in _head(found):
        say_wrapped(text, indent=10, label=label)
    if not found.steps:
        say("", "no step has begun")
        return
    say()
    width = min(_BAR, max(10, terminal_width() // 5)) if on_terminal() else _BAR
    print_table(_COLUMNS, [_row(found, step, width) for step in found.steps], keep=_COLUMNS)
    if found.status == "aborted" and found.undo is None:
        say_title("next")
        number = str(found.delivery)
        steps = [([number if word == "ID" else word for word in words.split()], what) for words, what in _NEXT]
        lines = [(command(*words, database=database, schema=schema), what) for words, what in steps]
        widest = max(len(text) for text, _ in lines)
        for text, what in lines:
            say_wrapped(what, indent=widest + 4, label=f"  {text}")


_NEXT: Final = (
    ("replay ID", "runs it again; steps that are done are not repeated"),
    ("flow rewind ID --to STEP", "repeats a step, and all later ones"),
    ("flow undo ID", "undoes its steps, the last one first"),
)
"""What a person can do about a run that is a dead letter: a command and what it does."""


def _head(run: ShownRun) -> list[tuple[str, str]]:
    lines = [("run", str(run.id)), ("workflow", run.workflow), ("started", format_time(run.started))]
    lines.append(("status", run.status if run.reason is None else f"{run.status}, {run.reason}"))
    if run.error:
        lines.append(("error", run.error))
    if run.undo is not None:
        lines.append(("undo", "its steps are being undone" if run.undo == "begun" else "its steps were undone"))
    return lines


def _row(run: ShownRun, step: ShownStep, width: int) -> tuple[object, ...]:
    took = f"{step.seconds * 1000:.0f} ms" if step.seconds < 1 else span_text(step.seconds)
    return step.number, step.name, step.state, took, _bar(run, step, width), _told(step)


def _bar(run: ShownRun, step: ShownStep, width: int) -> str:
    """When the step ran, on a line from the start of the run to its last moment."""
    last = max(_end(run, step) for step in run.steps)
    scale = width / max((last - run.started).total_seconds(), 1e-9)
    begin = min(width - 1, max(0, int((step.started - run.started).total_seconds() * scale)))
    length = max(1, round(step.seconds * scale))
    bar = (_WORK if step.kind in ("step", "publish", "value") else _WAIT) * min(length, width - begin)
    return (_REST * begin + bar).ljust(width, _REST)


def _end(run: ShownRun, step: ShownStep) -> datetime:
    return run.now if step.ended is None else step.ended


def _told(step: ShownStep) -> str | None:
    """What a step waits for, or what became of it."""
    parts = []
    if step.signal is not None:
        parts.append(f"for the signal {step.signal}")
    if step.children is not None:
        parts.append(f"{step.children.ended} of {step.children.total} have ended")
    if step.until is not None:
        parts.append(f"{_THEN.get(step.state, 'until')} {format_time(step.until)}")
    if step.error is not None:
        parts.append(f"{step.attempts} attempts: {step.error}" if step.attempts > 1 else step.error)
    return ", ".join(parts) or None


_THEN: Final = {"sleeping": "wakes", "waiting": "gives up", "retrying": "tried again"}
"""What a step does when its time is over, by its state."""


# ------------------------------------------------------------------------------------------------------------ acts


@click.command("export")
@database_option
@click.argument("ids", nargs=-1, type=id_argument, metavar="[ID]...")
@click.option("--workflow", metavar="NAME", help="The newest runs of this workflow, unfinished ones first.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Of --workflow: so many.")
@click.option("--decrypt", is_flag=True, help="Also encrypted runs, in the clear, with the master key configured here.")
@act_options
def _export(
    *, database: str | None, schema: str | None, ids: tuple[UUID | int, ...], workflow: str | None, limit: int,
    decrypt: bool, by: str | None, why: str | None, dry_run: bool,
) -> None:  # fmt: skip
    """Print histories of runs, for tests of changed code.

    They have arguments and results in the clear, nothing masked: the audit records who exported them.
    """
    if bool(ids) is (workflow is not None):
        raise click.UsageError("Say which runs: give their IDs, or --workflow NAME.")
    with open_app(database, schema) as box:
        runs = ids if workflow is None else history.find_runs(box.outbox, workflow, limit)
        if dry_run:
            say(f"would export {len(runs)} runs: {', '.join(map(str, runs))}")
            return
        found = history.export(box.outbox, runs, identify_operator(by, why, dry_run=False), decrypt=decrypt)
    for each in found:
        say(history.to_line(each))


@click.command("rewind")
@database_option
@_id
@_key
@click.option("--to", metavar="STEP", help="The first step to repeat: its name, or its number.")
@click.option("--accept", is_flag=True, help="Repeat only the steps whose arguments have changed (STEP_CHANGED).")
@act_options
@json_option
def _rewind(
    *, database: str | None, schema: str | None, id: UUID | int | None, key: str | None, to: str | None, accept: bool,
    by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a dead letter again from a step on.

    That step and all later ones are repeated; they stay visible as rewound. What they did is not undone.
    """
    if (to is None) is not accept:
        raise click.UsageError("Say where to begin: give one of --to STEP and --accept.")
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        done = operations.rewind(box.store, _named(box, id, key), operator, to=to, accept=accept, dry_run=dry_run)
    _report("rewind", done, "rewound", as_json=as_json)


@click.command("undo")
@database_option
@_id
@_key
@act_options
@json_option
def _undo(
    *, database: str | None, schema: str | None, id: UUID | int | None, key: str | None, by: str | None,
    why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Undo the steps of a dead letter, the last one first.

    It can never be replayed then.
    """
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        done = operations.undo(box.store, _named(box, id, key), operator, dry_run=dry_run)
    _report("undo", done, "is undoing", as_json=as_json)


@click.command("signal")
@database_option
@click.argument("words", nargs=-1, metavar="[ID] NAME [JSON]")
@_key
@act_options
@json_option
def _signal(
    *, database: str | None, schema: str | None, words: tuple[str, ...], key: str | None, by: str | None,
    why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Send a value to a run that waits for it, or will."""
    id, (name, *rest) = _parse_signal(words, keyed=key is not None)
    value: Any = msgspec.json.decode(json_text(rest[0] if rest else "null"))
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        done = operations.signal(box.outbox, _named(box, id, key), name, value, operator, dry_run=dry_run)
    _report("signal", done, f"sent {name}", as_json=as_json, rest="no step waits for it yet: it is kept")


def _parse_signal(words: tuple[str, ...], *, keyed: bool) -> tuple[UUID | int | None, Sequence[str]]:
    """The ID, which a --key stands for, and the name and the value behind it."""
    if not (keyed and 1 <= len(words) <= 2) and not (not keyed and 2 <= len(words) <= 3):
        raise click.UsageError("Give ID NAME [JSON], or --key KEY NAME [JSON]. Quote the JSON.")
    return (None, words) if keyed else (id_argument(words[0]), words[1:])


def _report(act: str, done: RunAct, verb: str, *, as_json: bool, rest: str = "no step") -> None:
    if as_json:
        print_json({"act": act, "run": done.run, "steps": done.steps, "dry_run": done.dry_run})
    else:
        say(f"{'would: ' if done.dry_run else ''}{verb}: {', '.join(done.steps) or rest}")


COMMANDS = (_show, _export, _rewind, _signal, _undo)

flow = click.Group(
    "flow", {command.name: command for command in COMMANDS if command.name is not None},
    help="Look at runs of workflows, rewind, signal or undo them.",
)  # fmt: skip

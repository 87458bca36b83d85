"""`todoku workers`, and `todoku workers drain`, `resume`, `stack`."""

from __future__ import annotations

import sys
from typing import Literal

import click
import msgspec

from todoku.app import App
from todoku.cli.options import act_options, database_option, identify_operator, json_option, open_app, utc_option
from todoku.cli.output import print_json, say, show_rows
from todoku.engine import workers as engine
from todoku.engine.worker.handler_stacks import HandlerStacks, RunningHandler
from todoku.engine.workers import RunningWorker

_HELD = 100


@click.group(invoke_without_command=True)
@database_option
@utc_option
@json_option
@click.option("--holds", is_flag=True, help="List the deliveries that each worker holds, the oldest first.")
@click.pass_context
def workers(context: click.Context, database: str | None, schema: str | None, as_json: bool, holds: bool) -> None:
    """List workers, drain one, or see where its handlers stand."""
    if context.invoked_subcommand is not None:
        return
    with open_app(database, schema) as box:
        found = engine.list_workers(box.store, most=_HELD if holds else 0)
    if not found and not as_json:
        say("no workers")
    elif holds:
        _show_held(found, as_json=as_json)
    else:
        columns = ("id", "name", "state", "alive", "held", "started", "lease_ends", "slots", "version")
        show_rows(columns, [_row(one) for one in found], as_json=as_json)


def _row(one: RunningWorker) -> tuple[object, ...]:
    lease = one.lease
    return (
        lease.id, lease.name, one.status, one.is_alive, lease.held, lease.started_at, lease.expires_at, lease.slots,
        lease.version,
    )  # fmt: skip


def _show_held(found: tuple[RunningWorker, ...], *, as_json: bool) -> None:
    columns = ("worker", "delivery", "message", "topic", "destination", "attempt", "of", "held_since")
    rows = [
        (one.lease.name, held.id, held.message_id, held.topic, held.destination, held.attempt, held.max_attempts,
         held.claimed_at)
        for one in found for held in one.holds
    ]  # fmt: skip
    show_rows(columns, rows, as_json=as_json)


def _act(act: Literal["drain", "resume"], help: str) -> click.Command:
    """Creates the command that does `act` to one worker."""

    @click.command(act, help=help)
    @database_option
    @click.argument("worker", metavar="NAME|ID")
    @act_options
    @json_option
    def command(
        *, database: str | None, schema: str | None, worker: str, by: str | None, why: str | None, dry_run: bool,
        as_json: bool,
    ) -> None:  # fmt: skip
        with open_app(database, schema) as box:
            operator = identify_operator(by, why, dry_run=dry_run)
            found = engine.find_worker(box.store, worker)
            if not dry_run:
                (engine.drain if act == "drain" else engine.resume)(box.store, found, operator)
        if as_json:
            print_json({"act": act, "worker": found, "dry_run": dry_run})
        else:
            say(f"would {act} {found}" if dry_run else f"asked {found} to {act}; it obeys within two seconds")

    return command


@click.command("stack")
@database_option
@click.argument("worker", metavar="NAME|ID")
@click.option("--by", metavar="NAME", help="Your name (TODOKU_BY; default: the system user).")
@click.option("--why", metavar="TEXT", default="todoku workers stack", help="Reason, for the audit.")
@json_option
def _stack(*, database: str | None, schema: str | None, worker: str, by: str | None, why: str, as_json: bool) -> None:
    """Show where the handlers of a running worker stand.

    The worker answers within about two seconds, wherever it runs. Stacks have no local variables. Exits 1 if it does
    not answer.
    """
    with open_app(database, schema) as box:
        found = _ask(box, worker, by, why)
    if found is None:
        say("the worker has not answered; is it alive? `todoku workers` lists them", err=True)
        sys.exit(1)
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    if not found.handlers:
        say("no handler runs")
    for one in found.handlers:
        _say_handler(one, kept=found.kept)
    if found.more:
        say(f"and {found.more} more, which have run for less time")


def _ask(box: App, worker: str, by: str | None, why: str) -> HandlerStacks | None:
    operator = identify_operator(by, why, dry_run=False)
    return engine.ask_stacks(box.store, engine.find_worker(box.store, worker), operator).stacks


def _say_handler(one: RunningHandler, *, kept: bool) -> None:
    say(
        f"#{one.delivery} {one.topic} → {one.destination}, attempt {one.attempt}, for {one.seconds:g} s ({one.runs_in})"
    )
    missing = "(its stack cannot be read now)" if kept else "(the setting `tracebacks` of the worker is off)"
    say("\n".join(f"  {line}" for line in (one.stack or missing).rstrip().splitlines()))


for command in (
    _act("drain", "Let a worker claim nothing until it is resumed or restarted; what it runs ends."),
    _act("resume", "Let a drained worker claim again."),
    _stack,
):
    workers.add_command(command)

"""Commands that change deliveries: replay, cancel, settle, clear. Each is signed and audited."""

from __future__ import annotations

import sys
from typing import Any, Literal
from uuid import UUID

import click

from todoku.app import App
from todoku.cli.database_option import opened
from todoku.cli.deliveries import STATUSES, id_argument
from todoku.cli.options import act_options, database_option, duration, json_option, json_text, rate, signed
from todoku.cli.output import print_json, progress, say
from todoku.engine import operate
from todoku.store.filter import Filter

Ids = tuple[UUID | int, ...]

_NARROWED = (
    click.option("--topic", help="Only this topic."),
    click.option("--destination", help="Only to this destination."),
    click.option("--queue", help="Only in this queue."),
    click.option("--key", help="Only with this key."),
)


def narrowed(command: Any) -> Any:
    """The options that say which of all."""
    for option in reversed(_NARROWED):
        command = option(command)
    return command


def chosen(box: App, ids: Ids, *, everything: bool, **which: str | None) -> Filter:
    """What the person named: some by id, or by a reason, or all."""
    refuse_empty(**which)
    if (len(ids) > 0) + everything + (which.get("reason") is not None) != 1:
        one = "IDs, --reason or --all" if "reason" in which else "IDs or --all"
        raise click.UsageError(f"Say which: {one}, one of them.")
    if ids and any(which.values()):
        raise click.UsageError("IDs say which already; leave the other options out.")
    return Filter(ids=operate.resolve(box.store, ids)) if ids else Filter(**which)  # type: ignore[arg-type]


def refuse_empty(**which: str | None) -> None:
    """An option without a value (`--topic "$TOPIC"` where TOPIC is not set) is refused: it must not mean everything."""
    for name, value in which.items():
        if value is not None and not value.strip():
            raise click.UsageError(f"--{name} is empty; leave it out, or say what it must be.")


def report(act: str, matched: int, changed: int, skipped: dict[str, int], *, dry_run: bool, as_json: bool) -> None:
    """Say what an act came to; exit 1 if it changed nothing."""
    if as_json:
        print_json(
            {"act": act, "matched": matched, "changed": changed, "skipped": skipped, "dry_run": dry_run}
        )  # fmt: skip
    else:
        say(f"{act}: {'would change' if dry_run else 'changed'} {changed} of {matched}")
        for why, number in sorted(skipped.items()):
            say(f"  {number} passed over: {why}{_HINTS.get(why, '')}")
    if changed == 0:
        sys.exit(1)


_HINTS = {
    "is sending": " (its worker settles it; if that is dead: todoku release-expired)",
    "is aborted": " (a dead letter: replay it, or clear --status aborted --topic …)",
}


@click.command()
@database_option
@click.argument("ids", nargs=-1, type=id_argument, metavar="[ID]...")
@click.option("--reason", help="All dead letters with this reason.")
@click.option("--all", "everything", is_flag=True, help="All dead letters.")
@narrowed
@click.option("--limit", type=click.IntRange(1), help="At most so many, oldest first.")
@click.option("--rate", "pace", type=rate, metavar="R/s", help="At most so many a second, for example 20/s.")
@act_options
@json_option
def replay(
    *, database: str | None, schema: str | None, ids: Ids, everything: bool, limit: int | None, pace: float | None,
    by: str | None, why: str | None, dry_run: bool, as_json: bool, **which: str | None,
) -> None:  # fmt: skip
    """Send dead letters again, with all their attempts: IDs, those with a reason, or all."""
    with opened(database, schema) as box:
        chosen_ones, who = chosen(box, ids, everything=everything, **which), signed(by, why, dry_run=dry_run)
        with progress("replaying", total=limit, quiet=as_json) as tell:
            done = operate.replay(
                box.store, chosen_ones, who, limit=limit, rate=pace, dry_run=dry_run, progress=tell
            )  # fmt: skip
    report("replay", done.matched, done.replayed, done.skipped, dry_run=dry_run, as_json=as_json)


@click.command()
@database_option
@click.argument("ids", nargs=-1, type=id_argument, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="All that wait or run.")
@narrowed
@act_options
@json_option
def cancel(
    *, database: str | None, schema: str | None, ids: Ids, everything: bool, by: str | None, why: str | None,
    dry_run: bool, as_json: bool, **which: str | None,
) -> None:  # fmt: skip
    """Let deliveries not happen: what waits becomes a dead letter, what runs is asked to stop."""
    with opened(database, schema) as box:
        chosen_ones, who = chosen(box, ids, everything=everything, **which), signed(by, why, dry_run=dry_run)
        with progress("cancelling", quiet=as_json) as tell:
            done = operate.cancel(box.store, chosen_ones, who, dry_run=dry_run, progress=tell)
    report("cancel", done.matched, done.changed, done.skipped, dry_run=dry_run, as_json=as_json)


@click.command()
@database_option
@click.argument("ids", nargs=-1, required=True, type=id_argument, metavar="ID...")
@click.option("--as", "outcome", required=True, type=click.Choice(["succeeded", "aborted"]), help="How it ended.")
@click.option("--result", type=json_text, metavar="JSON", help="The result of a success.")
@act_options
@json_option
def settle(
    *, database: str | None, schema: str | None, ids: Ids, outcome: Literal["succeeded", "aborted"],
    result: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say by hand how deliveries ended. The ledger is told first. Never of what a live worker runs."""
    if result is not None and outcome == "aborted":
        raise click.UsageError("Only a success has a --result.")
    with opened(database, schema) as box:
        which, who = Filter(ids=operate.resolve(box.store, ids)), signed(by, why, dry_run=dry_run)
        done = operate.settle(
            box.store, which, who, succeeded=outcome == "succeeded", result=result, dry_run=dry_run
        )  # fmt: skip
    report(f"settle as {outcome}", done.matched, done.changed, done.skipped, dry_run=dry_run, as_json=as_json)


@click.command()
@database_option
@click.option("--status", required=True, type=click.Choice(STATUSES), help="What to remove.")
@click.option("--older-than", type=duration, metavar="DURATION", help="Only what has not changed for so long: 7d.")
@click.option("--topic", help="Only this topic.")
@click.option("--all", "everything", is_flag=True, help="All that have the status.")
@act_options
@json_option
def clear(
    *, database: str | None, schema: str | None, status: Any, older_than: float | None, topic: str | None,
    everything: bool, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Remove deliveries: finished ones are pruned, waiting ones cancelled first, dead letters purged."""
    if status == "sending":
        raise click.UsageError("What is sending belongs to its worker; cancel it, or todoku release-expired.")
    refuse_empty(topic=topic)
    if everything == (topic is not None or older_than is not None):
        raise click.UsageError("Say which: --older-than or --topic or both, or --all.")
    with opened(database, schema) as box:
        who = signed(by, why, dry_run=dry_run)
        with progress("clearing", quiet=as_json) as tell:
            done = operate.clear(
                box.store, status, who, older_than=older_than, topic=topic, dry_run=dry_run, progress=tell
            )  # fmt: skip
    report(f"clear {status}", done.matched, done.changed, done.skipped, dry_run=dry_run, as_json=as_json)

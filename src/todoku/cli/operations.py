"""Commands that change deliveries: replay, cancel, settle, clear. Each is audited with the operator's name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Literal
from uuid import UUID

import click

from todoku.app import App
from todoku.cli.deliveries import STATUSES, id_argument
from todoku.cli.options import (
    act_options,
    database_option,
    duration,
    identify_operator,
    json_option,
    json_text,
    open_app,
    open_named_app,
    rate,
)
from todoku.cli.output import print_json, progress, say
from todoku.engine import operations
from todoku.engine.deliveries import Of, resolve
from todoku.store.deliveries import Filter

Ids = tuple[UUID | int, ...]

_FILTERS = (
    click.option("--topic", help="Only this topic."),
    click.option("--destination", help="Only to this destination."),
    click.option("--queue", help="Only in this queue."),
    click.option("--key", help="Only with this key."),
    click.option("--label", help="Only with this label."),
)


def filter_options(command: Any) -> Any:
    """Adds the options that narrow --all."""
    for option in reversed(_FILTERS):
        command = option(command)
    return command


def build_filter(box: App, ids: Ids, of: Of, /, *, everything: bool, **filters: str | None) -> Filter:
    """The deliveries that the operator selected: by ID, by reason, or all. UsageError if that is not clear."""
    refuse_empty(**filters)
    if (len(ids) > 0) + everything + (filters.get("reason") is not None) != 1:
        choice = "IDs, --reason or --all" if "reason" in filters else "IDs or --all"
        raise click.UsageError(f"Say which deliveries: give exactly one of {choice}.")
    if ids and any(filters.values()):
        raise click.UsageError("IDs cannot be combined with filters; leave the filters out.")
    return Filter(ids=resolve(box.store, ids, of=of)) if ids else Filter(**filters)  # type: ignore[arg-type]


def refuse_empty(**filters: str | None) -> None:
    """Refuses an empty option, as `--topic "$TOPIC"` is where TOPIC is not set: it must not mean every delivery."""
    for name, value in filters.items():
        if value is not None and not value.strip():
            raise click.UsageError(f"--{name} is empty; give a value, or leave it out.")


def _at_most(limit: int | None, box: App, selected: Filter, *statuses: str) -> int | None:
    """The total of a progress bar: the deliveries in these statuses, but not more than `limit`."""
    found = operations.count_matching(box.store, selected, statuses)
    return min((number for number in (found, limit) if number is not None), default=None)


def _to_clear(box: App, status: str, topic: str | None) -> int | None:
    """The total of a progress bar, before `--older-than`; None of succeeded deliveries of one topic: they are many."""
    if status != "succeeded":
        return _at_most(None, box, Filter(topic=topic), status)
    return box.store.statistics.counts().succeeded if topic is None else None


def report(
    act: str, matched: int, changed: int, skipped: dict[str, int], *, dry_run: bool, as_json: bool,
    new: Sequence[UUID] | None = None,
) -> None:  # fmt: skip
    """Prints the result of an act, and the new messages of one that makes some. Exits 1 if it changed nothing."""
    if as_json:
        more = {} if new is None else {"messages": new}
        print_json(
            {"act": act, "matched": matched, "changed": changed, "skipped": skipped, "dry_run": dry_run, **more}
        )  # fmt: skip
    else:
        say(f"{act}: {'would change' if dry_run else 'changed'} {changed} of {matched}")
        for why, number in sorted(skipped.items()):
            say(f"  {number} skipped: {why}{_HINTS.get(why, '')}")
        for id in (new or ())[:_SHOWN]:
            say(f"  new message {id}")
    if changed == 0:
        sys.exit(1)


_SHOWN = 20
"""New messages that are listed, at most."""

_HINTS = {
    "is sending": " (its worker will settle it; if the worker is dead, run `todoku release-expired`)",
    operations.SUCCEEDED: " (it has arrived; to run it again as a new message, use `todoku replay --again`)",
    "is aborted": " (it is a dead letter: `todoku replay ID` sends it again, `todoku clear ID` removes it)",
}


@click.command()
@database_option
@click.argument("ids", nargs=-1, type=id_argument, metavar="[ID]...")
@click.option("--reason", help="Replay all dead letters with this reason.")
@click.option("--all", "everything", is_flag=True, help="Replay all dead letters.")
@filter_options
@click.option("--limit", type=click.IntRange(1), help="Replay at most this many, oldest first.")
@click.option("--rate", "pace", type=rate, metavar="R/s", help="Replay no faster than this: 20/s.")
@click.option("--again", is_flag=True, help="Run successes again instead, each as a new message.")
@click.option("--app", metavar="MODULE:ATTR", help="Your App, for --again (TODOKU_APP, or [tool.todoku] app).")
@act_options
@json_option
def replay(
    *, database: str | None, schema: str | None, ids: Ids, everything: bool, limit: int | None, pace: float | None,
    again: bool, app: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool, **filters: str | None,
) -> None:  # fmt: skip
    """Send dead letters again, with a full set of attempts.

    Select them by ID, by --reason, or with --all.

    With --again, run deliveries again that succeeded: each as a new message to that destination alone, without its
    idempotency key, and with the label todoku.again_of:ID. Your App says in which order and within which limits.
    """
    with open_named_app(app, database, schema) if again else open_app(database, schema) as box:
        of: Of = "succeeded" if again else "unfinished"
        selected = build_filter(box, ids, of, everything=everything, **filters)
        operator = identify_operator(by, why, dry_run=dry_run)
        total = (lambda: limit) if again else lambda: _at_most(limit, box, selected, "aborted")
        with progress("replaying", total=total, quiet=as_json) as report_progress:
            options: Any = {"limit": limit, "rate": pace, "dry_run": dry_run, "progress": report_progress}
            if again:
                route_to = box.declarations.route_to
                done = operations.repeat(box.outbox, selected, operator, route_to=route_to, **options)
            else:
                done = operations.refuse_successes(operations.replay(box.store, selected, operator, **options))
    new = done.messages if again else None
    report("replay", done.matched, done.replayed, done.skipped, dry_run=dry_run, as_json=as_json, new=new)


@click.command()
@database_option
@click.argument("ids", nargs=-1, type=id_argument, metavar="[ID]...")
@click.option("--all", "everything", is_flag=True, help="Cancel all that are waiting or running.")
@filter_options
@act_options
@json_option
def cancel(
    *, database: str | None, schema: str | None, ids: Ids, everything: bool, by: str | None, why: str | None,
    dry_run: bool, as_json: bool, **filters: str | None,
) -> None:  # fmt: skip
    """Cancel deliveries that are waiting or running.

    A waiting delivery becomes a dead letter (CANCELLED). The worker of a running one is asked to stop it.
    """
    with open_app(database, schema) as box:
        selected = build_filter(box, ids, "unfinished", everything=everything, **filters)
        operator = identify_operator(by, why, dry_run=dry_run)
        with progress(
            "cancelling", total=lambda: _at_most(None, box, selected, "pending", "failed", "sending"), quiet=as_json
        ) as report_progress:
            done = operations.cancel(box.store, selected, operator, dry_run=dry_run, progress=report_progress)
    report("cancel", done.matched, done.changed, done.skipped, dry_run=dry_run, as_json=as_json)


@click.command()
@database_option
@click.argument("ids", nargs=-1, required=True, type=id_argument, metavar="ID...")
@click.option("--as", "outcome", required=True, type=click.Choice(["succeeded", "aborted"]), help="How they ended.")
@click.option("--result", type=json_text, metavar="JSON", help="Result; only with --as succeeded.")
@act_options
@json_option
def settle(
    *, database: str | None, schema: str | None, ids: Ids, outcome: Literal["succeeded", "aborted"],
    result: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Record by hand how deliveries ended.

    Use it when you know the outcome and todoku does not. The ledger is updated first. A delivery that a live worker
    holds is skipped.
    """
    if result is not None and outcome == "aborted":
        raise click.UsageError("--result needs --as succeeded.")
    with open_app(database, schema) as box:
        filters, operator = Filter(ids=resolve(box.store, ids)), identify_operator(by, why, dry_run=dry_run)
        done = operations.settle(
            box.store, filters, operator, succeeded=outcome == "succeeded", result=result, dry_run=dry_run
        )  # fmt: skip
    report(f"settle as {outcome}", done.matched, done.changed, done.skipped, dry_run=dry_run, as_json=as_json)


@click.command()
@database_option
@click.argument("ids", nargs=-1, type=id_argument, metavar="[ID]...")
@click.option("--status", type=click.Choice(STATUSES), help="Remove deliveries with this status.")
@click.option("--older-than", type=duration, metavar="DURATION", help="Only if unchanged for this long: 7d.")
@click.option("--topic", help="Only this topic.")
@click.option("--all", "everything", is_flag=True, help="Remove all with this status.")
@act_options
@json_option
def clear(
    *, database: str | None, schema: str | None, ids: Ids, status: Any, older_than: float | None, topic: str | None,
    everything: bool, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Remove dead letters, or deliveries by status.

    succeeded: pruned early. pending, failed: cancelled, then removed. aborted: dead letters are purged. sending:
    refused.
    """
    _check_clear(ids, status, narrowed=topic is not None or older_than is not None, everything=everything)
    refuse_empty(topic=topic)
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        total = (lambda: len(ids)) if ids else lambda: _to_clear(box, status, topic)
        with progress("clearing", total=total, quiet=as_json) as report_progress:
            if ids:
                which = Filter(ids=resolve(box.store, ids))
                done = operations.purge(box.store, which, operator, dry_run=dry_run, progress=report_progress)
            else:
                done = operations.clear(
                    box.store, status, operator, older_than=older_than, topic=topic, dry_run=dry_run,
                    progress=report_progress,
                )  # fmt: skip
    act = "clear" if ids else f"clear {status}"
    report(act, done.matched, done.changed, done.skipped, dry_run=dry_run, as_json=as_json)


def _check_clear(ids: Ids, status: str | None, *, narrowed: bool, everything: bool) -> None:
    """UsageError unless it is clear what is removed."""
    if ids:
        if status not in (None, "aborted") or narrowed or everything:
            raise click.UsageError("IDs are of dead letters, and cannot be combined with other options.")
        return
    if status is None:
        raise click.UsageError("Say which deliveries: IDs of dead letters, or --status.")
    if status == "sending":
        raise click.UsageError(
            "A delivery that is sending belongs to its worker; use `todoku cancel`, or `todoku release-expired`."
        )
    if everything == narrowed:
        raise click.UsageError("Say which deliveries: --older-than, --topic or both; or --all.")

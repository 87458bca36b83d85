"""Commands that control how workers claim: limit, limits, pause, resume, release-expired."""

from __future__ import annotations

import click

from todoku.app import App
from todoku.cli.options import act_options, database_option, duration, identify_operator, json_option, open_app, rate
from todoku.cli.output import exit_not_found, print_json, say, show_rows
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.engine import operations


@click.command()
@database_option
@click.argument("name", metavar="QUEUE|DESTINATION")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="At most this many at once, over all workers.")
@click.option("--rate", "pace", type=rate, metavar="R/s", help="At most this rate, over all workers: 5/s.")
@click.option("--for", "seconds", type=duration, metavar="DURATION", help="Remove the limit after this time: 30m.")
@click.option("--of", type=click.Choice(["queue", "destination"]), help="Kind of the name, if both have it.")
@click.option("--off", is_flag=True, help="Remove the limit.")
@act_options
@json_option
def limit(
    *, database: str | None, schema: str | None, name: str, concurrency: int | None, pace: float | None,
    seconds: float | None, of: operations.Kind | None, off: bool, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Limit a queue or a destination, over all workers.

    Running workers apply it within two seconds. The command replaces the whole limit: what you leave out is not
    limited.
    """
    if off == (concurrency is not None or pace is not None):
        raise click.UsageError("Give --concurrency, --rate or both; or --off.")
    if off and seconds is not None:
        raise click.UsageError("--for cannot be combined with --off.")
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        kind = operations.limit(
            box.store, name, operator, of=of, concurrency=concurrency, rate=pace, lasts=seconds, dry_run=dry_run
        )  # fmt: skip
    if as_json:
        print_json({
            "act": "limit", "of": kind, "name": name, "concurrency": concurrency, "rate": pace, "for": seconds,
            "dry_run": dry_run,
        })  # fmt: skip
        return
    if off:
        say(f"{'would remove' if dry_run else 'removed'} the limit of {kind} {name}")
        return
    once = "any number at once" if concurrency is None else f"at most {concurrency} at once"
    paced = "at any rate" if pace is None else f"{pace:g} a second"
    span = "" if seconds is None else f", for {seconds:g} s"
    say(f"{'would limit' if dry_run else 'limited'} {kind} {name}: {once}, {paced}{span}")


LIMITS = ("of", "name", "key", "concurrency", "rate", "running", "waiting")


@click.command()
@database_option
@click.option(
    "--limit",
    "max_keys",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="Show at most this many keys.",
)
@click.option("--app", metavar="MODULE:ATTR", help="App whose limits to show, too (TODOKU_APP, or [tool.todoku] app).")
@json_option
def limits(*, database: str | None, schema: str | None, max_keys: int, app: str | None, as_json: bool) -> None:
    """Show limits in force, and keys at their limit.

    Those that the App declares for each key of a job are `each key`. A key is listed while it is at its limit and has
    more deliveries waiting.
    """
    declared = _declared_limits(app)
    with open_app(database, schema) as box:
        found, full = box.store.limits.read(), box.store.statistics.full_gates(limit=max_keys)
    rows: list[tuple[object, ...]] = [
        (kind, limit.name, None, limit.concurrency, limit.rate, None, None)
        for kind, group in (("queue", found.queues), ("destination", found.destinations))
        for limit in group
        if limit.concurrency is not None or limit.rate is not None
    ]
    rows += declared
    rows += [("key", one.destination, one.key, one.concurrency, one.rate, one.running, one.waiting) for one in full]
    if not rows:
        exit_not_found("there are no limits, and no key is at its limit (limits in code are shown with --app)")
    show_rows(LIMITS, rows, as_json=as_json)


def _declared_limits(app: str | None) -> list[tuple[object, ...]]:
    """The limits per key of the jobs and consumers of the named App, as rows; none if no App is named."""
    if (name := find_app_name(app)) is None:
        return []
    box = load_app(name)
    box.close()
    limits = {job.name: limit for job in box.jobs.values() if (limit := job.route.per_key) is not None}
    return [("each key", name, None, limit.concurrency, limit.rate, None, None) for name, limit in limits.items()]


@click.command()
@database_option
@click.argument("queue")
@act_options
@json_option
def pause(
    *,
    database: str | None,
    schema: str | None,
    queue: str,
    by: str | None,
    why: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Stop claiming from a queue.

    Deliveries that are running continue.
    """
    with open_app(database, schema) as box:
        operations.pause(box.store, queue, identify_operator(by, why, dry_run=dry_run), dry_run=dry_run)
        is_empty = not _has_waiting(box, queue)
    _report("pause", queue, is_empty=is_empty, dry_run=dry_run, as_json=as_json)


@click.command()
@database_option
@click.argument("queue")
@act_options
@json_option
def resume(
    *,
    database: str | None,
    schema: str | None,
    queue: str,
    by: str | None,
    why: str | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Claim from a paused queue again."""
    with open_app(database, schema) as box:
        operations.resume(box.store, queue, identify_operator(by, why, dry_run=dry_run), dry_run=dry_run)
    _report("resume", queue, is_empty=False, dry_run=dry_run, as_json=as_json)


def _has_waiting(box: App, queue: str) -> bool:
    waiting = box.store.claims.waiting(None)
    return queue in {place[0] for place in (*waiting.groups, *waiting.suspects, *waiting.lanes, *waiting.gates)}


def _report(act: str, queue: str, *, is_empty: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"act": act, "queue": queue, "dry_run": dry_run})
        return
    say(f"would {act} {queue}" if dry_run else f"{act}d {queue}")
    if is_empty:
        say(f"(no delivery is waiting in queue {queue}; check the name)", err=True)


@click.command("release-expired")
@database_option
@act_options
@json_option
def release_expired(
    *, database: str | None, schema: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool
) -> None:
    """Free what workers with an expired lease hold.

    Workers do this by themselves at intervals; this command does it now.
    """
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        done = operations.release_expired(box.store, operator, max_lost=box.settings.max_lost, dry_run=dry_run)
    if as_json:
        print_json({
            "act": "release-expired", "workers": done.matched, "freed": done.changed, "skipped": done.skipped,
            "dry_run": dry_run,
        })  # fmt: skip
        return
    freed = "would free" if dry_run else "freed"
    say(f"{freed} {done.changed} deliveries of {done.matched} expired leases")
    for why_not, number in done.skipped.items():
        say(f"  {number} {why_not}")

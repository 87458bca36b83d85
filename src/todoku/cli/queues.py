"""Commands about how work is taken: limit, limits, pause, resume, release-expired."""

from __future__ import annotations

import click

from todoku.app import App
from todoku.cli.database_option import opened
from todoku.cli.options import act_options, database_option, duration, json_option, rate, signed
from todoku.cli.output import nothing, print_json, say, show_rows
from todoku.engine import operate


@click.command()
@database_option
@click.argument("name", metavar="QUEUE|DESTINATION")
@click.option("--concurrency", type=click.IntRange(1), metavar="N", help="At most so many at once, of all workers.")
@click.option("--rate", "pace", type=rate, metavar="R/s", help="At most so many a second, of all workers.")
@click.option("--for", "lasts", type=duration, metavar="DURATION", help="Only for so long: 30m.")
@click.option("--of", type=click.Choice(["queue", "destination"]), help="Which is meant, if the name is one of both.")
@click.option("--off", is_flag=True, help="No limit any more.")
@act_options
@json_option
def limit(
    *, database: str | None, schema: str | None, name: str, concurrency: int | None, pace: float | None,
    lasts: float | None, of: operate.Kind | None, off: bool, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Slow a queue or destination down; running workers obey within two seconds.

    The command states the whole limit: what it does not say is not limited.
    """
    if off == (concurrency is not None or pace is not None):
        raise click.UsageError("Say --concurrency or --rate or both, or --off.")
    if off and lasts is not None:
        raise click.UsageError("--for belongs to a limit.")
    with opened(database, schema) as box:
        who = signed(by, why, dry_run=dry_run)
        kind = operate.limit(
            box.store, name, who, of=of, concurrency=concurrency, rate=pace, lasts=lasts, dry_run=dry_run
        )  # fmt: skip
    if as_json:
        print_json({
            "act": "limit", "of": kind, "name": name, "concurrency": concurrency, "rate": pace, "for": lasts,
            "dry_run": dry_run,
        })  # fmt: skip
        return
    if off:
        say(f"{'would take' if dry_run else 'took'} the limit of {kind} {name} away")
        return
    once = "any number at once" if concurrency is None else f"at most {concurrency} at once"
    paced = "at any rate" if pace is None else f"{pace:g} a second"
    span = "" if lasts is None else f", for {lasts:g} s"
    say(f"{'would limit' if dry_run else 'limited'} {kind} {name}: {once}, {paced}{span}")


LIMITS = ("of", "name", "key", "concurrency", "rate", "running", "waiting")


@click.command()
@database_option
@click.option("--limit", "most", type=click.IntRange(1, 10_000), default=100, show_default=True, help="Keys at most.")
@json_option
def limits(*, database: str | None, schema: str | None, most: int, as_json: bool) -> None:
    """Show the limits in force, and the keys that are at their own limit while more of them waits."""
    with opened(database, schema) as box:
        found, full = box.store.limits.read(), box.store.statistics.full_gates(limit=most)
    rows: list[tuple[object, ...]] = [
        (kind, limit.name, None, limit.concurrency, limit.rate, None, None)
        for kind, some in (("queue", found.queues), ("destination", found.destinations))
        for limit in some
        if limit.concurrency is not None or limit.rate is not None
    ]
    rows += [("key", one.destination, one.key, one.concurrency, one.rate, one.running, one.waiting) for one in full]
    if not rows:
        nothing("nothing is limited, and no key is at its limit")
    show_rows(LIMITS, rows, as_json=as_json)


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
    """Stop taking from a QUEUE; what runs goes on."""
    with opened(database, schema) as box:
        operate.pause(box.store, queue, signed(by, why, dry_run=dry_run), dry_run=dry_run)
        unheard = not _heard_of(box, queue)
    _say("pause", queue, unheard=unheard, dry_run=dry_run, as_json=as_json)


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
    """Take from a QUEUE again."""
    with opened(database, schema) as box:
        operate.resume(box.store, queue, signed(by, why, dry_run=dry_run), dry_run=dry_run)
    _say("resume", queue, unheard=False, dry_run=dry_run, as_json=as_json)


def _heard_of(box: App, queue: str) -> bool:
    waiting = box.store.claims.waiting(None)
    return queue in {place[0] for place in (*waiting.groups, *waiting.suspects, *waiting.lanes, *waiting.gates)}


def _say(act: str, queue: str, *, unheard: bool, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"act": act, "queue": queue, "dry_run": dry_run})
        return
    say(f"would {act} {queue}" if dry_run else f"{act}d {queue}")
    if unheard:
        say(f"(nothing waits in a queue {queue} right now)", err=True)


@click.command("release-expired")
@database_option
@act_options
@json_option
def release_expired(
    *, database: str | None, schema: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool
) -> None:
    """End the leases that ran out and free what they hold, without waiting for a worker to do it."""
    with opened(database, schema) as box:
        who = signed(by, why, dry_run=dry_run)
        done = operate.release_expired(box.store, who, max_lost=box.settings.max_lost, dry_run=dry_run)
    if as_json:
        print_json({
            "act": "release-expired", "workers": done.matched, "freed": done.changed, "skipped": done.skipped,
            "dry_run": dry_run,
        })  # fmt: skip
        return
    freed = "would free" if dry_run else "freed"
    say(f"{freed} {done.changed} deliveries of {done.matched} ended leases")
    for why_not, number in done.skipped.items():
        say(f"  {number} {why_not}")

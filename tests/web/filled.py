"""A database with one of everything that pages show, and with texts that would do harm if a page ran them."""

from __future__ import annotations

import time
from typing import Final
from uuid import UUID

import msgspec

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.app import App
from todoku.core.capture import TableRule
from todoku.core.outcome import Traceback
from todoku.store.capture_portions import Phase, Portion, TableProgress
from todoku.store.deliveries import Filter
from todoku.store.projections import RebuildProgress
from todoku.web.page import WebPage
from todoku.web.site import PAGES

HOSTILE: Final = "<img src=x onerror=document.harmed=1><script>document.harmed=1</script>\"'{{7*7}}${7*7}&amp;"
UNPRINTABLE: Final = f"{HOSTILE}\x1b[31m\u202eevil\u2066"
TRACE: Final = f"""Traceback (most recent call last):
  File "shop.py", line 41, in refund
    pay_out(till, event["amount"])
  File "shop.py", line 12, in pay_out
    raise PermissionError({HOSTILE!r})
PermissionError: {UNPRINTABLE}
"""


def bury(
    world: World, number: int = 1, reason: str = "REFUSED", *, error: str = "refused in a test", **options: object
) -> list[int]:
    """Publishes so many, and lets all of them become dead letters. Returns their ids, rising."""
    known = {row.id for row in world.deliveries()}
    world.publish(number, **options)
    claims = [claim for claim in world.claim(world.worker(lease=3600), limit=1000) if claim.id not in known]
    trace = Traceback(TRACE, TRACE, "f00d")
    world.settle(claims, msgspec.structs.replace(aborted(reason), error=error, traceback=trace))
    return sorted(claim.id for claim in claims)


def fill(world: World, box: App) -> None:
    """Fills the database: each state, each kind of row, hostile wherever a caller or a handler chooses the text."""
    worker = world.worker(lease=3600, name=HOSTILE)
    world.publish(2)
    world.settle(world.claim(worker))
    world.publish(1)
    world.settle(world.claim(worker), msgspec.structs.replace(failed(delay=3600), error=UNPRINTABLE))
    world.publish(1, to=["mailer"])
    world.claim(worker, destinations=["mailer"])
    world.publish(
        1, topic="order.evil", to=[HOSTILE], key=UNPRINTABLE, headers={"x-evil": HOSTILE, "correlation-id": HOSTILE},
        payload=lambda _: {HOSTILE: [UNPRINTABLE, {"password": "secret"}]},
    )  # fmt: skip
    trace = Traceback(TRACE, TRACE, "f00d")
    world.settle(
        world.claim(worker, destinations=[HOSTILE]),
        msgspec.structs.replace(aborted("REFUSED"), error=UNPRINTABLE, traceback=trace),
    )
    bury(world, 3, "HTTP_5XX")
    world.publish(1, queue=HOSTILE)
    world.store.queues.pause(HOSTILE, SOMEBODY, paused=True)
    box.route("report.due", to="warehouse")
    box.schedules.add("reports & <b>more</b>", "report.due", {}, every=3600, by=HOSTILE, why=UNPRINTABLE)
    project(world)
    capture(world, worker)
    box.deliveries.bulk_acts.start("replay", Filter(reason="HTTP_5XX"), SOMEBODY, rate=0.001)


def project(world: World) -> None:
    """Fills in projections: one that is rebuilt, one that is stopped."""
    kept = world.store.projections
    kept.declare("documents", "search", "documents-1")
    building = kept.begin_rebuild("documents", lambda generation: f"{HOSTILE}-{generation}", SOMEBODY).of("building")
    assert building is not None
    progress = RebuildProgress(phase="filling", position="k", copied=40, expected=100, rejected=3)
    kept.advance("documents", building, progress)
    kept.declare("a <b>more</b>", "search", "more-1")
    kept.stop("a <b>more</b>", UNPRINTABLE)


def capture(world: World, worker: UUID) -> None:
    """Fills in captures: one in the middle of its snapshots, one that is stopped, with a table of a hostile name."""
    kept = world.store.captures
    phases: tuple[Phase, ...] = ("waiting", "reading", "sweeping", "done")
    rules = [TableRule(f"public.{phase}", f"{phase}.{{op}}", ("id", "n")) for phase in phases]
    kept.declare("main", rules, snapshot=True)
    kept.declare("a <b>more</b>", [TableRule(f"public.{HOSTILE}", "t", (HOSTILE,))], snapshot=False)
    for name in ("main", "a <b>more</b>"):
        row = kept.take(name, worker)
        assert row is not None
        for lsn, phase in enumerate(phases, start=1):
            page = TableProgress(table=f"public.{phase}", position="k", copied=40, expected=100, phase=phase)
            kept.store(row.fence, Portion(lsn=lsn, committed_at=time.time(), page=page), notify=False)
        kept.measure(row.fence, behind=1536, retained=3 << 30)
        kept.warn(row.fence, [UNPRINTABLE])
    kept.set_state("a <b>more</b>", "stopped", reason="SLOT_LOST", why=UNPRINTABLE, fence=None)


def paths(world: World, box: App, pages: tuple[WebPage, ...] = PAGES) -> list[str]:
    """The paths of all pages, with one that exists for each place in them."""
    dead = next(row for row in world.deliveries(status="aborted") if row.destination == HOSTILE)
    examples = {
        "/deliveries/": str(dead.id),
        "/messages/": str(dead.message_id),
        "/acts/": str(box.deliveries.bulk_acts.list()[0].id),
        "/queues/": "warehouse",
        "/schedules/": "reports & <b>more</b>",
        "/workers/": str(world.store.leases.workers()[0].id),
    }
    found = []
    for page in pages:
        if page.method != "GET" or page.path.startswith("/sign-"):
            continue
        start, brace, rest = page.path.partition("{")
        if brace:
            assert start in examples, f"{page.path}: add an example for it to tests/web/filled.py"
            start += examples[start] + rest.partition("}")[2]
        found.append(start)
    return [path + ("?act=replay" if path == "/acts/new" else "") for path in found]

"""Screens as a person sees them, at 80, 100 and 140 columns of a real pseudo-terminal, compared with golden files.

After a change that is meant, write them again, and read the diff:

    TODOKU_TEST_WRITE_SCREENS=1 .venv/bin/python -m pytest tests/cli/test_screens.py
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.cli.program import Shop, rows, said
from tests.daemon.running import KEPT
from tests.support.world import SOMEBODY, World
from todoku.app import App
from todoku.core.capture import table_rule
from todoku.core.decision import Settlement, park
from todoku.core.flow import RUN, StepRow
from todoku.core.status import Status
from todoku.daemon.banner import program
from todoku.daemon.terminal import takes_colour
from todoku.engine.http import api_tokens
from todoku.store.capture_portions import Portion, TableProgress

WIDTHS = (80, 100, 140)
SCREENS = Path(__file__).parent / "screens"
WRITES = os.environ.get("TODOKU_TEST_WRITE_SCREENS") == "1"
HOUR = 3600.0

REFUSED = (
    "ConnectionError: the gateway https://payments.example.com/v1/charges refused the connection: [Errno 111] "
    "Connection refused\nwhile charging order 17 of the customer with the longest name in the whole shop"
)
SHOWN = (
    "stats", "list", "list --status aborted", "list --status pending", "reasons", "workers", "show 2", "show 3",
    "show 4", "explain 1", "limits", "hooks", "tail --since 1d --for 0", "list --utc --limit 2",
    "schedules", "tokens list", "capture list", "capture show main", "capture show billing", "--help",
)  # fmt: skip
FLOWS = ("flow show 8", "flow show 9")


def fill(shop: Shop) -> None:
    """Deliveries in all five states, hours ago, so that a slow machine does not change how long ago that was."""
    world = shop.world
    world.advance(-5.1 * HOUR)
    worker = world.worker(name="worker-1.shop.example:4711", lease=35 * HOUR)
    world.publish(2, topic="charge", to=["charge"], max_attempts=2, payload=lambda n: {"order": 17 + n, "card": "4242"})
    for topic, destination in (("order.created", "billing"), ("order.paid", "warehouse.frankfurt")):
        world.publish(
            topic=topic, to=[destination], headers={"x-correlation-id": "shop-17"},
            payload=lambda _: {"order": 17, "lines": [{"sku": "A-1", "n": 2}], "to": {"name": "Ada", "city": "東京"}},
        )  # fmt: skip
    world.publish(2, topic="mail", to=["mail"], delay=48.5 * HOUR)
    world.settle(world.claim(worker, destinations=["charge"]), _ended(Status.FAILED, "TIMEOUT", "no answer in 30 s"))
    world.settle(world.claim(worker, destinations=["warehouse.frankfurt"]))
    world.advance(HOUR)
    world.settle(world.claim(worker, destinations=["charge"]), _ended(Status.ABORTED, "NETWORK", REFUSED))
    world.settle(world.claim(worker, destinations=["billing"]), _ended(Status.FAILED, "HTTP_5XX", "503", HOUR * 48.5))
    world.publish(topic="report", to=["report"])
    world.claim(worker, destinations=["report"])
    api_tokens.create(world.store, SOMEBODY, name="deploy", scopes=("publish", "read"), lasts=None)
    api_tokens.create(
        world.store, SOMEBODY, name="the dashboard of the team", scopes=("operate",), lasts=90 * 24 * HOUR
    )
    world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=2, rate=None, lasts=None)
    capture(world, worker)
    world.reset_clock()
    box = App(world.url)
    later = datetime.now(UTC) + timedelta(hours=50.5)  # far enough, so that a slow machine does not change the screen
    for name in ("nightly-report", "the-longest-name-of-a-schedule-in-the-whole-shop"):
        box.route("report.*", to="report")
        box.schedules.add(
            name, "report.due", {"of": name}, every=timedelta(days=30), anchor=later, by="ada", why="a test"
        )
    box.schedules.pause("nightly-report", by="ada", why="a test")
    box.close()


def fill_flows(world: World) -> None:
    """A run that sleeps and waits for a signal, and one whose last step has failed, hours ago."""
    world.advance(-3.1 * HOUR)
    worker = world.worker(name="worker-2.shop.example:4711", lease=35 * HOUR)
    world.publish(2, topic="fulfil", to=["fulfil"], headers={RUN: "auto"}, max_attempts=2)
    waiting, dead = world.claim(worker, destinations=["fulfil"])
    store = world.store.runs
    paid = StepRow("charge:1", 1, "charge_the_card_of_the_customer", "step", "done", '{"order":17}', took=1800.0)
    slept = StepRow("sleep:1", 2, "sleep", "sleep", "open", "60", wait=60 * HOUR)
    asked = StepRow("wait:1", 3, "wait", "wait", "open", '"approval"', awaits="approval", wait=70.5 * HOUR)
    broken = StepRow(
        "ship:1", 2, "ship", "step", "fatal", '{"order":18}', error="ConnectionError: the warehouse did not answer",
        attempts=3, took=60.0,
    )  # fmt: skip
    world.advance(HOUR)
    store.store_steps([(claim, paid) for claim in (waiting, dead)])
    store.store_steps([(waiting, slept), (waiting, asked), (dead, broken)])
    world.settle([waiting], park(60 * HOUR))
    world.settle([dead], _ended(Status.ABORTED, "STEP_FAILED", "ship failed 3 times"))
    world.reset_clock()


def capture(world: World, worker: UUID) -> None:
    """A capture that a worker reads, in the middle of a snapshot, and one that is stopped."""
    kept = world.store.captures
    rules = [table_rule("orders", "orders.{op}", "id"), table_rule("order_lines", "order_lines.{op}", ("id", "n"))]
    fences = []
    for place, name in enumerate(("main", "billing")):
        kept.declare(name, rules if name == "main" else rules[:1], snapshot=True)
        row = kept.take(name, worker)
        assert row is not None
        fences.append(fence := row.fence)
        page = TableProgress(table="public.orders", position='["4711"]', copied=4711, expected=12000, phase="reading")
        committed = time.time() - (4.1 + place) * HOUR
        kept.store(fence, Portion(lsn=0x16B3748, committed_at=committed, page=page), notify=False)
        kept.measure(fence, behind=1536 << 20 * place, retained=16 << 20 + 10 * place)
        kept.set_state(name, "snapshot", fence=fence)
    _, fence = fences
    kept.warn(fence, ["the source has max_slot_wal_keep_size = -1: a reader that is away can fill its disk"])
    why = "the slot lost its log (wal_status is lost): read the tables anew by `todoku capture snapshot billing`"
    kept.set_state("billing", "stopped", reason="SLOT_LOST", why=why, fence=fence)
    kept.release(fence)


def _ended(status: Status, reason: str, error: str, delay: float = 0.0) -> Settlement:
    return Settlement(status=status, reason=reason, error=error, delay=delay)


def on_terminal(shop: Shop, columns: int, *commands: str, **environ: str) -> str:
    """What these commands print on a terminal that is so wide, with the escape sequences."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept["PATH"] = f"{Path(sys.executable).parent}:{kept['PATH']}"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cli.screens_in_one_process", *commands],
        env=kept | {"TERM": "xterm", "TODOKU_DATABASE": shop.world.url, "TZ": "UTC"} | environ,
        cwd=Path(__file__).parents[2], stdin=theirs, stdout=theirs, stderr=theirs,
    ):  # fmt: skip
        os.close(theirs)
        text = b""
        with suppress(OSError):  # how Linux says that the other end of a terminal is closed
            while more := os.read(ours, 65536):
                text += more
    os.close(ours)
    return text.decode().replace("\r\n", "\n")


def plain(text: str) -> str:
    """Without the escape sequences of colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def settled(text: str) -> str:
    """With the same ids and times in every run, each as long as it was."""
    text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "01234567-89ab-7cde-8f01-23456789abcd", text)
    text = re.sub(r"todoku_((?:main_|billing_)?)[0-9a-f]{8}", r"todoku_\g<1>01234567", text)
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "2026-01-31 12:00:00Z", text)
    return re.sub(r"^\d\d:\d\d:\d\d ", "12:00:00 ", text, flags=re.MULTILINE)


@pytest.mark.parametrize("columns", WIDTHS)
def test_screens_fit_their_terminal_and_are_as_in_their_golden_file(shop: Shop, columns: int) -> None:
    """Issue 12: no cell is wrapped, ids are whole, what is constant or empty leaves, errors get the width."""
    fill(shop)
    text = on_terminal(shop, columns, *SHOWN)
    fill_flows(shop.world)
    text = settled(plain(text + on_terminal(shop, columns, *FLOWS)))
    wide = [line for line in text.splitlines() if len(line) + sum(ord(one) > 0x2E7F for one in line) > columns]
    assert wide == [], f"wider than {columns} columns"
    golden = SCREENS / f"{columns}.txt"
    if WRITES and shop.world.backend == "sqlite":
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8"), "meant? the module says how to write the golden files again"


def test_a_status_has_a_colour_unless_colours_are_not_wanted(shop: Shop) -> None:
    fill(shop)
    coloured = on_terminal(shop, 100, "list")
    for status, colour in {"succeeded": 32, "failed": 33, "aborted": 31, "sending": 34}.items():
        assert f"\x1b[{colour}m{status}" in coloured
    for environ in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert on_terminal(shop, 100, "list", **environ) == plain(coloured)
    with (SCREENS / "80.txt").open() as file:
        assert not takes_colour(file)


def test_what_leaves_a_screen_does_not_leave_a_pipe(shop: Shop) -> None:
    """docs/cli.md: piped output is never cut, and has every column; `--json` has them all."""
    fill(shop)
    head, *table = said(shop.run("list", "--status", "aborted"))
    assert head.split() == [
        *("id", "topic", "destination", "status", "prio", "tries", "reason", "error", "payload", "created"),
    ]  # fmt: skip
    assert all(re.search(r"charge +charge +aborted +0 +2/2 +NETWORK .* in the whole shop .*Z$", row) for row in table)
    (row,) = rows(shop.run("list", "--status", "aborted", "--limit", "1", "--json"))
    assert (row["priority"], row["error"]) == (0, REFUSED)


def test_status_names_the_database_the_workers_the_numbers_and_three_commands(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # as the commands are run: the program is named from there
    fill(shop)
    for columns in WIDTHS:
        lines = plain(on_terminal(shop, columns, "status")).splitlines()
        assert [line for line in lines if len(line) > columns and shop.world.url[:20] not in line] == []
    text = "\n".join(said(shop.run("status")))
    assert text.startswith("no page of todoku was found")
    assert "workers      1 alive" in text
    assert "deliveries   2 pending, 1 sending, 1 succeeded, 1 failed, 2 aborted" in text
    assert "dead letter  #2 charge: NETWORK, ConnectionError: the gateway" in text
    assert all(f"{program()} {words}  " in text for words in ("status  ", "show 2  ", "replay 2"))
    (row,) = rows(shop.run("status", "--json"))
    assert list(row) == [
        *("address", "database", "detail", "workers", "serve_workers", "pending", "sending", "succeeded", "failed"),
        *("aborted", "exact", "dead_letter"),
    ]
    assert (row["address"], row["workers"], row["aborted"], row["dead_letter"]) == (None, 1, 2, 2)


def test_show_tells_several_deliveries_apart(shop: Shop) -> None:
    """The timeline names the delivery, and each error stands under the number of its own."""
    (message,) = shop.world.publish(to=["billing", "warehouse"])
    claims = shop.world.claim(shop.world.worker())
    for number, claim in enumerate(claims):
        shop.world.settle([claim], _ended(Status.ABORTED, "REFUSED", f"error {number}"))
    text = plain(on_terminal(shop, 80, f"show {message.id}"))
    for number, claim in enumerate(claims):
        assert f"error of delivery {claim.id}\n  error {number}\n" in text
        assert re.search(rf"{claim.id} +attempt 1 failed +REFUSED: error {number}", text)
        assert f"todoku replay {claim.id} " in text


def test_a_progress_bar_has_a_total(shop: Shop) -> None:
    """Also of what a filter chose, and never more than `--limit`."""
    shop.dead(3, topic="a")
    shop.dead(4, topic="b")
    for arguments, total in (("--all --topic a", 3), ("--all --limit 2", 2), ("--all", 2)):
        text = plain(on_terminal(shop, 80, f"replay {arguments} --why 'a test'"))
        assert f"{total}/{total} " in text, text
    text = plain(on_terminal(shop, 80, "verify"))
    assert re.search(r"verifying .* (\d+)/\1 ", text), text

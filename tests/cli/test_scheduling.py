"""Schedules from the command line: looked at, previewed, added, paused, resumed, run now, removed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.program import Run, Shop, misused, refused, rows, said
from tests.support.world import World

WHY = ("--why", "a test")
APP = """
import todoku

box = todoku.App()

@box.job
def report(day: str, copies: int = 1) -> None: ...

@box.cron("0 9 * * *", tz="Asia/Tokyo")
def morning() -> None: ...
"""


@pytest.fixture
def box(shop: Shop, tmp_path: Path) -> Shop:
    """A database and an App with a job."""
    return with_app(shop.world, shop.run, tmp_path)


@pytest.fixture
def sqlite_box(run: Run, sqlite_url: str, tmp_path: Path) -> Iterator[Shop]:
    """The same, where the database makes no difference."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    yield with_app(world, run, tmp_path)
    world.close()


def with_app(world: World, run: Run, home: Path) -> Shop:
    (home / "shop.py").write_text(APP)
    given = {"TODOKU_DATABASE": world.url, "TODOKU_BY": "ada", "TODOKU_APP": "shop:box"}
    return Shop(world, lambda *arguments, **more: run(*arguments, **{**given, **more}))


def add(box: Shop, *more: str) -> None:
    done = box.run("schedule", "add", "nightly", "report", "day=monday", *(more or ("--cron", "0 3 * * *")), *WHY)
    assert done.returncode == 0, done.stderr


def test_a_schedule_is_added_listed_changed_and_removed(box: Shop) -> None:
    """Issue 4: schedules from the CLI."""
    assert said(box.run("schedules")) == ["no schedules"]
    (line,) = said(box.run("schedule", "add", "nightly", "report", "day=monday", "copies=2", "--cron", "30 2 * * *",
                           "--tz", "Europe/Berlin", "--missed", "skip", *WHY))  # fmt: skip
    assert line.startswith("added nightly: next at ")
    (row,) = rows(box.run("schedules", "--json"))
    following = datetime.fromisoformat(row["next"])
    assert list(row.items())[:3] == [("name", "nightly"), ("when", "30 2 * * *"), ("tz", "Europe/Berlin")]
    assert (row["missed"], row["paused"], row["declared"], row["source"]) == ("skip", False, True, "stored")
    assert (row["topic"], row["last"], row["last_message"], row["error"]) == ("report", None, None, None)
    assert datetime.fromisoformat(row["local"]) == following > datetime.now(UTC)
    add(box, "--every", "6h")
    (row,) = rows(box.run("schedules", "--json"))
    assert (row["when"], row["tz"], row["local"]) == ("every 21600 s", None, None)
    header, line = said(box.run("schedules"))
    assert header.split() == ["name", "when", "tz", "next", "local", "last", "missed", "state", "error"]
    assert "waiting" in line
    assert said(box.run("schedule", "remove", "nightly", *WHY)) == ["removed nightly"]
    assert said(box.run("schedules")) == ["no schedules"]
    assert box.audit() == [
        ("ada", action, "schedule:nightly", "a test") for action in ("schedule", "schedule", "remove")
    ]


def test_a_schedule_is_paused_resumed_and_run_now(box: Shop) -> None:
    add(box)
    assert said(box.run("schedule", "pause", "nightly", *WHY)) == ["paused nightly"]
    assert "paused" in said(box.run("schedules"))[1]
    (id,) = said(box.run("schedule", "run", "nightly", *WHY))
    (delivery,) = box.world.deliveries()
    assert (str(delivery.message_id), delivery.destination) == (id, "report")
    assert said(box.run("schedule", "resume", "nightly", *WHY)) == ["resumed nightly"]
    (row,) = rows(box.run("schedules", "--json"))
    assert (row["paused"], row["last_message"]) == (False, id)
    (told,) = rows(box.run("schedule", "run", "nightly", *WHY, "--json"))
    assert list(told) == ["act", "schedule", "id", "dry_run"]
    assert [entry[1] for entry in box.audit()] == ["schedule", "pause", "run now", "resume", "run now"]


def test_what_an_app_declares_is_listed_after_migrate_and_changed_in_its_code(sqlite_box: Shop) -> None:
    """`todoku migrate` knows no App; its first worker, or `box.migrate()`, stores what it declares."""
    box = sqlite_box
    import_and_migrate(box)
    (row,) = rows(box.run("schedules", "--json"))
    assert (row["name"], row["source"], row["declared"]) == ("morning", "code", True)
    assert row["local"].endswith("T09:00:00+09:00")
    assert "is declared by an App" in refused(box.run("schedule", "remove", "morning", *WHY))
    assert "is declared by an App" in refused(
        box.run("schedule", "add", "morning", "report", "day=x", "--every", "60", *WHY)
    )
    assert said(box.run("schedule", "pause", "morning", *WHY)) == ["paused morning"]


def import_and_migrate(box: Shop) -> None:
    """What the App does where it starts."""
    import todoku

    app = todoku.App(box.world.url)

    @app.cron("0 9 * * *", tz="Asia/Tokyo")
    def morning() -> None: ...

    app.migrate()
    app.close()


def test_every_act_is_tried_dry(sqlite_box: Shop) -> None:
    box = sqlite_box
    add(box)
    for act in (["add", "weekly", "report", "day=x", "--every", "1h"], ["remove"], ["pause"], ["resume"], ["run"]):
        words = act if len(act) > 1 else [*act, "nightly"]
        (row,) = rows(box.run("schedule", *words, "--dry-run", "--json"))
        assert (row["act"], row["schedule"], row["dry_run"]) == (words[0], words[1], True)
    assert said(box.run("schedule", "pause", "nightly", "--dry-run")) == ["would pause nightly"]
    assert [one["name"] for one in rows(box.run("schedules", "--json"))] == ["nightly"]
    assert (len(box.audit()), box.world.deliveries()) == (1, [])


def test_wrong_usage_names_what_is_wrong_and_stores_nothing(sqlite_box: Shop) -> None:
    """Issue 4: bad cron, unknown time zone."""
    box = sqlite_box
    base = ("schedule", "add", "nightly", "report", "day=monday")
    for given, told in (
        (("--cron", "61 * * * *"), "cron cannot be '61 * * * *': bad minute"),
        (("--cron", "0 9 * * *", "--tz", "Asia/Tokio"), "tz cannot be 'Asia/Tokio'"),
        (("--every", "0"), "every cannot be 0.0"),
        ((), "needs either cron or every"),
    ):
        assert told in misused(box.run(*base, *given, *WHY))
    every = ("--every", "60", *WHY)
    assert "there is no job 'nobody'" in misused(box.run("schedule", "add", "n", "nobody", *every))
    assert "missing a required argument: 'day'" in misused(box.run("schedule", "add", "n", "report", *every))
    assert "name your App with --app" in misused(box.run(*base, *every, TODOKU_APP=""))
    assert "there is no schedule 'nobody'" in refused(box.run("schedule", "run", "nobody", *WHY))
    assert said(box.run("schedules")) == ["no schedules"]
    assert box.audit() == []


def test_the_next_slots_of_an_expression_are_shown_without_a_database(run: Run, tmp_path: Path) -> None:
    """Over the turn of the clocks in Berlin: 02:30 does not exist on 29 March 2026."""
    asked = (
        "schedule",
        "next",
        "30 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--count",
        "3",
        "--after",
        "2026-03-28T00:00:00Z",
    )
    assert [line.split("  ") for line in said(run(*asked))[1:]] == [
        ["2026-03-28T02:30:00+01:00", "2026-03-28 01:30:00Z"],
        ["2026-03-29T03:00:00+02:00", "2026-03-29 01:00:00Z"],
        ["2026-03-30T02:30:00+02:00", "2026-03-30 00:30:00Z"],
    ]
    assert [row["utc"] for row in rows(run(*asked, "--json"))][1] == "2026-03-29T01:00:00Z"
    assert "bad hour" in misused(run("schedule", "next", "0 25 * * *"))
    assert "there is no such time zone" in misused(run("schedule", "next", "0 5 * * *", "--tz", "Nowhere"))
    assert list(tmp_path.iterdir()) == []

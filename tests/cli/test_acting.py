"""Acting from the command line: each act is signed, audited, can be tried dry, and says what it came to."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import pytest

from tests.cli.program import Shop, misused, refused, rows, said
from tests.support.world import SOMEBODY
from todoku.cli.queues import LIMITS
from todoku.core.limit import Limit

WHY = ("--why", "the warehouse is back")


# ------------------------------------------------------------------------------------------------ replay


def test_replay_by_number_and_by_message(shop: Shop) -> None:
    first, second, third = shop.dead(3)
    message = shop.world.delivery(second).message_id  # type: ignore[union-attr]
    assert said(shop.run("replay", str(first), str(message), *WHY)) == ["replay: changed 2 of 2"]
    assert shop.statuses() == {first: "pending", second: "pending", third: "aborted"}
    assert shop.audit() == [("ada", "replay", f"delivery:{id}", "the warehouse is back") for id in (first, second)]


def test_replay_by_reason_all_and_at_most_so_many(shop: Shop) -> None:
    timeouts, refusals = shop.dead(3, "TIMEOUT"), shop.dead(2, "REFUSED")
    (row,) = rows(shop.run("replay", "--reason", "TIMEOUT", "--limit", "2", *WHY, "--json"))
    assert list(row.items()) == [
        ("act", "replay"), ("matched", 2), ("changed", 2), ("skipped", {}), ("dry_run", False),
    ]  # fmt: skip
    assert [shop.statuses()[id] for id in timeouts] == ["pending", "pending", "aborted"]
    (row,) = rows(shop.run("replay", "--all", *WHY, "--json"))
    assert row["changed"] == 3
    assert shop.statuses()[refusals[0]] == "pending"
    assert len(shop.audit()) == 5


def test_a_rate_spreads_a_replay(shop: Shop) -> None:
    """At 4/s the ninth goes no sooner than two seconds after the first."""
    shop.dead(9)
    start = time.monotonic()
    (row,) = rows(shop.run("replay", "--all", "--rate", "4/s", *WHY, "--json"))
    assert row["changed"] == 9
    assert time.monotonic() - start >= 2.0


def test_a_replay_says_what_it_passed_over(shop: Shop) -> None:
    (dead,) = shop.dead()
    shop.world.publish()
    waiting = max(shop.statuses())
    assert said(shop.run("replay", str(dead), str(waiting), "999", *WHY)) == [
        "replay: changed 1 of 2",
        "  1 skipped: is pending",
        "  1 skipped: not found, or being changed by somebody else",
    ]
    done = shop.run("replay", str(waiting), *WHY)
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, "replay: changed 0 of 1")
    assert "there is no message" in refused(shop.run("replay", str(uuid4()), *WHY))


def test_an_act_on_a_success_says_what_it_is(shop: Shop) -> None:
    """By its number and by its message: no answer proposes what fails again."""
    (message,) = shop.world.publish()
    (claim,) = shop.world.claim(shop.world.worker())
    shop.world.settle([claim])
    told = "  1 skipped: is succeeded (it has arrived; to run it again as a new message, use `todoku replay --again`)"
    for id in (str(claim.id), str(message.id)):
        for act in (["cancel"], ["settle", "--as", "aborted"], ["clear"]):
            done = shop.run(*act, id, *WHY)
            assert (done.returncode, done.stdout.splitlines()[1:]) == (1, [told])


def test_a_replay_must_say_which(shop: Shop) -> None:
    for wrong in ([], ["1", "--all"], ["--all", "--reason", "R"], ["1", "--reason", "R"]):
        assert "exactly one of IDs, --reason or --all" in misused(shop.run("replay", *wrong, *WHY))
    assert "IDs cannot be combined with filters" in misused(shop.run("replay", "1", "--topic", "a", *WHY))
    assert "is not a rate" in misused(shop.run("replay", "--all", "--rate", "fast", *WHY))
    assert "is not an id" in misused(shop.run("replay", "seven", *WHY))


def succeeded(shop: Shop, number: int = 1, **options: object) -> list[int]:
    """So many deliveries that succeeded, by their numbers."""
    shop.world.publish(number, **options)
    claims = shop.world.claim(shop.world.worker(), limit=number)
    shop.world.settle(claims)
    return [claim.id for claim in claims]


def test_replaying_a_success_is_refused_and_says_how_it_runs_again(shop: Shop) -> None:
    """Hints never propose what would fail again: the one that is named works."""
    (done,) = succeeded(shop)
    message = shop.world.delivery(done).message_id  # type: ignore[union-attr]
    for id in (str(done), str(message)):
        line = refused(shop.run("replay", id, *WHY))
        assert line.startswith("todoku: the delivery has succeeded (")
        assert "--again" in line
    (dead,) = shop.dead()
    assert said(shop.run("replay", str(dead), str(done), *WHY)) == [
        "replay: changed 1 of 1",
        "  1 skipped: is succeeded (it has arrived; to run it again as a new message, use `todoku replay --again`)",
    ]


def test_a_success_runs_again_as_a_new_message(shop: Shop) -> None:
    (done,) = succeeded(shop, idempotency_key="order 1")
    message = shop.world.delivery(done).message_id  # type: ignore[union-attr]
    assert said(shop.run("replay", str(done), "--again", "--dry-run")) == ["replay: would change 1 of 1"]
    assert (shop.statuses(), shop.audit()) == ({}, [])
    first, second = said(shop.run("replay", str(message), "--again", *WHY))
    new = second.removeprefix("  new message ")
    assert (first, list(shop.statuses().values())) == ("replay: changed 1 of 1", ["pending"])
    assert [act[1] for act in shop.audit()] == [f"run again as {new}", f"delivery {done} again"]
    (row,) = rows(shop.run("list", "--label", f"todoku.again_of:{message}", "--json"))
    assert (row["message"], row["status"]) == (new, "pending")
    assert f"run again as {new}" in [act["what"] for act in rows(shop.run("show", str(done), "--json"))[0]["timeline"]]


def test_successes_run_again_by_filter(shop: Shop) -> None:
    succeeded(shop, 2, topic="order.created")
    succeeded(shop, 1, topic="order.paid")
    (row,) = rows(shop.run("replay", "--all", "--topic", "order.created", "--again", *WHY, "--json"))
    assert (row["matched"], row["changed"], len(row["messages"])) == (2, 2, 2)
    assert list(row) == ["act", "matched", "changed", "skipped", "dry_run", "messages"]
    assert "has no reason" in refused(shop.run("replay", "--reason", "TIMEOUT", "--again", *WHY))
    assert shop.run("replay", "--all", "--topic", "order.lost", "--again", *WHY).returncode == 1


def test_a_key_runs_again_only_in_the_order_that_its_app_declares(shop: Shop, tmp_path: Path) -> None:
    """I10: an App is named, or the command says that it has to be."""
    (tmp_path / "ordered.py").write_text(
        "import todoku\nbox = todoku.App()\nbox.route('order.*', to='warehouse', ordered=True)\n", encoding="utf-8"
    )
    (done,) = succeeded(shop, key="7")
    refusal = shop.run("replay", str(done), "--again", *WHY)
    assert refusal.returncode == 1
    assert "name the App that declares it: --app module:attr" in refusal.stdout
    assert said(shop.run("replay", str(done), "--again", "--app", "ordered:box", *WHY))[0] == "replay: changed 1 of 1"
    assert [row.lane is not None for row in shop.world.deliveries()] == [True]


# ---------------------------------------------------------------------------------------- who, why, dry


@pytest.mark.parametrize(
    "act",
    [
        ["replay", "--all"],
        ["replay", "--all", "--again"],
        ["cancel", "--all"],
        ["settle", "ID", "--as", "aborted"],
        ["clear", "--status", "pending", "--all"],
        ["clear", "--status", "aborted", "--all"],
        ["clear", "--status", "succeeded", "--all"],
        ["limit", "mail", "--rate", "1/s"],
        ["pause", "warehouse"],
        ["resume", "warehouse"],
        ["release-expired"],
    ],
)
def test_every_act_is_tried_dry_and_then_leaves_who_and_why(shop: Shop, act: list[str]) -> None:
    shop.dead()
    shop.world.publish(3)
    shop.world.claim(shop.world.worker(lease=0.001), limit=1)
    shop.world.settle(shop.world.claim(shop.world.worker(), limit=1))
    waiting = max(shop.statuses())
    act = [str(waiting) if word == "ID" else word for word in act]
    before = (shop.statuses(), shop.world.history(), shop.world.store.limits.read(), shop.world.store.leases.workers())
    said(shop.run(*act, "--dry-run"))
    assert shop.audit() == []
    assert (
        shop.statuses(),
        shop.world.history(),
        shop.world.store.limits.read(),
        shop.world.store.leases.workers(),
    ) == before
    said(shop.run(*act, "--by", "bob", "--why", "because"))
    assert {(by, why) for by, _, _, why in shop.audit()} == {("bob", "because")}


def test_who_is_the_user_of_the_system_unless_somebody_says_otherwise(shop: Shop) -> None:
    (dead,) = shop.dead()
    said(shop.run("replay", str(dead), *WHY, TODOKU_BY="", LOGNAME="maiko"))
    said(shop.run("cancel", str(dead), *WHY, TODOKU_BY="eve"))
    said(shop.run("replay", str(dead), "--by", "bob", TODOKU_BY="eve"))
    assert [(by, why) for by, _, _, why in shop.audit()] == [
        ("maiko", "the warehouse is back"),
        ("eve", "the warehouse is back"),
        ("bob", "not said"),
    ]
    assert "cannot be empty" in misused(shop.run("replay", str(dead), "--why", " "))


def test_on_a_terminal_why_is_asked_for(shop: Shop) -> None:
    """API: required when stdin is a terminal."""
    (dead,) = shop.dead()
    ours, theirs = pty.openpty()
    try:
        command = [sys.executable, "-m", "todoku", "replay", str(dead), "--db", shop.world.url, "--by", "ada"]
        with subprocess.Popen(
            command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            os.write(ours, b"it was a mistake\n")
            output, error = process.communicate(timeout=60)
    finally:
        os.close(ours)
        os.close(theirs)
    assert (process.returncode, output) == (0, "replay: changed 1 of 1\n")
    assert error.startswith("Why: ")
    assert shop.audit() == [("ada", "replay", f"delivery:{dead}", "it was a mistake")]


# ---------------------------------------------------------------------------------------- cancel, settle


def test_cancel_makes_what_waits_a_dead_letter_and_asks_what_runs(shop: Shop) -> None:
    worker = shop.world.worker()
    shop.world.publish(3)
    (running,) = shop.world.claim(worker, limit=1)
    shop.world.publish(1, topic="mail.sent", to=["mail"])
    assert rows(shop.run("cancel", "--all", "--destination", "warehouse", *WHY, "--json"))[0]["changed"] == 3
    assert sorted(shop.statuses().values()) == ["aborted", "aborted", "pending", "sending"]
    assert [held.cancel_requested for held in shop.world.store.leases.owned(worker)] == [True]
    assert shop.world.delivery(running.id).cancel_requested  # type: ignore[union-attr]
    assert "exactly one of IDs or --all" in misused(shop.run("cancel", *WHY))


def test_settle_by_hand_is_ledger_first_and_keeps_the_result(shop: Shop) -> None:
    """I5."""
    shop.world.publish(idempotency_key="u7")
    (delivery,) = shop.statuses()
    assert said(shop.run("settle", str(delivery), "--as", "succeeded", "--result", '{"n": 1}', *WHY)) == [
        "settle as succeeded: changed 1 of 1"
    ]
    assert shop.world.store.deliveries.result(delivery) == '{"n": 1}'
    (entry,) = rows(shop.run("ledger", "u7", "--scope", "effect:warehouse", "--json"))
    assert (entry["state"], entry["response"]) == ("succeeded", {"n": 1})
    assert shop.audit() == [("ada", "settle as succeeded", f"delivery:{delivery}", "the warehouse is back")]


def test_settle_never_touches_what_a_worker_holds(shop: Shop) -> None:
    shop.world.publish()
    (claim,) = shop.world.claim(shop.world.worker())
    for outcome in ("succeeded", "aborted"):
        done = shop.run("settle", str(claim.id), "--as", outcome, *WHY)
        assert done.returncode == 1
        assert "1 skipped: is sending (its worker will settle it" in done.stdout
    assert shop.statuses() == {claim.id: "sending"}
    assert shop.audit() == []


def test_settle_used_wrongly(shop: Shop) -> None:
    assert "--result needs --as succeeded" in misused(shop.run("settle", "1", "--as", "aborted", "--result", "1"))
    assert "this is not valid JSON" in misused(shop.run("settle", "1", "--as", "succeeded", "--result", "{"))
    assert "--as" in misused(shop.run("settle", "1"))
    assert "ID" in misused(shop.run("settle", "--as", "aborted"))


# ------------------------------------------------------------------------------------------------- clear


def test_clear_removes_what_waits_after_cancelling_it(shop: Shop) -> None:
    (message, _) = shop.world.publish(2)
    shop.world.publish(1, topic="mail.sent", to=["mail"])
    first, second, third = shop.statuses()
    assert said(shop.run("clear", "--status", "pending", "--topic", "order.created", *WHY)) == [
        "clear pending: changed 2 of 2"
    ]
    assert list(shop.statuses()) == [third]
    acts = [(action, target) for _, action, target, _ in shop.audit()]
    for delivery in (first, second):
        assert acts.index(("cancel", f"delivery:{delivery}")) < acts.index(("purge", f"delivery:{delivery}"))
    assert ("purge", f"message:{message.id}") in acts
    assert shop.run("verify").returncode == 0


def test_clear_prunes_what_succeeded_and_purges_what_died(shop: Shop) -> None:
    shop.dead(2)
    shop.world.publish(3)
    shop.world.settle(shop.world.claim(shop.world.worker()))
    assert rows(shop.run("clear", "--status", "succeeded", "--all", *WHY, "--json"))[0]["changed"] == 3
    assert shop.world.history() == []
    assert len(shop.world.sql("select id from todoku_message")) == 2
    assert rows(shop.run("clear", "--status", "aborted", "--all", *WHY, "--json"))[0]["changed"] == 2
    assert shop.statuses() == {}
    assert shop.run("clear", "--status", "aborted", "--all", *WHY).returncode == 1
    assert shop.run("verify").returncode == 0


def test_clear_removes_one_dead_letter_by_its_id(shop: Shop) -> None:
    """The hint after a cancellation of a dead letter names this command."""
    first, second = shop.dead(2)
    done = shop.run("cancel", str(first), *WHY)
    assert "`todoku clear ID` removes it" in done.stdout
    assert said(shop.run("clear", str(first), *WHY)) == ["clear: changed 1 of 1"]
    assert list(shop.statuses()) == [second]
    for wrong in (["--all"], ["--topic", "a"], ["--status", "pending"], ["--older-than", "1h"]):
        assert "IDs are of dead letters" in misused(shop.run("clear", str(second), *wrong, *WHY))
    assert "IDs of dead letters, or --status" in misused(shop.run("clear", *WHY))


def test_clear_older_than_goes_by_the_databases_clock(shop: Shop) -> None:
    shop.world.publish(2)
    shop.world.sql("update todoku_delivery set updated_at = 0 where id = 1" if shop.world.backend == "sqlite" else
                   "update todoku_delivery set updated_at = '2020-01-01' where id = 1")  # fmt: skip
    assert rows(shop.run("clear", "--status", "pending", "--older-than", "7d", *WHY, "--json"))[0]["changed"] == 1
    assert list(shop.statuses()) == [2]
    assert "is not a duration" in misused(shop.run("clear", "--status", "pending", "--older-than", "soon"))


def test_what_is_sending_cannot_be_cleared(shop: Shop) -> None:
    assert "A delivery that is sending belongs to its worker" in misused(shop.run("clear", "--status", "sending", *WHY))


# ---------------------------------------------------------------------- limit, pause, resume, release-expired


def test_limit_is_set_for_some_time_and_taken_away(shop: Shop) -> None:
    shop.world.store.destinations.announce(["http"])
    assert said(shop.run("limit", "mail", "--concurrency", "2", "--rate", "90/m", "--for", "30m", *WHY)) == [
        "limited queue mail: at most 2 at once, 1.5 a second, for 1800 s"
    ]
    assert said(shop.run("limit", "http", "--rate", "5/s", *WHY)) == [
        "limited destination http: any number at once, 5 a second"
    ]
    said(shop.run("limit", "http", "--of", "queue", "--concurrency", "1", *WHY))
    limits = shop.world.store.limits.read()
    assert [(limit.name, limit.concurrency, limit.rate) for limit in limits.queues] == [
        ("http", 1, None), ("mail", 2, 1.5),
    ]  # fmt: skip
    assert [(limit.name, limit.rate) for limit in limits.destinations] == [("http", 5.0)]
    assert said(shop.run("limit", "mail", "--off", *WHY)) == ["removed the limit of queue mail"]
    assert [limit.name for limit in shop.world.store.limits.read().queues] == ["http"]
    shop.world.advance(3600)
    assert [limit.name for limit in shop.world.store.limits.read().queues] == ["http"]


def test_limits_shows_those_that_the_app_declares(shop: Shop, tmp_path: Path) -> None:
    """However the App is named; a job is listed once, whatever its former names."""
    (tmp_path / "shop.py").write_text(
        "import todoku\n"
        "box = todoku.App()\n"
        "@box.job(per_key=todoku.Limit(concurrency=2), aliases=['greet'])\n"
        "def welcome(): ...\n"
        "@box.on('order.*', per_key=todoku.Limit(rate=0.5))\n"
        "def audit(event): ...\n"
        "@box.job\n"
        "def free(): ...\n"
    )
    assert "limits in code are shown with --app" in shop.run("limits").stderr
    for told in (
        shop.run("limits", "--app", "shop:box", "--json"),
        shop.run("limits", "--json", TODOKU_APP="shop:box"),
    ):
        assert [tuple(row.values()) for row in rows(told)] == [
            ("each key", "welcome", None, 2, None, None, None),
            ("each key", "audit", None, None, 0.5, None, None),
        ]


def test_limits_shows_what_is_limited_and_which_keys_are_full(shop: Shop) -> None:
    assert shop.run("limits").returncode == 1
    shop.world.store.limits.set("mail", SOMEBODY, of="queue", concurrency=3, rate=2.5)
    shop.world.publish(3, key="acme", per_key=Limit(concurrency=2))
    shop.world.claim_gates(shop.world.worker(), Limit(concurrency=2))
    assert rows(shop.run("limits", "--json")) == [
        {"of": "queue", "name": "mail", "key": None, "concurrency": 3, "rate": 2.5, "running": None, "waiting": None},
        {"of": "key", "name": "warehouse", "key": "acme", "concurrency": 2, "rate": None, "running": 2, "waiting": 1},
    ]
    assert said(shop.run("limits"))[0].split() == list(LIMITS)


def test_limit_used_wrongly(shop: Shop) -> None:
    assert "--concurrency, --rate or both; or --off" in misused(shop.run("limit", "mail"))
    assert "or --off" in misused(shop.run("limit", "mail", "--off", "--rate", "1"))
    assert "--for cannot be combined with --off" in misused(shop.run("limit", "mail", "--off", "--for", "1h"))
    for value in ("0/s", "fast", "-1", "1/y"):
        assert "is not a rate" in misused(shop.run("limit", "mail", "--rate", value))
    assert misused(shop.run("limit", "mail", "--concurrency", "0"))
    assert misused(shop.run("limit", "mail", "--rate", "1", "--of", "lane"))


def test_pause_and_resume(shop: Shop) -> None:
    shop.world.publish()
    done = shop.run("pause", "warehouse", *WHY)
    assert said(done) == ["paused warehouse"]
    assert shop.world.claim(shop.world.worker()) == []
    assert rows(shop.run("resume", "warehouse", *WHY, "--json")) == [
        {"act": "resume", "queue": "warehouse", "dry_run": False}
    ]
    assert len(shop.world.claim(shop.world.worker())) == 1
    typo = shop.run("pause", "warehuose", *WHY)
    assert (typo.returncode, typo.stderr) == (0, "(no delivery is waiting in queue warehuose; check the name)\n")


def test_release_expired_frees_what_the_dead_held_and_only_that(shop: Shop) -> None:
    shop.world.publish(5)
    dead, alive = shop.world.worker(lease=0.001), shop.world.worker(lease=600)
    shop.world.claim(alive, limit=2)
    shop.world.sql("update todoku_delivery set status = 'sending', worker_id = ? where status = 'pending'", str(dead))
    assert said(shop.run("release-expired", "--dry-run")) == ["would free 3 deliveries of 1 expired leases"]
    (row,) = rows(shop.run("release-expired", *WHY, "--json"))
    assert (row["workers"], row["freed"]) == (1, 3)
    assert sorted(shop.statuses().values()) == ["pending"] * 3 + ["sending"] * 2
    assert shop.audit() == [("ada", "release-expired", f"worker:{dead}", "the warehouse is back")]
    shop.world.store.queues.pause("mail", SOMEBODY, paused=True)
    assert rows(shop.run("release-expired", *WHY, "--json"))[0]["freed"] == 0

"""Looking from the command line: tables for people, one JSON object a line for programs, in a stable order."""

from __future__ import annotations

import re
import select
import subprocess
import sys
import time
from uuid import uuid4

import msgspec
import pytest

import todoku
from tests.cli.program import Shop, misused, rows, said
from tests.support.world import SOMEBODY, aborted, failed
from todoku.cli.output import fit_widths
from todoku.core.outcome import Traceback

FIVE = ["pending", "sending", "succeeded", "failed", "aborted"]


def nothing(done: subprocess.CompletedProcess[str]) -> str:
    """What a command said that found nothing."""
    assert (done.returncode, done.stdout) == (1, "")
    return done.stderr.strip()


# ------------------------------------------------------------------------------------------------- stats


def test_stats_counts_the_five_states(shop: Shop) -> None:
    shop.dead(1)
    shop.world.publish(5)
    claims = shop.world.claim(shop.world.worker(), limit=3)
    shop.world.settle(claims[:1])
    shop.world.settle(claims[1:2], failed(delay=60))
    (row,) = rows(shop.run("stats", "--json"))
    assert list(row)[:5] == FIVE
    assert [row[status] for status in FIVE] == [2, 1, 1, 1, 1]
    assert (row["exact"], row["workers"]) == (True, 2)
    lines = said(shop.run("stats"))
    assert lines[0].split() == ["destination", *FIVE]
    assert [line.split() for line in lines[1:3]] == [
        ["warehouse", "2", "1", "-", "1", "1"],
        ["all", "2", "1", "1", "1", "1"],
    ]


def test_stats_tells_what_waits_behind_a_dead_letter(shop: Shop) -> None:
    """I10: `explain` names the dead letter, and the commands it proposes free its key."""
    worker = shop.world.worker(lease=3600)
    shop.world.publish(3, key="a", ordered=True)
    head, waiting, _ = (row.id for row in shop.world.deliveries())
    shop.world.settle(shop.world.claim_lanes(worker, limit=1), aborted())
    told = f"2 deliveries wait behind a dead letter of a key: todoku explain {waiting} names it"
    assert said(shop.run("stats"))[-1] == told
    (row,) = rows(shop.run("stats", "--json"))
    assert (row["parked_keys"], row["parked_waiting"]) == (1, 2)
    (row,) = [row for row in rows(shop.run("explain", str(waiting), "--json")) if row["cause"] == "lane_parked"]
    assert f"todoku clear {head}" in row["hint"]
    shop.run("clear", str(head), "--why", "tested")
    assert said(shop.run("stats"))[-1] == "1 worker alive"


def test_stats_does_not_count_what_hooks_are_told_as_the_user_s(shop: Shop) -> None:
    """A delivery to a hook is not the user's message: it is counted apart, also where its destination has others."""
    box = todoku.App(shop.world.url)
    box.after("succeeded", to=todoku.log("warehouse"))

    @box.after("succeeded")
    def note(ending: todoku.Ending) -> None:
        raise todoku.Abort("REFUSED")

    @box.job
    def greet() -> None: ...

    box.route("order.*", to="warehouse")
    box.migrate()
    greet.enqueue()
    box.publish("order.created", {}, tx=None)
    box.drain()
    box.publish("order.created", {}, delay=3600, tx=None)
    box.close()
    (row,) = rows(shop.run("stats", "--json"))
    assert [row[status] for status in FIVE] == [1, 0, 2, 0, 0]
    assert row["hooks"] == {"pending": 0, "sending": 0, "succeeded": 2, "failed": 0, "aborted": 2}
    lines = said(shop.run("stats"))
    assert [line.split() for line in lines[1:3]] == [
        ["warehouse", "1", "0", "-", "0", "0"],
        ["all", "1", "0", "2", "0", "0"],
    ]
    assert lines[3] == "hooks, not counted above: 2 succeeded, 2 aborted"


# -------------------------------------------------------------------------------------------------- list

COLUMNS = [
    "id", "message", "topic", "destination", "status", "priority", "attempts", "max_attempts", "reason", "error",
    "payload", "created",
]  # fmt: skip


def test_list_is_newest_first_with_the_columns_in_a_stable_order(shop: Shop) -> None:
    (dead,) = shop.dead(1, "REFUSED")
    (message,) = shop.world.publish(priority=3, topic="user.created", max_attempts=4)
    new, old = rows(shop.run("list", "--json"))
    assert list(new) == list(old) == COLUMNS
    assert (new["message"], new["topic"], new["status"], new["priority"]) == (
        str(message.id), "user.created", "pending", 3,
    )  # fmt: skip
    assert (new["attempts"], new["max_attempts"], new["reason"]) == (0, 4, None)
    assert (old["id"], old["status"], old["reason"]) == (dead, "aborted", "REFUSED")
    assert (old["attempts"], old["error"]) == (1, "REFUSED in a test")
    first, second, third = said(shop.run("list"))
    assert first.split() == [
        "id", "topic", "destination", "status", "prio", "tries", "reason", "error", "payload", "created",
    ]  # fmt: skip
    assert "0/4" in second
    assert "REFUSED in a test" in third


def test_attempts_of_what_succeeded_are_those_it_took(shop: Shop) -> None:
    """How many it was allowed is not stored: nothing is made up in its place."""
    shop.world.publish(max_attempts=4)
    worker = shop.world.worker()
    shop.world.settle(shop.world.claim(worker), failed())
    shop.world.settle(shop.world.claim(worker))
    (row,) = rows(shop.run("list", "--json"))
    assert (row["status"], row["attempts"], row["max_attempts"]) == ("succeeded", 2, None)
    _, line = said(shop.run("list"))
    assert line.split()[5] == "2"
    (row,) = rows(shop.run("show", str(row["id"]), "--json"))
    assert (row["deliveries"][0]["attempts"], row["deliveries"][0]["max_attempts"]) == (2, None)
    assert not any("2/2" in line for line in said(shop.run("show", str(row["id"]))))


def test_what_nobody_may_read_is_masked(shop: Shop) -> None:
    """§8: masked fields by setting; the preview is of what is left."""
    shop.world.publish(payload=lambda _: {"user": 7, "Password": "sesame", "card": {"pin": 9}})
    shop.world.publish(payload=lambda _: [{"accessToken": "sesame"}], topic="a.b")
    done = shop.run("list", "--json")
    assert "sesame" not in done.stdout
    second, first = rows(done)
    assert first["payload"] == '{"user":7,"Password":"***","card":"***"}'
    assert second["payload"] == '[{"accessToken":"***"}]'
    (first,) = rows(shop.run("list", "--json", "--topic", "order.created", TODOKU_MASK_FIELDS="pin,user"))
    assert first["payload"] == '{"user":"***","Password":"sesame","card":{"pin":"***"}}'


def test_a_payload_that_cannot_be_shown_is_told_of(shop: Shop) -> None:
    shop.world.publish(payload=lambda _: b"\x00\x01")
    shop.world.publish(payload=lambda _: "x" * 70_000)
    shop.world.publish(payload=lambda _: "y" * 100)
    cut, large, raw = (row["payload"] for row in rows(shop.run("list", "--json")))
    assert raw == "(2 bytes of application/octet-stream)"
    assert large == "(70002 bytes of application/json)"
    assert (len(cut), cut[-1]) == (60, "…")


def test_list_takes_what_is_asked_for(shop: Shop) -> None:
    shop.dead(2, "REFUSED")
    shop.world.publish(3, delay=3600)
    shop.world.publish(1, topic="mail.sent", to=["mail"], key="k")
    claims = shop.world.claim(shop.world.worker(), destinations=["mail"])
    shop.world.settle(claims)
    shop.world.publish(1, topic="mail.sent", to=["mail"])

    def found(*arguments: str) -> int:
        return len(rows(shop.run("list", "--json", *arguments)))

    assert found() == 7
    assert found("--limit", "4") == 4
    assert [found("--status", status) for status in ("pending", "succeeded", "aborted")] == [4, 1, 2]
    assert found("--due") == 1, "not the delayed ones, not the dead letters"
    assert found("--topic", "mail.sent") == 2
    assert found("--destination", "mail", "--status", "pending") == 1
    assert found("--reason", "REFUSED") == 2
    assert found("--key", "k") == 1
    assert nothing(shop.run("list", "--status", "failed")) == "todoku: nothing matched"
    assert "is not one of" in misused(shop.run("list", "--status", "done"))
    assert misused(shop.run("list", "--limit", "0"))


# -------------------------------------------------------------------------------------------------- show


def test_show_tells_the_whole_story_of_a_message(shop: Shop) -> None:
    """By its id, or by the number of one of its deliveries."""
    (message,) = shop.world.publish(to=["a", "b"], headers={"x-token": "sesame"}, payload=lambda _: {"email": "x@y"})
    (claim,) = shop.world.claim(shop.world.worker(), destinations=["a"])
    shop.world.settle([claim], failed("TIMEOUT"))
    assert shop.run("cancel", str(claim.id), "--why", "sent by mistake").returncode == 0
    (row,) = rows(shop.run("show", str(message.id), "--json"))
    assert rows(shop.run("show", str(claim.id), "--json")) == [row]
    assert list(row) == ["id", "topic", "key", "created", "headers", "payload", "deliveries", "attempts", "timeline"]
    assert (row["payload"], row["headers"]) == ({"email": "***"}, {"x-token": "***"})
    assert {item["destination"]: item["status"] for item in row["deliveries"]} == {"a": "aborted", "b": "pending"}
    timeline = [(item["what"], item["told"]) for item in row["timeline"]]
    assert timeline[:2] == [("published", None), ("attempt 1 failed", "TIMEOUT: TIMEOUT in a test")]
    assert set(timeline[2:]) == {("cancel", "ada: sent by mistake"), ("aborted", "CANCELLED")}, "at the same moment"
    text = "\n".join(said(shop.run("show", str(message.id))))
    assert "sesame" not in text
    assert re.search(r"ada: sent by mistake", text)


def test_show_also_tells_of_what_succeeded_with_its_result(shop: Shop) -> None:
    """S3-37."""
    (message,) = shop.world.publish()
    (delivery,) = shop.statuses()
    assert (
        shop.run("settle", str(delivery), "--as", "succeeded", "--result", '{"sent": 1, "token": "x"}').returncode == 0
    )
    (row,) = rows(shop.run("show", str(delivery), "--json"))
    assert (row["id"], row["deliveries"][0]["status"]) == (str(message.id), "succeeded")
    assert row["deliveries"][0]["result"] == {"sent": 1, "token": "***"}
    lines = said(shop.run("show", str(delivery)))
    place = lines.index(f"result of delivery {delivery}")
    assert "".join(lines[place + 1 : place + 5]).replace(" ", "") == '{"sent":1,"token":"***"}'


def test_show_and_reasons_tell_where_the_code_failed(shop: Shop) -> None:
    shop.world.publish()
    (claim,) = shop.world.claim(shop.world.worker())
    trace = Traceback('Traceback\n  File "shop.py", line 3, in charge\nKeyError: \x1b[31m', "Traceback", "f00d")
    shop.world.settle([claim], msgspec.structs.replace(aborted(), traceback=trace))
    (row,) = rows(shop.run("show", str(claim.id), "--json"))
    assert [(each["fingerprint"], each["traceback"]) for each in row["attempts"]] == [("f00d", trace.text)]
    text = shop.run("show", str(claim.id)).stdout
    assert 'File "shop.py", line 3, in charge\n' in text
    assert "\x1b" not in text, "an error cannot colour the terminal (SEC-12)"
    (group,) = rows(shop.run("reasons", "--by-fingerprint", "--json"))
    assert group["fingerprint"] == "f00d"
    assert [each["id"] for each in rows(shop.run("list", "--fingerprint", "f00d", "--json"))] == [claim.id]
    assert nothing(shop.run("list", "--fingerprint", "beef"))


@pytest.mark.parametrize("command", ["show", "explain"])
def test_what_is_not_there_is_said(shop: Shop, command: str) -> None:
    for id in ("7", str(uuid4())):
        assert nothing(shop.run(command, id)) == f"todoku: there is no message or delivery {id}"
    for nonsense in ("seven", "0", "-1", "1.5", "9" * 30):
        assert misused(shop.run(command, "--", nonsense)).startswith("Error: Invalid value for 'ID'")


# ----------------------------------------------------------------------------------------------- explain


def test_explain_says_why_a_delivery_has_not_run(shop: Shop) -> None:
    shop.world.publish(delay=40)
    shop.world.store.queues.pause("warehouse", SOMEBODY, paused=True)
    (delivery,) = shop.statuses()
    causes = rows(shop.run("explain", str(delivery), "--json"))
    assert list(causes[0]) == ["delivery", "destination", "cause", "text", "hint"]
    assert [row["cause"] for row in causes] == ["later", "paused", "no_worker"]
    assert re.fullmatch(r"it is due in \d\d s", causes[0]["text"])
    assert said(shop.run("explain", str(delivery)))[1] == (
        f"{delivery} → warehouse: the queue warehouse is paused (todoku resume warehouse)"
    )


def test_explain_of_a_message_tells_of_each_delivery_and_of_one_that_is_over(shop: Shop) -> None:
    (message,) = shop.world.publish(to=["a", "b"])
    (claim,) = shop.world.claim(shop.world.worker(), destinations=["a"])
    shop.world.settle([claim])
    told = rows(shop.run("explain", str(message.id), "--json"))
    assert {(row["destination"], row["cause"]) for row in told} >= {("a", "succeeded"), ("b", "unregistered")}
    (one,) = rows(shop.run("explain", str(claim.id), "--json"))
    assert one["text"].startswith("it succeeded at ")


# ------------------------------------------------------------------------- reasons, workers, ledger, tail


def test_reasons_groups_the_dead_letters(shop: Shop) -> None:
    assert said(shop.run("reasons")) == ["no dead letters"]
    shop.dead(1, "HTTP_4XX")
    last = shop.dead(3, "TIMEOUT")[-1]
    shop.dead(1, "TIMEOUT", to=["mail"])
    found = rows(shop.run("reasons", "--json"))
    assert list(found[0]) == ["reason", "destination", "number", "first", "last", "example", "error"]
    assert [(row["reason"], row["destination"], row["number"]) for row in found] == [
        ("TIMEOUT", "warehouse", 3),
        ("HTTP_4XX", "warehouse", 1),
        ("TIMEOUT", "mail", 1),
    ]
    assert (found[0]["example"], found[0]["error"]) == (last, "TIMEOUT in a test")
    assert said(shop.run("reasons"))[1].startswith("TIMEOUT")


def test_workers_tells_who_is_there_and_what_they_hold(shop: Shop) -> None:
    assert said(shop.run("workers")) == ["no workers"]
    shop.world.publish(3)
    worker = shop.world.worker(name="host:1", lease=600)
    shop.world.claim(worker, limit=2)
    (row,) = rows(shop.run("workers", "--json"))
    assert list(row) == ["id", "name", "state", "alive", "held", "started", "lease_ends", "slots", "version"]
    assert (row["id"], row["name"], row["alive"], row["held"]) == (str(worker), "host:1", True, 2)


def test_ledger_says_what_is_known_of_a_key(shop: Shop) -> None:
    (message,) = shop.world.publish(idempotency_key="u7")
    (entry,) = rows(shop.run("ledger", "u7", "--scope", "publish:order.created", "--json"))
    assert (entry["state"], entry["message"]) == ("accepted", str(message.id))
    (delivery,) = shop.statuses()
    assert shop.run("settle", str(delivery), "--as", "succeeded", "--result", '{"token": "x"}').returncode == 0
    (entry,) = rows(shop.run("ledger", "u7", "--scope", "effect:warehouse", "--json"))
    assert (entry["state"], entry["response"]) == ("succeeded", {"token": "***"})
    assert nothing(shop.run("ledger", "u8", "--scope", "effect:warehouse")).endswith("'u8' in effect:warehouse")
    assert "--scope" in misused(shop.run("ledger", "u7"))


def test_tail_shows_each_event_once_as_it_happens(shop: Shop) -> None:
    """Started first, told afterwards: what it prints comes from watching, and nothing twice."""
    command = [sys.executable, "-m", "todoku", "tail", "--db", shop.world.url, "--json", "--interval", "0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            watching: list[object] = []
            deadline = time.monotonic() + 60
            while not watching:  # until it has begun to watch nothing is its to show
                assert time.monotonic() < deadline
                shop.world.publish(topic="the.first")
                watching, _, _ = select.select([process.stdout], [], [], 0.5)
            shop.dead(1, "REFUSED", topic="the.second", to=["mail"])
            told = [process.stdout.readline()]
            while not any('"aborted"' in line for line in told):
                told.append(process.stdout.readline())
            process.send_signal(2)
            rest, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, error) == (0, "")
    lines = [*told, *rest.splitlines(keepends=True)]
    assert len(set(lines)) == len(lines)
    (ended,) = [line for line in lines if '"what":"aborted"' in line]
    assert '"destination":"mail","told":"REFUSED: REFUSED in a test"' in ended


def test_tail_may_begin_in_the_past_and_end(shop: Shop) -> None:
    shop.world.publish(2)
    assert [row["what"] for row in rows(shop.run("tail", "--since", "1h", "--for", "0", "--json"))] == ["published"] * 2
    first, *_ = said(shop.run("tail", "--since", "1h", "--for", "0"))
    assert first.split()[2:] == ["published", "order.created", "→", "warehouse"]


def test_tail_names_topic_and_destination_also_of_what_has_succeeded_since(shop: Shop) -> None:
    """Issue 12. The delivery of a failed attempt may be gone from its table, and an act may be about a delivery."""
    shop.world.publish(topic="the.first", to=["mail", "billing"])
    worker = shop.world.worker()
    shop.world.settle(shop.world.claim(worker, destinations=["mail"]), failed("TIMEOUT"))
    shop.world.settle(shop.world.claim(worker, destinations=["mail"]))
    (waiting,) = shop.statuses()
    assert shop.run("cancel", str(waiting), "--why", "a test").returncode == 0
    assert shop.run("pause", "mail", "--why", "a test").returncode == 0
    events = {row["what"]: row for row in rows(shop.run("tail", "--since", "1h", "--for", "0", "--json"))}
    assert {what: (row["topic"], row["destination"]) for what, row in events.items()} == {
        "published": ("the.first", "billing, mail"),
        "failed": ("the.first", "mail"),
        "succeeded": ("the.first", "mail"),
        "cancel": ("the.first", "billing"),
        "pause": (None, "queue:mail"),
    }
    assert events["cancel"]["delivery"] == waiting


# ------------------------------------------------------------------------------------------ narrow terminals


def test_names_and_errors_give_way_and_ids_keep_their_width() -> None:
    assert fit_widths(["id", "topic", "error"], [36, 10, 60], 120) == [36, 10, 60]
    assert fit_widths(["id", "topic", "error"], [36, 30, 60], 120) == [36, 30, 50], (
        "the names first, the error the rest"
    )
    assert fit_widths(["id", "topic", "error"], [36, 30, 60], 82) == [36, 12, 30], (
        "but the error up to what tells something"
    )
    assert fit_widths(["id", "topic", "error"], [36, 30, 60], 10) == [36, 12, 20], "readable before narrow"
    assert fit_widths(["id", "error", "payload"], [2, 60, 40], 60) == [2, 38, 16]
    assert fit_widths(["id", "error", "payload"], [2, 60, 40], 50) is None, "a payload leaves before an error is cut"


# ------------------------------------------------------------------------------------------------ search


def test_search_finds_by_words_and_says_why(shop: Shop) -> None:
    shop.dead(1, "REFUSED")
    shop.world.publish(1, topic="mail.sent", key="k1")
    lines = said(shop.run("search", "status:aborted", "topic:order.*"))
    assert lines[0].split() == ["id", "topic", "destination", "status", "tries", "why", "changed"]
    assert "REFUSED" in lines[1]
    assert said(shop.run("search", "k1"))[-1] == "'k1' is a key"
    (found,) = rows(shop.run("search", "status:pending", "--json"))
    assert [row["why"]["cause"] for row in found["items"]] == ["unregistered"]
    assert (found["query"], found["looked_at"], found["complete"]) == ("status:pending", 2, True)


def test_search_goes_on_from_its_cursor(shop: Shop) -> None:
    shop.world.publish(3)
    (first,) = rows(shop.run("search", "queue:warehouse", "--limit", "2", "--json"))
    (rest,) = rows(shop.run("search", "queue:warehouse", "--cursor", first["next"], "--json"))
    assert [len(page["items"]) for page in (first, rest)] == [2, 1]
    assert f"--cursor {first['next']}" in said(shop.run("search", "queue:warehouse", "--limit", "2"))[-1]


def test_a_wrong_search_is_refused_and_nothing_found_is_said(shop: Shop) -> None:
    assert "there is no word 'colour'" in nothing(shop.run("search", "colour:red"))
    assert shop.run("search", "queue:none").returncode == 1

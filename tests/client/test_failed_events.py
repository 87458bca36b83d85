"""`failed_webhook_events` (S4-31, S4-32, S4-33): filled from a queue elsewhere by a command, from an App by a hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from click.testing import CliRunner

import todoku
from tests.api.qstash.receiving import receiver
from tests.client.conftest import Elsewhere
from tests.client.queue_server import TOKEN
from tests.client.test_publish import letter
from tests.daemon.running import until
from tests.support.world import World
from todoku.cli.main import cli
from todoku.client import connect, failed_events
from todoku.client.failed_events import FailedEvents, build_event
from todoku.core.errors import InvalidSetting, TodokuError
from todoku.store import failed_event_table

Program = Callable[..., Any]
COLUMNS = "event_id, payload, error, dlq_id, rerun_by, rerun_why"


class Done:
    """What a command came to."""

    def __init__(self, returncode: int, stdout: str, stderr: str) -> None:
        self.returncode, self.stdout, self.stderr = returncode, stdout, stderr


def commands(url: str, elsewhere: Elsewhere) -> Program:
    """The commands in this process: each in one of its own takes longer than all the rest (one test does that)."""
    environ = {"QSTASH_URL": elsewhere.url, "QSTASH_TOKEN": TOKEN, "TODOKU_DATABASE": url, "TODOKU_BY": "ada"}

    def program(*arguments: str) -> Done:
        done = CliRunner().invoke(cli, arguments, env=environ)
        if isinstance(done.exception, TodokuError):  # what `main` makes of it
            return Done(1, done.stdout, str(done.exception))
        mixed = done.stderr_bytes is None  # click before 8.2 has one stream for both
        return Done(done.exit_code, done.stdout, done.output if mixed else done.stderr)

    return program


@pytest.fixture
def todoku_on(world: World, elsewhere: Elsewhere) -> Program:
    """With a database of each kind and the queue elsewhere."""
    return commands(world.url, elsewhere)


def rows(world: World, table: str = "failed_webhook_events") -> list[tuple[Any, ...]]:
    return world.sql(f"select {COLUMNS} from {table} order by event_id")


def test_dlq_sync_keeps_each_dead_letter_once(run: Any, todoku_on: Program, world: World, elsewhere: Elsewhere) -> None:
    elsewhere.bury(*(letter(number) for number in range(130)), letter(130, body=None, bodyBase64="AP8="))
    first = run("dlq-sync", "--database", world.url, "--queue-url", elsewhere.url, QSTASH_TOKEN=TOKEN)
    assert (first.returncode, first.stdout) == (0, "131 dead letters, 131 new\n"), first.stderr
    again = todoku_on("dlq-sync", "--json")
    assert (again.returncode, again.stdout) == (0, "")
    found = {row[0]: row for row in rows(world)}
    assert len(found) == 131
    assert found["evt_7"] == ("evt_7", '{"n":7}', "HTTP 489: no such participant", "dlq_7", None, None)
    assert found["evt_130"][1] == "AP8="  # no text: as base64, and marked so
    ((created,),) = world.sql("select count(created_at) from failed_webhook_events")
    assert created == 131


def test_an_event_is_run_again_and_says_by_whom(todoku_on: Program, world: World, elsewhere: Elsewhere) -> None:
    """S4-33; and one that dies again is open again."""
    elsewhere.bury(letter(1), letter(2))
    todoku_on("dlq-sync")
    tried = todoku_on("dlq-rerun", "evt_1", "--dry-run")
    assert (tried.returncode, "would send evt_1 again" in tried.stdout) == (0, True)
    assert len(elsewhere.dead()) == 2
    done = todoku_on("dlq-rerun", "evt_1", "--by", "grace", "--why", "mended")
    assert (done.returncode, done.stdout) == (0, "sent evt_1 again as msg_again\n"), done.stderr
    assert [one["dlqId"] for one in elsewhere.dead()] == ["dlq_2"]
    assert [row[4:] for row in rows(world)] == [("grace", "mended"), (None, None)]
    todoku_on("dlq-sync")
    assert rows(world)[0][4] == "grace"  # it is not dead now
    elsewhere.bury(letter(1, dlqId="dlq_9"), letter(2))
    died = todoku_on("dlq-sync", "--json")
    assert json.loads(died.stdout)["dlq_id"] == "dlq_9"
    assert rows(world)[0][3:] == ("dlq_9", None, None)


def test_a_queue_that_gives_the_same_id_again_is_understood_too(
    todoku_on: Program, world: World, elsewhere: Elsewhere
) -> None:
    elsewhere.bury(letter(1))
    todoku_on("dlq-sync")
    todoku_on("dlq-rerun", "evt_1", "--why", "mended")
    elsewhere.bury(letter(1))
    assert todoku_on("dlq-sync").stdout == "1 dead letter, 1 new\n"
    assert rows(world)[0][4] is None


def test_what_the_queue_has_forgotten_is_published_anew_once(
    todoku_on: Program, world: World, elsewhere: Elsewhere
) -> None:
    elsewhere.bury(letter(1, queueName="orders"), letter(2, body=None, bodyBase64="AP8=", method="PUT"))
    todoku_on("dlq-sync")
    elsewhere.bury()
    gone = todoku_on("dlq-rerun", "evt_1", "--why", "mended")
    assert (gone.returncode, "--publish" in gone.stderr) == (1, True)
    assert rows(world)[0][4] is None
    for event in ("evt_1", "evt_1", "evt_2"):
        assert todoku_on("dlq-rerun", event, "--publish", "--why", "mended").returncode == 0
    first, second = elsewhere.accepted()
    assert first[0] == "/v2/enqueue/orders/https://worker.example.com/x"
    assert (first[2], second[2], second[1]["upstash-method"]) == (b'{"n":1}', b"\x00\xff", "PUT")
    assert first[1]["upstash-forward-x-event-id"] == "evt_1"
    assert [row[4] for row in rows(world)] == ["ada", "ada"]


def test_the_id_of_an_event_can_be_in_its_body(todoku_on: Program, world: World, elsewhere: Elsewhere) -> None:
    elsewhere.bury(letter(1, body='{"id":"evt_in_body"}'), letter(2, body="no json"))
    done = todoku_on("dlq-sync", "--event-id", "body:id", "--table", "dead_events")
    assert done.returncode == 0, done.stderr
    assert [row[0] for row in rows(world, "dead_events")] == ["evt_2", "evt_in_body"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("dlq-sync", "--table", "a; drop table b"), 1, "table cannot be"),
        (("dlq-sync", "--event-id", "first"), 1, "event-id cannot be"),
        (("dlq-rerun", "evt_9", "--why", "mended"), 1, "no failed event evt_9"),
        (("dlq-rerun",), 2, "EVENT_ID"),
        (("dlq-sync", "--queue-url", "http://127.0.0.1:1"), 1, "127.0.0.1:1"),
    ],
)
def test_what_cannot_be_is_one_line(
    sqlite_url: str, elsewhere: Elsewhere, arguments: tuple[str, ...], code: int, said: str
) -> None:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.close()
    done = commands(sqlite_url, elsewhere)(*arguments)
    assert (done.returncode, said in done.stderr) == (code, True), done.stderr


def test_dlq_sync_watches_and_outlives_a_queue_that_is_away(
    sqlite_url: str, elsewhere: Elsewhere, tmp_path: Any
) -> None:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    elsewhere.bury(letter(1))
    environ = {**os.environ, "QSTASH_TOKEN": TOKEN, "TODOKU_DATABASE": world.url}
    command = [sys.executable, "-m", "todoku", "dlq-sync", "--watch", "0.1s", "--queue-url", elsewhere.url]
    with (tmp_path / "err").open("w") as err:
        watching = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=err)
        try:
            until(lambda: has(world, 1), "the first is there")
            elsewhere.kill()
            until(lambda: "Unavailable" in text(tmp_path) or "refused" in text(tmp_path), "it says so")
            elsewhere.start()
            elsewhere.bury(letter(1), letter(2))
            until(lambda: has(world, 2), "the second is there")
        finally:
            watching.terminate()
            watching.wait()
            world.close()


def text(home: Any) -> str:
    return str((home / "err").read_text())


def has(world: World, number: int) -> bool:
    try:
        return len(rows(world)) == number
    except Exception:  # the table is not there yet
        return False


def test_an_app_fills_the_table_by_a_hook(world: World, box: todoku.App) -> None:
    """Each death is told of in the transaction that ends the delivery; the row commits with the hook."""
    failed_events(box)
    failed_events(
        box, table="dead_orders", topic="order.*", name="orders-dead", event_id=lambda letter: letter.message.id
    )

    @box.on("**")
    def note(ctx: todoku.Context, event: dict[str, int]) -> None:
        raise todoku.Abort("MISSING_PARTICIPANT", "no such participant")

    box.migrate()
    queue = connect(box)
    queue.publish("payment.succeeded", {"n": 1}, deduplication_id="evt_1")
    order = queue.publish("order.created", {"n": 2}, deduplication_id="evt_2")
    until(lambda: box.drain() == 0, "the hooks have run, too")
    told = "MISSING_PARTICIPANT: no such participant"
    assert [row[:3] for row in rows(world)] == [("evt_1", '{"n":1}', told), ("evt_2", '{"n":2}', told)]
    assert [row[0] for row in rows(world, "dead_orders")] == [order.id]
    (died,) = queue.dlq.list(to="payment.succeeded").items
    queue.dlq.retry(died.id, by="ada", why="mended")
    until(lambda: box.drain() == 0, "the hook has run, too")
    (again,) = queue.dlq.list(to="payment.succeeded").items
    assert rows(world)[0][3] == again.id != died.id
    late = failed_event_table.add_event(
        box.outbox.publishing(), failed_event_table.TABLE, build_event(died), looked_at="9999-12-31"
    )
    assert not box.store.run(late), "a hook that was told of the first death runs after that of the second"
    assert rows(world)[0][3] == again.id


def test_an_event_of_an_app_is_run_again_from_its_row(world: World, box: todoku.App) -> None:
    mended: list[int] = []
    failed_events(box)

    @box.on("payment.*")
    def note(ctx: todoku.Context, n: int) -> None:
        if not mended:
            raise todoku.Abort("MISSING_PARTICIPANT")
        mended.append(n)

    box.migrate()
    queue = connect(box)
    queue.publish("payment.succeeded", 7, deduplication_id="evt_1")
    until(lambda: box.drain() == 0, "the hook has run, too")
    mended.append(0)
    FailedEvents(box).rerun(queue, "evt_1", by="ada", why="mended")
    box.drain()
    assert mended == [0, 7]
    assert rows(world)[0][4:] == ("ada", "mended")


def test_a_table_that_the_application_made_itself_is_used(world: World, box: todoku.App) -> None:
    """Who has the rows need not be allowed to make tables."""
    moment = "text" if world.backend == "sqlite" else "timestamptz"
    world.sql(
        "create table app_failures (id integer, event_id text unique, payload text, error text,"
        f" created_at {moment}, message_id text, dlq_id text, request text,"
        f" rerun_at {moment}, rerun_by text, rerun_why text)"
    )
    failed_events(box, table="app_failures")

    @box.on("payment.*")
    def note(n: int) -> None:
        raise todoku.Abort("NEVER")

    box.migrate()
    connect(box).publish("payment.succeeded", 7, deduplication_id="evt_1")
    until(lambda: box.drain() == 0, "the hook has run, too")
    assert [row[0] for row in rows(world, "app_failures")] == ["evt_1"]
    with pytest.raises(InvalidSetting, match="table cannot be"):
        failed_events(box, table="two words", name="other")


# --------------------------------------------------------------------------------- rows are closed (S4-32)


def until_idle(box: todoku.App) -> None:
    until(lambda: box.drain() == 0, "the hooks have run, too")


def opened(world: World) -> list[str]:
    found = world.sql("select event_id from failed_webhook_events where rerun_at is null")
    return sorted(event_id for (event_id,) in found)


@pytest.fixture
def paying(box: todoku.App) -> set[str]:
    """An App whose payments are dead letters but for the participants in this set."""
    known: set[str] = set()
    failed_events(box)

    @box.on("payment.*")
    def note(event: dict[str, str]) -> None:
        if event["of"] not in known:
            raise todoku.Abort("MISSING_PARTICIPANT")

    box.migrate()
    return known


def test_a_row_is_closed_however_its_letter_was_replayed(world: World, box: todoku.App, paying: set[str]) -> None:
    """S4-32: by the App, the command line, a queue's API, or a repetition; with who and why of the audit."""
    queue = connect(box)
    for name in ("app", "cli", "api", "again", "left"):
        box.publish("payment.succeeded", {"of": name}, tx=None, idempotency_key=name, headers={"X-Event-Id": name})
    until_idle(box)
    assert opened(world) == ["again", "api", "app", "cli", "left"]
    paying.update(("app", "cli", "api", "again"))
    of = {letter.message.headers["X-Event-Id"]: letter for letter in queue.dlq.list().items}
    number = {name: int(letter.id.partition("-")[0]) for name, letter in of.items()}
    box.replay(number["app"], by="ada", why="by the App")
    environ = {"TODOKU_DATABASE": world.url}
    done = CliRunner().invoke(cli, ["replay", str(number["cli"]), "--by", "bob", "--why", "by hand"], env=environ)
    assert done.exit_code == 0, done.output
    queue.dlq.retry(of["api"].id, by="cyd", why="by the API")
    box.publish("payment.succeeded", {"of": "again"}, tx=None, idempotency_key="again", reopen=True)
    until(lambda: box.drain() == 0 and opened(world) == ["left"], "a worker has closed them")
    assert [row[4:] for row in rows(world)] == [
        ("publisher", "published again with the same key"), ("cyd", "by the API"), ("ada", "by the App"),
        ("bob", "by hand"), (None, None),
    ]  # fmt: skip


def test_a_row_of_a_letter_that_failed_again_is_open_again_since_then(
    world: World, box: todoku.App, paying: set[str]
) -> None:
    """S4-32: `created_at` is when it failed, and not when the row was written."""
    box.publish("payment.succeeded", {"of": "p"}, tx=None, headers={"X-Event-Id": "evt_1"})
    assert box.drain(limit=1) == 1
    failed_before = datetime.now(UTC)
    until_idle(box)
    first = FailedEvents(box).get("evt_1").created_at
    assert datetime.fromisoformat(first) <= failed_before, "the hook ran later"
    (letter,) = connect(box).dlq.list().items
    assert letter.failed_at is not None
    assert letter.failed_at <= failed_before
    box.replay(int(letter.id.partition("-")[0]), by="ada", why="mended")
    assert FailedEvents(box).close_replayed() == 1
    until_idle(box)
    assert opened(world) == ["evt_1"]
    assert FailedEvents(box).close_replayed() == 0
    assert FailedEvents(box).get("evt_1").created_at > first


def test_dlq_sync_closes_rows_whose_letters_are_gone_and_keeps_when_they_failed(
    todoku_on: Program, world: World, elsewhere: Elsewhere
) -> None:
    """S4-32: sent again or deleted in the queue's own console; by the id of QStash, or as a todoku server says."""
    elsewhere.bury(letter(1, dlqId="1700000060000-0"), letter(2, failedAt=1_700_000_120_000), letter(3))
    todoku_on("dlq-sync")
    elsewhere.bury(letter(2, failedAt=1_700_000_120_000))
    assert todoku_on("dlq-sync").stdout == "1 dead letter, 0 new\n"
    assert opened(world) == ["evt_2"]
    box = todoku.App(world.url)
    found = [FailedEvents(box).get(f"evt_{number}") for number in (1, 2)]
    assert [one.created_at for one in found] == ["2023-11-14T22:14:20.000Z", "2023-11-14T22:15:20.000Z"]
    assert (found[0].rerun_by, "sent again or deleted" in str(found[0].rerun_why)) == ("queue", True)
    box.close()


def test_the_providers_own_repetition_closes_the_row_and_the_old_letter_does_not_open_it(
    todoku_on: Program, world: World, elsewhere: Elsewhere
) -> None:
    """S4-32: the receiver closes it in the transaction that does the work; the queue still has the letter."""
    elsewhere.bury(letter(1, failedAt=1_700_000_000_000))
    todoku_on("dlq-sync")
    box = todoku.App(world.url)
    events = FailedEvents(box)
    db = world.connect()
    assert events.close(db, "evt_1", by="stripe", why="it came again") is True
    assert events.close(db, "evt_1", by="other", why="and again") is False
    db.commit()
    db.close()
    assert FailedEvents(box, "no_such_table").close(None, "evt_1", by="stripe", why="it came again") is False
    assert todoku_on("dlq-sync").stdout == "1 dead letter, 0 new\n"
    assert rows(world)[0][4:] == ("stripe", "it came again")
    older = letter(1, dlqId="dlq_0", messageId="msg_0", failedAt=1_600_000_000_000)
    newer = letter(1, dlqId="dlq_9", messageId="msg_9", failedAt=4_000_000_000_000)
    elsewhere.bury(older, letter(1, failedAt=1_700_000_000_000))
    assert todoku_on("dlq-sync").stdout == "2 dead letters, 0 new\n"
    elsewhere.bury(newer, older)
    assert todoku_on("dlq-sync").stdout == "2 dead letters, 1 new\n"
    assert rows(world)[0][3:] == ("dlq_9", None, None)
    box.close()


def test_rows_of_a_queue_elsewhere_are_not_closed_by_replays_of_this_database(
    world: World, box: todoku.App, paying: set[str]
) -> None:
    """The ids of their letters may be the same."""
    box.publish("payment.succeeded", {"of": "p"}, tx=None, headers={"X-Event-Id": "evt_1"})
    until_idle(box)
    world.sql("update failed_webhook_events set message_id = 'msg_elsewhere'")
    (number,) = [row.id for row in world.deliveries()]
    box.replay(number, by="ada", why="mended")
    assert FailedEvents(box).close_replayed() == 0
    world.sql("update failed_webhook_events set message_id = ?", "019d0000-0000-7000-8000-00000000000g")
    assert FailedEvents(box).close_replayed() == 0


def test_watching_raises_the_alerts_of_dead_letters_and_says_when_they_are_over(
    sqlite_url: str, elsewhere: Elsewhere, tmp_path: Any
) -> None:
    """S4-34, S4-35, S4-54: of a queue elsewhere, and named by it."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.close()
    elsewhere.bury(letter(1, failedAt=1_700_000_000_000))
    with receiver() as told, (tmp_path / "err").open("w") as err:
        environ = os.environ | {
            "QSTASH_TOKEN": TOKEN, "TODOKU_DATABASE": sqlite_url, "TODOKU_ALERT_WEBHOOK": f"{told.url}/alerts",
            "TODOKU_HTTP_LOOPBACK": "true",
        }  # fmt: skip
        command = [sys.executable, "-m", "todoku", "dlq-sync", "--watch", "0.1s", "--queue-url", elsewhere.url]
        watching = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=err)
        try:
            until(lambda: len(told.received) >= 2, "two alerts have begun")
            elsewhere.bury()
            until(lambda: len(told.received) >= 4, "both are over")
        finally:
            watching.terminate()
            watching.wait()
        alerts = [json.loads(one.body) for one in told.received]
    assert {(one["alert"], one["state"]) for one in alerts} == {
        (name, state) for name in ("dead_letters", "dead_letter_age") for state in ("begun", "over")
    }
    assert {one["database"] for one in alerts} == {f"queue:{elsewhere.url}"}
    assert '"ALERT"' in text(tmp_path)

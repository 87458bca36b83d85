"""The spool: what a queue could not take is on this disk, arrives once, in order, whatever is killed (S4-52)."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import ROOT, Elsewhere, fell_back
from tests.client.queue_server import TOKEN
from tests.daemon.running import until
from todoku.app import App
from todoku.client import Queue, connect
from todoku.store.deliveries import Filter

WORKER = "https://worker.example.com/x"
PUBLISHES = 200


def dead_letters(spool: Path) -> list[tuple[str | None, str | None]]:
    box = App(f"sqlite:///{spool}")
    try:
        return [(one.reason, one.error) for one in box.store.deliveries.find(Filter(status="aborted")).items]
    finally:
        box.close()


@pytest.mark.crash
def test_a_queue_that_is_killed_in_the_middle_gets_each_message_once_and_in_order(
    queues: Any, elsewhere: Elsewhere
) -> None:
    """Publishes by four threads, each through a queue of its own; kill -9 of the queue, and back."""
    queue: Queue = queues(fallback="spool")
    each = PUBLISHES // 4
    half, gone = threading.Event(), threading.Event()

    def publish(thread: int) -> None:
        for n in range(each):
            if n == each // 2:
                half.set()
            if n == each - 5:
                assert gone.wait(60)  # however fast the others were
            done = queue.enqueue(f"queue-{thread}", WORKER, {"thread": thread, "n": n})
            assert done.how in ("queued", "spooled")

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    assert half.wait(60)
    elsewhere.kill()
    gone.set()
    until(lambda: queue.spooled() > 5, "something is spooled")
    elsewhere.start()
    for thread in threads:
        thread.join(120)
    until(lambda: queue.spooled() == 0, "everything is forwarded")
    arrived: dict[int, list[int]] = defaultdict(list)
    for body in elsewhere.bodies():
        found = json.loads(body)
        arrived[found["thread"]].append(found["n"])
    assert dict(arrived) == {number: list(range(each)) for number in range(4)}
    assert fell_back(queue)["spool"] > 5
    assert queue.enqueue("queue-0", WORKER, "after").how == "queued"


CHILD = """
import sys
from todoku.client import connect
queue = connect(sys.argv[1], token="a-token", fallback="spool", spool=sys.argv[2])
for n in range(100_000):
    queue.enqueue("orders", "https://worker.example.com/x", n, deduplication_id=f"evt_{n}")
    print(n, flush=True)
"""


@pytest.mark.crash
def test_a_client_that_is_killed_while_it_spools_has_lost_nothing_it_was_told_of(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    """I1: `enqueue` has returned, so it is on disk; whoever opens the spool next forwards it."""
    elsewhere.tell("503")
    spool = str(tmp_path / "spool.db")
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, elsewhere.url, spool], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    told = [int(child.stdout.readline()) for _ in range(60)]
    child.kill()
    told += [int(line) for line in child.communicate()[0].splitlines() if line.strip()]
    assert elsewhere.bodies() == []
    elsewhere.tell("")
    with connect(elsewhere.url, token=TOKEN, fallback="spool", spool=spool) as queue:
        assert queue.spooled() >= len(told)
        assert queue.enqueue("orders", WORKER, "last").how == "spooled"  # not before those that wait
        until(lambda: queue.spooled() == 0, "everything is forwarded")
    arrived = [json.loads(body) for body in elsewhere.bodies()]
    assert arrived[-1] == "last"
    assert arrived[:-1] == list(range(len(arrived) - 1))  # once each, in order
    assert len(arrived) > len(told)


def test_an_answer_that_was_lost_is_not_doubled(queues: Any, elsewhere: Elsewhere) -> None:
    """The queue has it and did not say so in time: it is spooled, forwarded, and known by its id."""
    queue = queues(fallback="spool", within=0.3)
    elsewhere.tell("mute")
    assert queue.publish(WORKER, 1).how == "spooled"
    until(lambda: elsewhere.bodies() == [b"1"], "the queue has it")
    elsewhere.tell("")
    until(lambda: queue.spooled() == 0, "it is forwarded")
    assert elsewhere.bodies() == [b"1"]
    ((_, headers, _),) = elsewhere.accepted()
    assert int(headers["todoku-deduplicated-for"]) > 86_400  # however long the queue was away


def test_what_the_queue_refuses_when_it_is_forwarded_is_a_dead_letter_of_the_spool(
    queues: Any, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    """Kept for a person to see; and it does not hold up those behind it."""
    queue = queues(fallback="spool")
    elsewhere.tell("503")
    queue.enqueue("orders", WORKER, "refused")
    elsewhere.tell("422")
    until(lambda: queue.spooled() == 0, "the queue has refused it")
    elsewhere.tell("")
    until(lambda: queue.publish(WORKER, "probe").how == "queued", "the queue is asked again")
    assert queue.enqueue("orders", WORKER, "taken").how == "queued"
    ((reason, error),) = dead_letters(tmp_path / "spool.db")
    assert reason == "QUEUE_REFUSED"
    assert error is not None
    assert "told to answer 422" in error


def test_a_wrong_token_kills_no_message(queues: Any, elsewhere: Elsewhere, tmp_path: Path) -> None:
    """A person can mend a token: what was spooled waits for that."""
    queue = queues(fallback="spool")
    elsewhere.tell("503")
    queue.publish(WORKER, 1)
    elsewhere.tell("401")
    box = App(f"sqlite:///{tmp_path}/spool.db")
    until(lambda: list(box.store.deliveries.find(Filter(reason="HTTP_BUSY")).items), "the queue has said 401")
    box.close()
    elsewhere.tell("")
    until(lambda: queue.spooled() == 0, "it is forwarded")
    assert elsewhere.bodies() == [b"1"]


def test_a_delay_counts_from_the_publish_and_not_from_the_forwarding(queues: Any, elsewhere: Elsewhere) -> None:
    queue = queues(fallback="spool")
    elsewhere.tell("503")
    queue.publish(WORKER, 1, delay=3600)
    elsewhere.tell("")
    until(lambda: queue.spooled() == 0, "it is forwarded")
    ((_, headers, _),) = elsewhere.accepted()
    assert "upstash-delay" not in headers
    assert int(headers["upstash-not-before"]) > 0


def test_a_repetition_while_the_queue_is_away_is_spooled_once(queues: Any, elsewhere: Elsewhere) -> None:
    queue = queues(fallback="spool")
    elsewhere.tell("503")
    done = [queue.publish(WORKER, n, deduplication_id="evt_7") for n in (1, 2)]
    assert [one.duplicate for one in done] == [False, True]
    assert queue.spooled() == 1


def test_the_spool_is_private_and_holds_no_token(queues: Any, elsewhere: Elsewhere, tmp_path: Path) -> None:
    elsewhere.tell("503")
    queues(fallback="spool").publish(WORKER, {"card": "4242"})
    spool = tmp_path / "spool.db"
    assert stat.S_IMODE(spool.stat().st_mode) == 0o600
    assert TOKEN.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("spool.db*"))


def test_a_spool_that_was_left_behind_is_forwarded_by_a_command(tmp_path: Path, elsewhere: Elsewhere) -> None:
    elsewhere.tell("503")
    spool = str(tmp_path / "spool.db")
    with connect(elsewhere.url, token=TOKEN, fallback="spool", spool=spool) as queue:
        queue.publish(WORKER, 1)
    elsewhere.tell("")
    command = [sys.executable, "-m", "todoku", "spool-forward", spool, "--queue-url", elsewhere.url, "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "QSTASH_TOKEN": TOKEN}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, json.loads(done.stdout)) == (0, {"forwarded": 1, "left": 0}), done.stderr
    assert elsewhere.bodies() == [b"1"]

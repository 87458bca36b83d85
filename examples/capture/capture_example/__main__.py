"""`make example NAME=capture`: a shop at work, and its changes at three places, until Ctrl-C, and what to try."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import todoku
from capture_example.application import make_box
from capture_example.running import START, Running, running
from capture_example.servers import OwnPostgres, create_topic, free_port, kafka_command, missing_kafka
from capture_example.settings import PORT, Settings, read_port, read_settings
from capture_example.shop import open_shop, work
from capture_example.verdict import Verdict, judge_all

BEFORE, AFTER = 20, 40
"""Orders that the shop has before it is captured, and those that it takes afterwards."""

_APP = "capture_example.box:box"
_PYTHON = "../../.venv/bin/python -m"


def greeting(settings: Settings, daemon: str, environ: dict[str, str]) -> str:
    """What to try."""
    words = " ".join(f"{name}='{environ[name]}'" for name in sorted(environ) if name in _NEEDED)
    return f"""
Its daemon is on {daemon}. In another terminal, in the directory examples/capture:

  export {words}
  {_PYTHON} capture_example.shop --orders 20      the shop goes on; it has never heard of todoku
  {_PYTHON} capture_example.verdict               what arrived, beside its table
  {_PYTHON} todoku capture show main
  {_PYTHON} todoku doctor
  tail -f {settings.arrivals}/webhook.jsonl

Ctrl-C stops all.
"""


_NEEDED = ("SHOP_DATABASE_URL", "TODOKU_DATABASE", "ARRIVALS", "KAFKA_SERVERS", "PORT", "TODOKU_APP")


def start_all(processes: Running, settings: Settings, daemon: int, wanted: Callable[[], bool], kafka: bool) -> None:
    """In this order: Kafka, the receiver of webhooks, and the daemon, which captures."""
    if settings.kafka is not None:
        if kafka:
            port = int(settings.kafka.rpartition(":")[2])
            processes.start("kafka", *kafka_command(settings.arrivals, port))
            processes.until_listening(port, wanted)
        _until_topic(processes, settings.kafka, wanted)
    processes.start_python("receiver", "capture_example.receiver")
    processes.until_served(settings.webhook, wanted)
    processes.start_python("daemon", "todoku", "run", "--app", _APP)
    processes.until_served(f"http://127.0.0.1:{daemon}/readyz", wanted)


def _until_topic(processes: Running, servers: str, wanted: Callable[[], bool]) -> None:
    from aiokafka.errors import KafkaError  # noqa: PLC0415 - only where there is a Kafka

    deadline = time.monotonic() + START
    while wanted() and processes.alive:
        try:
            asyncio.run(create_topic(servers))
        except KafkaError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def until_arrived(settings: Settings, wanted: Callable[[], bool]) -> list[Verdict]:
    """The verdicts, once all pass, or when that takes too long."""
    deadline = time.monotonic() + START
    while True:
        verdicts = judge_all(settings)
        if all(one.passed for one in verdicts) or not wanted() or time.monotonic() > deadline:
            return verdicts
        time.sleep(0.2)


@contextmanager
def home_of(environ: dict[str, str]) -> Iterator[Path]:
    """Where everything lies: here, or, with a server of our own, in a directory that is removed with it."""
    if environ.get("SHOP_DATABASE_URL"):
        environ["ARRIVALS"] = str(Path.cwd())
        yield Path.cwd()
        return
    home = Path(tempfile.mkdtemp(prefix="todoku-capture-"))
    try:
        server = OwnPostgres(home)
        server.start()
        try:
            more = {"SHOP_DATABASE_URL": server.url, "TODOKU_DATABASE": f"sqlite:///{home}/todoku.db"}
            environ |= more | {"ARRIVALS": str(home)}
            yield home
        finally:
            server.stop()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def show(environ: dict[str, str], wanted: Callable[[], bool], stack: ExitStack) -> tuple[Running, bool]:
    """Start everything, let the shop work, and say what arrived. Returns the processes, and whether all passed."""
    home = stack.enter_context(home_of(environ))
    own_kafka = "KAFKA_SERVERS" not in environ and (sentence := missing_kafka()) is None
    if own_kafka:
        environ["KAFKA_SERVERS"] = f"127.0.0.1:{free_port()}"
    elif "KAFKA_SERVERS" not in environ:
        sys.stdout.write(f"{sentence}\n\n")
    port = read_port(environ, "PORT", PORT)
    daemon = read_port(environ, "TODOKU_PORT", port + 1)
    environ |= {"PORT": str(port), "TODOKU_PORT": str(daemon), "TODOKU_HTTP_ALLOW": "127.0.0.1", "TODOKU_APP": _APP}
    settings = read_settings(environ)
    environ["TODOKU_DATABASE"] = settings.database
    chance = random.Random(1)  # noqa: S311 - no secret
    connection = stack.enter_context(open_shop(settings.shop))
    work(connection, BEFORE, chance)
    box = stack.enter_context(closing(make_box(settings)))
    box.migrate()
    processes = stack.enter_context(running(home, environ))
    start_all(processes, settings, daemon, wanted, own_kafka)
    while wanted() and processes.alive and box.captures["main"].status().state != "streaming":
        time.sleep(0.1)  # the rows that are there already arrive first
    if not wanted() or not processes.alive:
        return processes, False
    sys.stdout.write(f"the shop has placed {BEFORE} orders; {AFTER} more are placed, changed and taken back …\n")
    sys.stdout.flush()
    work(connection, AFTER, chance)
    verdicts = until_arrived(settings, wanted)
    sys.stdout.write("".join(f"{one.line()}\n" for one in verdicts))
    sys.stdout.write(greeting(settings, f"http://127.0.0.1:{daemon}", environ))
    sys.stdout.flush()
    return processes, all(one.passed for one in verdicts)


def main() -> int:
    """Returns 0 once a signal has stopped all of them; 1 if one ended by itself or lacks a change; 2 wrong usage."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.append(number))
    try:
        with ExitStack() as stack:
            processes, passed = show(dict(os.environ), lambda: not asked, stack)
            while not asked and processes.alive:
                time.sleep(0.1)
            alive = processes.alive
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"capture: {error}\n")
        return 2
    return 0 if asked and passed and alive else 1


if __name__ == "__main__":
    sys.exit(main())

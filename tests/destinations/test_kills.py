"""Nothing is lost when brokers and relays are killed: a consumer that knows message ids has each once, and in order."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.daemon.running import Daemon, alive
from tests.destinations import relay
from tests.destinations.kinds import Kind, Received, but
from tests.support.pack import until
from tests.support.services import ROOT, ValkeyServer, running

KEYS = 20
pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.timeout(1800)]  # `make brokers` sends ten times as much


@dataclass(frozen=True)
class Order:
    """What is published."""

    key: str
    n: int


class Relay:
    """A daemon that relays to a broker, and the publisher's side of its database."""

    def __init__(self, kind: Kind, address: str, home: Path) -> None:
        url = f"sqlite:///{home}/todoku.db"
        self.kind = kind
        self.box = todoku.App(url)
        self.box.migrate()
        self.box.event("order.created", key="key")(Order)
        self.box.route(relay.TOPICS, to=relay.NAME, ordered=True)
        environ = {
            "TODOKU_DATABASE": url, "PYTHONPATH": str(ROOT), "TODOKU_BACKOFF_SEC": "0.2",
            "TODOKU_TEST_KIND": kind.name, "TODOKU_TEST_BROKER": kind.service.url, "TODOKU_TEST_ADDRESS": address,
        }  # fmt: skip
        self.daemon = Daemon(("run", "--app", "tests.destinations.relay:box", "--workers", "1"), home, environ)
        self.published: dict[str, list[str]] = {}

    def publish(self, number: int) -> None:
        """So many messages, of which one in ten has no key."""
        orders: list[Any] = [Order(f"key {random.randrange(KEYS)}", n) for n in range(number)]
        orders[::10] = [("order.noted", {"n": n}) for n in range(0, number, 10)]
        for message in self.box.publish_many(orders, tx=None):
            self.published.setdefault(message.key or "", []).append(str(message.id))

    def left(self) -> int:
        counts = self.box.store.statistics.counts()
        assert counts.of("aborted") == 0, self.daemon.err[-3000:]
        return counts.of("pending") + counts.of("sending") + counts.of("failed")

    def until_left(self, most: int) -> None:
        until(lambda: self.left() <= most, f"{most} or fewer to be left; {self.left()} are", seconds=150)

    def kill(self) -> None:
        """kill -9 the worker process; its supervisor starts another."""
        (worker,) = until(lambda: [each for each in self.daemon.workers() if each["pid"]], "a worker")
        os.kill(worker["pid"], signal.SIGKILL)
        until(lambda: not alive(worker["pid"]), "the worker to be dead")

    def close(self) -> None:
        self.daemon.close()
        self.box.close()


@pytest.fixture
def make_relay(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Relay]]:
    monkeypatch.setenv("TODOKU_MAX_ATTEMPTS", "100")
    relays: list[Relay] = []

    def make(kind: Kind, address: str) -> Relay:
        relays.append(Relay(kind, address, home))
        relays[-1].daemon.until_ready()
        return relays[-1]

    yield make
    for made in relays:
        made.close()


def consumed(received: list[Received]) -> dict[str, list[str]]:
    """What a consumer with an inbox makes of it: ids by key, each when it came first."""
    seen: dict[str, str] = {}
    for one in received:
        seen.setdefault(one.id, one.key or "")
    by_key: dict[str, list[str]] = {}
    for id, key in seen.items():
        by_key.setdefault(key, []).append(id)
    return by_key


def test_brokers_and_relays_are_killed_in_turn_and_nothing_is_lost(
    kind: Kind, address: str, make_relay: Callable[..., Relay], messages: int
) -> None:
    """I1, I10: each message once for a consumer that knows ids, those of a key in the order they were committed."""
    asyncio.run(kind.declare(address))
    sending = make_relay(kind, address)
    messages = messages if kind.fewer == 1 else max(100, messages // kind.fewer)
    rounds = max(1, messages // 1000)
    each = messages // rounds
    for _ in range(rounds):
        sending.publish(each)
        sending.until_left(each * 4 // 5)
        if not kind.forgets and kind.service.given() is None:
            kind.service.kill()
            kind.service.start()
        sending.until_left(each * 2 // 5)
        sending.kill()
    sending.until_left(0)
    got = consumed(asyncio.run(kind.received(address)))
    for key, ids in sending.published.items():
        if key and kind.keeps_order:
            assert got[key] == ids, f"{key} is out of order"
        else:
            assert sorted(got[key]) == sorted(ids)
    assert got.keys() == sending.published.keys()


@but("redis")
async def test_a_keyed_message_for_two_brokers_arrives_at_both(kind: Kind, address: str, home: Path) -> None:
    from tests.destinations.kinds import RedisKind

    with running(ValkeyServer, home / "second") as service:
        second = RedisKind(service)
        await kind.declare(address)
        box = todoku.App(f"sqlite:///{home}/todoku.db")
        box.migrate()
        for name, one in (("first", kind), ("second", second)):
            box.route("order.*", to=one.patient(address, name=name), ordered=True)
        sent = [
            await box.apublish("order.created", {"n": n}, tx=None, key="order 7", idempotency_key=f"once {n}")
            for n in range(5)
        ]
        await box.adrain()
        box.close()
        expected = [str(message.id) for message in sent]
        for one in (kind, second):
            got = [each.id for each in await one.received(address)]
            assert got == expected if one.keeps_order else sorted(got) == sorted(expected)

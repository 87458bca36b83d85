"""Search server, database and workers are killed in turn while documents change: both projections equal the source.

TODOKU_TEST_DOCUMENTS and TODOKU_TEST_DOCUMENT_KILLS make it longer: `make projection-kills`.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from uuid import uuid4

import pytest

from tests.daemon.own_server import OwnServer, own_server
from tests.daemon.running import Daemon, until
from tests.projections.at_work import ENTRY, library
from tests.projections.library import ACT, Library
from tests.support.services import ROOT, Service
from todoku.core.errors import StoreError, TodokuError
from todoku.core.failure import DeliveryError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]
LONG = 600.0
DOCUMENTS = int(os.environ.get("TODOKU_TEST_DOCUMENTS", "600"))
KILLS = int(os.environ.get("TODOKU_TEST_DOCUMENT_KILLS", "6"))


class Publisher(threading.Thread):
    """Creates, changes and deletes documents, each with its event in the same transaction."""

    def __init__(self, library: Library, number: int) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self._library = library
        self._number = number
        self._chance = random.Random(random.random())
        self.errors: list[Exception] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        for place in range(self._number):
            if self.stopping.is_set():
                return
            self._repeat(partial(self._library.put, f"d{place:05}", views=place))
            other = f"d{self._chance.randrange(place + 1):05}"
            match self._chance.randrange(4):
                case 0:
                    self._repeat(partial(self._library.delete, other))
                case 1:
                    self._repeat(partial(self._library.put, other, title=f"changed {place}"))
            self.done += 1

    def await_progress(self, wanted: int) -> None:
        """Waits until so many documents were created."""
        until(lambda: self.done >= wanted or not self.is_alive(), f"{wanted} documents", seconds=LONG)

    def _repeat(self, change: Callable[[], None]) -> None:
        """Until the database takes it. A commit whose answer was lost is repeated, which is another change."""
        while not self.stopping.is_set():
            try:
                change()
            except Exception as error:
                self.errors.append(error)
                self.stopping.wait(0.05)
            else:
                return


class Scene:
    """The daemon, the servers, and what kills them."""

    def __init__(self, made: Library, search: Service, own: OwnServer | None, home: Path) -> None:
        self.library, self.search, self._own, self._home = made, search, own, home
        self.killed: dict[str, int] = defaultdict(int)
        self.daemon = self._start()

    def _start(self) -> Daemon:
        environ = {
            "TODOKU_DATABASE": self.library.url, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "TODOKU_LEASE_SEC": "5",
            "TODOKU_RECLAIM_INTERVAL_SEC": "0.5", "TODOKU_TEST_SEARCH": self.search.url,
            "TODOKU_TEST_ALIAS": self.library.alias,
        }  # fmt: skip
        return Daemon(("run", "--app", "tests.projections.at_work:box", "--workers", "1"), self._home, environ)

    def kill_worker(self) -> None:
        found = [worker["pid"] for worker in self.daemon.workers() if worker["pid"]]
        if found:
            with suppress(ProcessLookupError):
                os.kill(found[0], signal.SIGKILL)
            self.killed["worker"] += 1

    def kill_search(self) -> None:
        self.search.kill()
        self.search.start()
        self.killed["search"] += 1

    def kill_database(self) -> None:
        if self._own is not None:
            self._own.stop()
            self._own.start()
            self.killed["database"] += 1
        if self.daemon.process.poll() is not None:  # a daemon gives up on a database that is away, and is restarted
            self.daemon.close()
            self.daemon = self._start()

    def close(self) -> None:
        self.daemon.close()
        self.library.close()


@pytest.fixture
def scene(backend: str, search_service: Service, tmp_path: Path) -> Iterator[Scene]:
    """Both projections at work, on a database that may be killed, too."""
    search_service.ours()
    with ExitStack() as stack:
        own = None if backend == "sqlite" else stack.enter_context(own_server())
        url = f"sqlite:///{tmp_path}/todoku.db" if own is None else own.url
        made = library(url, search_service.url, f"kills{uuid4().hex[:8]}").set_up()
        made.sql(ENTRY)
        scene = Scene(made, search_service, own, tmp_path)
        stack.callback(scene.close)
        yield scene


def play(scene: Scene, number: int, kills: int) -> None:
    """Publishes while everything is killed in turn; in the middle, the index is rebuilt. Then compares."""
    made = scene.library
    publisher = Publisher(made, number)
    steps = cycle([scene.kill_worker, scene.kill_search, scene.kill_worker, scene.kill_database])
    rebuilt: list[object] = []
    rebuilder = threading.Thread(
        target=lambda: rebuilt.append(rebuild(made, publisher.stopping)), name="rebuild", daemon=True
    )
    try:
        publisher.start()
        for kill in range(kills):
            publisher.await_progress(number * (kill + 1) // (kills + 1))
            if kill == kills // 3:
                rebuilder.start()
            next(steps)()
        publisher.join(LONG)
        rebuilder.join(LONG)
        assert (publisher.is_alive(), len(rebuilt)) == (False, 1)
    finally:
        publisher.stopping.set()  # nothing uses the database when it is closed
        publisher.join(LONG)
        if rebuilder.ident is not None:
            rebuilder.join(LONG)
    until(lambda: repeated(lambda: behind(made) == 0), "everything is applied", seconds=LONG)
    made.agree()
    assert_chronicle(made)
    assert repeated(made.documents.verify).ok
    made.documents.switch(back=True, **ACT)
    made.agree()
    assert made.dead() == []


def rebuild(made: Library, stopping: threading.Event) -> object:
    """Until readers see the new index: whatever is killed, the same call goes on."""
    while not stopping.is_set():
        with suppress(DeliveryError, TodokuError):
            done = made.documents.rebuild(**ACT, patience=60, sample=None)
            if done.switched:
                return done
        stopping.wait(0.5)
    return None


def repeated(call: Callable[[], object]) -> object:
    while True:
        with suppress(StoreError, DeliveryError):
            return call()
        threading.Event().wait(0.2)


def behind(made: Library) -> int:
    return sum(one.lag.events for one in made.box.projections.list())


def assert_chronicle(made: Library) -> None:
    """Each event has one entry, and those of a document are in the order of their commits."""
    entries = made.sql("select message, document, number from entry")
    published = {
        str(id): seq for id, seq in made.sql("select id, seq from todoku_message where topic like 'document.%'")
    }
    assert len(entries) == len(published)
    assert {message: number for message, _, number in entries} == published


@pytest.mark.slow
def test_whoever_is_killed_both_projections_equal_the_source(scene: Scene) -> None:
    """Projections: nothing is lost, nothing is there twice, a rebuild during kills ends equal, and the way back too."""
    play(scene, DOCUMENTS, kills=KILLS)
    assert scene.killed["worker"] >= KILLS // 3
    assert scene.killed["search"] >= KILLS // 6

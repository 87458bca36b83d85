"""SQLite without room, or without permission to write (fault 12): it is said clearly, and it passes."""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.crash.run import Run
from tests.support.checker import Fault
from tests.support.pack import Forks, Member, until
from tests.support.receiver import Refused
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow]


@contextmanager
def run_at(place: Path, forks: Forks, home: Path) -> Iterator[Run]:
    """A run on a SQLite file in that directory. Nobody can renew a lease meanwhile, so it is a long one."""
    world = World("sqlite", f"sqlite:///{place}/todoku.db")
    world.store.migrate()
    run = Run(forks, home, world, lease=60.0)
    world.close()  # whoever has the file open keeps his right to write
    yield run
    run.pack.end()
    world.close()


def until_it_passes(
    run: Run,
    worker: Member,
    publisher: Member,
    make_room: Callable[[], None],
    says: str,
    take_room: Callable[[], None] = lambda: None,
) -> None:
    """There is no room: the publisher is told so. There is room: both go on, and nothing acknowledged is lost (I1)."""
    refused, began = len(run.refused()), time.monotonic()

    def refusals() -> list[Refused]:
        take_room()  # also what somebody has given up meanwhile
        return run.refused()[refused + 3 :]

    told = until(refusals, "the publisher to be told again and again")
    make_room()
    acknowledged, begun = run.acknowledged(), run.begun()
    until(lambda: run.acknowledged() > acknowledged + 10, "the publisher to go on")
    until(lambda: run.begun() > begun + 10, "the worker to go on")
    run.pack.faults.append(Fault("outage", None, began, time.monotonic()))
    run.pack.drain(publisher)
    run.until_finished()
    run.pack.drain(worker)
    assert {(note.error, says in note.text) for note in told} == {("DatabaseUnavailable", True)}, told[0].text
    assert run.verdict().problems == ()


# ------------------------------------------------------------------------------------------------------- no room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 4 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", place], capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip("only root can mount a small file system: `sudo make test`")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path) -> None:
    with (place / "filling").open("ab", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def test_a_full_disk_is_said_and_passes(small_disk: Path, forks: Forks, tmp_path: Path) -> None:
    with run_at(small_disk, forks, tmp_path) as run:
        worker, publisher = run.worker(), run.publisher(0)
        until(lambda: run.begun() > 20, "work to be under way")
        until_it_passes(
            run, worker, publisher, (small_disk / "filling").unlink, says="full", take_room=lambda: fill(small_disk)
        )


def test_a_file_that_may_not_grow_is_said_and_passes(forks: Forks, tmp_path: Path) -> None:
    """As with a quota: the kernel refuses each write beyond what the file has (RLIMIT_FSIZE)."""
    with run_at(tmp_path, forks, tmp_path) as run:
        worker, publisher = run.worker(), run.publisher(0)
        until(lambda: run.begun() > 20, "work to be under way")

        def limit(size: int) -> None:
            for member in (worker, publisher):
                resource.prlimit(member.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

        limit((tmp_path / "todoku.db").stat().st_size)
        until_it_passes(run, worker, publisher, lambda: limit(resource.RLIM_INFINITY), says="disk")


# -------------------------------------------------------------------------------------------------------- read-only


def permit(place: Path, *, writing: bool) -> None:
    for file in place.iterdir():
        file.chmod(0o600 if writing else 0o400)
    place.chmod(0o700 if writing else 0o500)


def test_a_file_that_is_read_only_is_said_and_passes(forks: Forks, tmp_path: Path) -> None:
    """Worker and publisher are started before somebody mends its permissions, and begin by themselves when they are."""
    place = tmp_path / "place"
    place.mkdir()
    with run_at(place, forks, tmp_path) as run:
        run.publish(1_000_000, 20)
        permit(place, writing=False)
        obeying = {"TODOKU_TEST_OBEY_PERMISSIONS": "1"}
        worker, publisher = run.worker(**obeying), run.publisher(0, None, **obeying)
        until(lambda: "WAITING_FOR_DATABASE" in worker.stderr.read_text(), "the worker to say what it waits for")
        assert "is read-only" in worker.stderr.read_text()
        until_it_passes(run, worker, publisher, lambda: permit(place, writing=True), says="is read-only")

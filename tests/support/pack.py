"""A pack of real processes to be killed, stopped and replaced, and the record of what was done to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from tests.support.checker import Fault
from tests.support.nursery import Answer, Died, Order, Send, Sent, Start, Started

ROOT = Path(__file__).parents[2]
PATIENCE = 150.0
"""How long anything may take on a busy machine before a test gives up."""

A = TypeVar("A", Started, Sent)


class Forks:
    """The nursery, as its user sees it: orders go in, answers and deaths come out."""

    def __init__(self, modules: Sequence[str]) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.nursery", *modules],
            cwd=ROOT, env=kept | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._decoder = msgspec.json.Decoder(Answer)
        self.deaths: dict[int, Died] = {}

    def start(self, order: Start) -> int:
        pid = self._ask(order, Started).pid
        self.deaths.pop(pid, None)  # of another process that had this number before
        return pid

    def send(self, pid: int, number: int) -> Sent:
        return self._ask(Send(pid, number), Sent)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE)
        self._process.stdout.close()

    def _ask(self, order: Order, kind: type[A]) -> A:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        self._process.stdin.flush()
        while True:
            line = self._process.stdout.readline()
            assert line, "the nursery has ended"
            answer = self._decoder.decode(line)
            if isinstance(answer, kind):
                return answer
            if isinstance(answer, Died):
                self.deaths[answer.pid] = answer

    def died(self, pid: int) -> Died | None:
        """How a process ended, if it has."""
        if pid not in self.deaths:
            self.send(pid, 0)  # its answer comes after the news of the dead
        return self.deaths.get(pid)


class Member(msgspec.Struct, frozen=True):
    """One process of a pack."""

    pid: int
    stderr: Path
    started: float


class Pack:
    """The processes of one test."""

    def __init__(self, forks: Forks, home: Path, environ: Mapping[str, str]) -> None:
        self._forks = forks
        self._home = home
        self._environ = dict(environ)
        self.members: list[Member] = []
        self.faults: list[Fault] = []

    def start(self, call: str, **environ: str) -> Member:
        """Start a process that calls `module:function`."""
        stderr = self._home / f"stderr.{len(self.members)}"
        stderr.touch()
        started = time.monotonic()
        pid = self._forks.start(Start(call, self._environ | environ, str(stderr)))
        member = Member(pid, stderr, started)
        self.members.append(member)
        return member

    @property
    def living(self) -> list[Member]:
        return [member for member in self.members if self._forks.died(member.pid) is None]

    @property
    def kills(self) -> int:
        """How many were killed, by us or at a failpoint."""
        return sum(fault.kind == "kill" for fault in self.faults)

    # ----------------------------------------------------------------------------------------- to one of them

    def kill(self, member: Member) -> None:
        """SIGKILL, and come back when it is dead."""
        sent = self._forks.send(member.pid, signal.SIGKILL)
        assert sent.alive, f"process {member.pid} had ended already: {member.stderr.read_text()[-2000:]}"
        assert self._until_dead(member, since=sent.at) == -signal.SIGKILL

    def kill_if_alive(self, member: Member) -> None:
        """SIGKILL, unless it has killed itself at a failpoint meanwhile; and come back when it is dead."""
        self._forks.send(member.pid, signal.SIGKILL)
        self.until_killed(member)

    def until_killed(self, member: Member, *, seconds: float = PATIENCE) -> None:
        """Come back when it has killed itself at a failpoint."""
        code = self._until_dead(member, since=None, seconds=seconds)
        assert code == -signal.SIGKILL, f"it ended with {code}: {member.stderr.read_text()[-2000:]}"

    def stop(self, member: Member) -> None:
        """SIGSTOP: from now on it is a zombie in the making."""
        assert self._forks.send(member.pid, signal.SIGSTOP).alive
        self.until_stopped(member)

    def until_stopped(self, member: Member) -> None:
        """Come back when it is stopped: by us, or by itself at a failpoint."""
        until(lambda: _state(member.pid) == "T", f"process {member.pid} to be stopped")
        self.faults.append(Fault("stop", member.pid, time.monotonic(), float("inf")))

    def resume(self, member: Member) -> None:
        """SIGCONT."""
        (stopped,) = [one for one in self.faults if one.pid == member.pid and one.until == float("inf")]
        self.faults.remove(stopped)
        sent = self._forks.send(member.pid, signal.SIGCONT)
        assert sent.alive
        self.faults.append(msgspec.structs.replace(stopped, until=sent.at))

    def ask_to_drain(self, member: Member) -> None:
        """SIGTERM."""
        self._forks.send(member.pid, signal.SIGTERM)

    def code(self, member: Member, *, seconds: float = PATIENCE) -> int:
        """Wait until it has ended by itself; its exit code."""
        until(lambda: self._forks.died(member.pid), f"process {member.pid} to end", seconds=seconds)
        return self._forks.deaths[member.pid].code

    def drain(self, *members: Member) -> None:
        """SIGTERM to all of them; each leaves in good order."""
        for member in members:
            self.ask_to_drain(member)
        for member in members:
            code = self.code(member)
            assert code == 0, f"it ended with {code}: {member.stderr.read_text()[-2000:]}"

    def end(self) -> None:
        """Nothing of this test goes on."""
        for member in self.living:
            self._forks.send(member.pid, signal.SIGKILL)
        for member in self.members:
            self.code(member)

    def _until_dead(self, member: Member, *, since: float | None, seconds: float = PATIENCE) -> int:
        code = self.code(member, seconds=seconds)
        died = self._forks.deaths[member.pid].at
        self.faults.append(Fault("kill", member.pid, died if since is None else since, died))
        return code


T = TypeVar("T")


def until(true: Callable[[], T | None], what: str, *, seconds: float = PATIENCE) -> T:
    """Poll until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {what}"
        time.sleep(0.003)
    return found


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

"""`make stranger`: the README's two commands, as run by a user who clones this into a private directory.

The last commit is cloned into a directory that only its owner may enter, in a path with a space: for the user who runs
this and, if that is root, for `nobody`, too. There `make up` must serve until it is interrupted, and `make test` must
pass the tests that depend most on where they are: those that start servers, workers and other users' processes.
Packages are copied from this clone's .venv, so that nothing is fetched again.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.support.ports import free_port

HERE = Path(__file__).parents[2]
PATIENCE = 300.0
PARTS = (
    "tests/conformance/test_fence.py",
    "tests/crash/test_disk.py",
    "tests/daemon/test_up.py",
    "tests/engine/test_processes.py",
)


class Stranger:
    """A user with a clone of their own; None: the user who runs this."""

    def __init__(self, user: str | None, place: Path) -> None:
        self.user = user
        self.place = place
        self.clone = place / "a clone"
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "CI") if name in os.environ}
        self._environ = kept | {"HOME": str(place), "TMPDIR": str(place), "PIP_NO_INDEX": "1"}

    def start(self, *command: str, cwd: Path | None = None, **environ: str) -> subprocess.Popen[bytes]:
        """A program with this user's rights, and in a group of its own."""
        record = pwd.getpwnam(self.user) if self.user else None
        return subprocess.Popen(
            command, cwd=cwd or self.clone, env=self._environ | environ, stdin=subprocess.DEVNULL,
            start_new_session=True, user=record and record.pw_uid, group=record and record.pw_gid,
            extra_groups=[] if record else None,
        )  # fmt: skip

    def call(self, *command: str, **environ: str) -> int:
        """Its exit code."""
        return self.start(*command, **environ).wait()

    def prepare(self) -> None:
        """The clone, and in it a .venv with an interpreter that this user may start."""
        subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", HERE, self.clone], check=True)
        if self.user:
            shutil.chown(self.place, self.user)
            subprocess.run(["chown", "-R", self.user, self.clone], check=True)
        assert self.call(self._python(), "-m", "venv", "--without-pip", ".venv") == 0
        subprocess.run(["cp", "-R", HERE / ".venv" / "lib", self.clone / ".venv"], check=True)
        if self.user:
            subprocess.run(["chown", "-R", self.user, self.clone / ".venv"], check=True)
        (self.clone / ".venv" / ".stamp-venv").touch()

    def _python(self) -> str:
        version = f"import sys, ensurepip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        for python in (os.path.realpath(sys.executable), "/usr/local/bin/python3", "/usr/bin/python3"):
            try:
                started = self.start(python, "-c", version, cwd=Path("/"))
            except OSError:
                continue
            if started.wait() == 0:
                return python
        sys.exit(f"stranger: no Python {sys.version_info[0]}.{sys.version_info[1]} that {self.user} may start")

    def up(self) -> None:
        """`make up` serves, and ends when it is interrupted, as by Ctrl-C."""
        port = free_port()
        making = self.start("make", "up", TODOKU_PORT=str(port))
        deadline = time.monotonic() + PATIENCE
        while not _answers(port):
            if making.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"stranger: `make up` of {self.user or 'this user'} does not serve")
            time.sleep(0.2)
        os.killpg(making.pid, signal.SIGINT)
        making.wait(PATIENCE)
        if _answers(port):
            sys.exit("stranger: `make up` was interrupted and still serves")


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=10) as answer:
            return answer.status == 200  # type: ignore[no-any-return]
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def main(parts: Sequence[str]) -> int:
    """Both commands for each stranger; 0 if they passed."""
    for user in (None, "nobody") if os.geteuid() == 0 else (None,):
        with tempfile.TemporaryDirectory() as place:  # mode 0700
            stranger = Stranger(user, Path(place))
            print(f"stranger: {user or 'this user'} in {stranger.clone}", flush=True)
            stranger.prepare()
            stranger.up()
            if code := stranger.call("make", "test", f"TESTS={' '.join(parts)}"):
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or PARTS))

"""`make example NAME=users`: the API and a worker, until Ctrl-C, and what to try."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from types import FrameType

from users_example.server import PORT
from users_example.settings import database_url

_SECONDS = 60.0


def greeting(url: str, database: str) -> str:
    """What to try."""
    shown = database.rpartition("@")[2] if "@" in database else database  # not the password
    return f"""\
users is running on {url} (database {shown})

  curl {url}/users -H 'content-type: application/json' \\
       -d '{{"name": "Ada", "email": "ada@users.example", "additional_props": {{"hobby": "chess", "score": 42}}}}'
  curl {url}/users/1
  curl {url}/stats

In another terminal, in the directory examples/users:

  ../../.venv/bin/worker-manager enqueue data_analysis "How many are we?" 5
  ../../.venv/bin/worker-manager list completed

Mail goes to {os.environ.get("SMTP_URL") or f"files in {os.environ.get('OUTBOX_DIR', 'outbox')}/"}. Ctrl-C stops both.
"""


def main() -> int:
    """Returns 0 once both have stopped because somebody asked; 1 if one of them ended by itself."""
    wanted: list[int] = []

    def stop(number: int, _frame: FrameType | None) -> None:
        wanted.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    url = f"http://127.0.0.1:{os.environ.get('PORT') or PORT}"
    # The server makes the tables, then the worker finds them there. Ctrl-C must reach them only through us.
    children = [_started("server")]
    try:
        _until_served(url, children[0], wanted)
        children.append(_started("worker"))
        if not wanted and children[0].poll() is None:
            sys.stdout.write(greeting(url, database_url(None, os.environ)))
            sys.stdout.flush()
        while not wanted and all(child.poll() is None for child in children):
            time.sleep(0.1)
    finally:
        for child in children:
            child.terminate()
        codes = [child.wait() for child in children]
    return 0 if wanted and {*codes} <= {0, -signal.SIGTERM} else 1  # the latter: it had not really begun


def _started(module: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", f"users_example.{module}"], start_new_session=True, stdin=subprocess.DEVNULL
    )


def _until_served(url: str, server: subprocess.Popen[bytes], wanted: list[int]) -> None:
    deadline = time.monotonic() + _SECONDS
    while server.poll() is None and not wanted and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/stats", timeout=5):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)


if __name__ == "__main__":
    sys.exit(main())

"""The whole shop on one machine: a broker, unless one is named, the API, the publisher and the consumer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from shop_example.own_broker import SECONDS, own_broker
from shop_example.settings import Settings, read_settings

PARTS = {
    "api": ("shop_example", "serve"),
    "publisher": ("todoku", "run", "--app", "shop_example.box:box", "--no-http", "--log", "text"),
    "consumer": ("shop_example", "points"),
}


def greeting(settings: Settings) -> str:
    """What to try."""
    url = f"http://127.0.0.1:{settings.port}"
    return f"""\
the shop is open on {url}; its events go to {_without_password(settings.broker)}

  curl {url}/orders -H 'content-type: application/json' \\
       -d '{{"userId": "11111111-1111-4111-8111-111111111111", "amount": 4200}}'
  curl {url}/outbox

In another terminal, in the directory examples/shop:

  ../../.venv/bin/python -m shop_example balance

Ctrl-C closes the shop.
"""


class Stopped:
    """Whether somebody has asked us to stop."""

    def __init__(self) -> None:
        self.by: int | None = None
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._stop)

    def _stop(self, number: int, _frame: object) -> None:
        self.by = number


def run_everything(prepare: Callable[[Settings], object]) -> int:
    """Returns 0 once all parts have stopped because somebody asked; 1 if one of them ended by itself."""
    stopped = Stopped()
    with ExitStack() as running:
        if not os.environ.get("BROKER_URL"):
            os.environ["BROKER_URL"] = running.enter_context(own_broker(Path("nats")))
        settings = read_settings(os.environ)  # with the broker that is there now
        prepare(settings)
        children = {name: _started(running, module, *words) for name, (module, *words) in PARTS.items()}
        _until_served(f"http://127.0.0.1:{settings.port}/outbox", children["api"], stopped)
        if all(child.poll() is None for child in children.values()) and stopped.by is None:
            sys.stdout.write(greeting(settings))
            sys.stdout.flush()
        while stopped.by is None:
            time.sleep(0.1)
            ended = [name for name, child in children.items() if child.poll() is not None]
            if ended:
                sys.stderr.write(f"shop: {', '.join(ended)} ended\n")
                return 1
    return 0


def _started(running: ExitStack, module: str, *words: str) -> subprocess.Popen[bytes]:
    """A part, in a session of its own: Ctrl-C reaches it only through us, and it is waited for."""
    child = subprocess.Popen(  # noqa: S603 - our own interpreter and module
        [sys.executable, "-m", module, *words], start_new_session=True, stdin=subprocess.DEVNULL
    )
    running.callback(child.wait)
    running.callback(child.terminate)
    return child


def _until_served(url: str, server: subprocess.Popen[bytes], stopped: Stopped) -> None:
    deadline = time.monotonic() + SECONDS
    while server.poll() is None and stopped.by is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310 - our own address
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"

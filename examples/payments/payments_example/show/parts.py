"""The processes of the show, and whoever posts to them."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from payments_example.show.stripe_side import signed

T = TypeVar("T")


def until(found: Callable[[], T], what: str, *, seconds: float = 120.0) -> T:
    """Ask until the answer is true."""
    deadline = time.monotonic() + seconds
    while not (answer := found()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.05)
    return answer


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Part:
    """One program of the show: it can be killed, and started again."""

    def __init__(self, name: str, home: Path, environ: dict[str, str], port: int, *words: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._command = [sys.executable, "-m", *words]
        self._home = home
        self.environ = os.environ | environ
        self.log = home / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: str) -> None:
        """Start it; returns once it answers at `ready`."""
        self.launch()
        until(lambda: self._answers(ready), f"{' '.join(self._command[2:])}: see {self.log}")

    def launch(self) -> None:
        """Start it, and do not wait: not every program answers."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and modules
                self._command, cwd=self._home, env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """`kill -9`, and its worker processes too."""
        workers = self._workers()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for pid in workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """In good order."""
        if self._process is not None and self.lives:
            self._process.terminate()
            self._process.wait(60)

    def _answers(self, path: str) -> bool:
        if self._process is not None and self._process.poll() is not None:
            raise RuntimeError(f"it has ended: {self.log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - our own address
                return bool(answer.status < 300)
        except urllib.error.HTTPError as error:
            return error.code in (401, 404)
        except OSError:
            return False

    def _workers(self) -> list[int]:
        try:
            with urllib.request.urlopen(f"{self.url}/readyz?verbose", timeout=5) as answer:  # noqa: S310
                return [worker["pid"] for worker in json.load(answer)["workers"] if worker["pid"]]
        except (OSError, ValueError, KeyError):
            return []


class Stripe:
    """Posts events as Stripe does: again and again, until somebody answers 2xx."""

    def __init__(self, url: str, secret: str) -> None:
        self._at, self._path = url.removeprefix("http://").partition("/")[::2]
        self._secret = secret
        self.posts = 0
        self.refused = 0

    def post(self, events: Sequence[dict[str, Any]], *, seconds: float = 120.0) -> None:
        """All of them, in this order."""
        for event in events:
            until(lambda event=event: self._posted(event), f"{event['id']} to be taken", seconds=seconds)  # type: ignore[misc]

    def _posted(self, event: dict[str, Any]) -> bool:
        body, headers = signed(event, self._secret)
        connection = http.client.HTTPConnection(self._at, timeout=10)
        try:
            connection.request("POST", f"/{self._path}", body, headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException):
            status = 0
        finally:
            connection.close()
        self.posts += 1
        self.refused += status != 204
        return status == 204


class Admin:
    """Looks at `failed_webhook_events`, and has events run again."""

    def __init__(self, url: str, name: str, token: str) -> None:
        self._url = url
        self._headers = {"Authorization": f"Basic {b64encode(f'{name}:{token}'.encode()).decode()}"}

    def failed(self) -> list[dict[str, Any]]:
        """What failed for good."""
        return list(json.loads(self._asked("/admin/failed")))

    def rerun(self, event_id: str, why: str) -> None:
        """Has one sent again."""
        self._asked(f"/admin/failed/{quote(event_id)}/rerun", json.dumps({"why": why}).encode())

    def _asked(self, path: str, body: bytes | None = None) -> str:
        headers = {**self._headers, "Content-Type": "application/json"}
        asked = urllib.request.Request(self._url + path, body, headers)  # noqa: S310 - our own address
        try:
            with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            error.add_note(f"{path}: {error.read().decode()}")
            raise


class Pager:
    """Where alerts are posted: notes them."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        pager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                pager.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not to the terminal."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/alerts"
        threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True).start()

    def states(self, alert: str) -> list[str]:
        """What was told of one alert: begun, reminder, over."""
        return [one["state"] for one in self.told if one["alert"] == alert]

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

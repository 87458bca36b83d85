"""The users example at work: a post office, an application, and its scripts as they are installed."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import psycopg
from aiosmtpd.smtp import SMTP, Envelope, Session
from users_example.application import Application, opened
from users_example.settings import Settings

from tests.daemon.running import KEPT, PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
USERS = ROOT / "examples" / "users"


class PostOffice:
    """An SMTP server on a free port. `answers[address]` is what it says to that recipient instead of yes."""

    def __init__(self) -> None:
        self.mails: list[Message] = []
        self.answers: dict[str, str] = {}
        self._listening: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        self._loop, self._over, port = self._listening.result(PATIENCE)
        self.url = f"smtp://127.0.0.1:{port}"

    async def _serve(self) -> None:
        over, loop = asyncio.Event(), asyncio.get_running_loop()
        async with await loop.create_server(lambda: SMTP(self), "127.0.0.1", 0) as server:
            self._listening.set_result((loop, over, server.sockets[0].getsockname()[1]))
            await over.wait()

    async def handle_RCPT(
        self, _server: SMTP, _session: Session, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if address in self.answers:
            return self.answers[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:
        assert isinstance(envelope.content, bytes)
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"

    @property
    def receivers(self) -> list[str]:
        """Who was written to, sorted."""
        return sorted(str(mail["To"]) for mail in self.mails)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


@contextmanager
def application_at(url: str, home: Path, **settings: Any) -> Iterator[Application]:
    """An open application whose files are in `home`."""
    given = {"user_created": 0.0, "data_analysis": 0.0, "email_notification": 0.0, **settings}
    with opened(Settings(database=url, outbox=home / "outbox", exports=home / "exports", **given)) as application:
        yield application


def sql(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run a statement of the test's own and commit it; parameters are `?`."""
    if url.startswith("sqlite:"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file, file:
            return file.execute(statement, values).fetchall()
    with psycopg.connect(url) as server:
        cursor = server.execute(statement.replace("?", "%s"), values or None)  # type: ignore[arg-type]
        return cursor.fetchall() if cursor.description else []


class Scripts:
    """The example as pip installs it, in a directory of its own: `worker` and `worker-manager` are real programs."""

    def __init__(self, site: Path) -> None:
        self._site = site
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps",
             "--no-build-isolation", "--no-index", "--target", str(site), str(USERS)],
            check=True, capture_output=True,
        )  # fmt: skip

    def environ(self, **more: str) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("HOME", *KEPT) if name in os.environ}
        paths = [str(self._site), *os.environ.get("PYTHONPATH", "").split(":")]
        return kept | {
            "PATH": f"{self._site}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": ":".join(path for path in paths if path),
            "USER_CREATED_MS": "0", "DATA_ANALYSIS_MS": "0", "EMAIL_NOTIFICATION_MS": "0",
            "TODOKU_POLL_INTERVAL_SEC": "0.05",
        } | more  # fmt: skip

    def run(self, line: str, home: Path, *, typed: str = "", code: int = 0, **environ: str) -> str:
        """Type a command line in a shell, in `home`; returns what it prints."""
        done = subprocess.run(
            ["bash", "-c", line], cwd=home, env=self.environ(**environ), input=typed,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{line} ended with {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    @contextmanager
    def running(self, line: str, home: Path, **environ: str) -> Iterator[Running]:
        """Type a command line that stays, and end it at the end."""
        running = Running(line, home, self.environ(**environ))
        try:
            yield running
        finally:
            running.close()


class Running:
    """A program that stays until it is stopped."""

    def __init__(self, line: str, home: Path, environ: dict[str, str]) -> None:
        self._log = home / f"{abs(hash(line))}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["bash", "-c", f"exec env {line}"], cwd=home, env=environ, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._log.read_text("utf-8")

    def until_said(self, text: str) -> None:
        def has_said() -> bool:
            if text in self.said:
                return True
            assert self.process.poll() is None, f"it ended: {self.said}"
            return False

        until(has_said, f"{text!r} in {self.said}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

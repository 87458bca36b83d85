"""Windows and macOS (S1-53), by processes without what Python lacks there: it works, or one sentence says so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemon.running import Daemon, until

PLATFORMS = Path(__file__).parents[1] / "support" / "platforms"
BOTH = pytest.mark.parametrize("platform", ["windows", "macos"])

PROGRAM = """
import asyncio, http.server, sqlite3, sys, threading
import todoku, todoku.client, todoku.testing
from todoku.api.connections import bounds_of

box = todoku.App(sys.argv[1])
box.migrate()
ran = []

@box.job(keep_result=True)
def slow(number: int) -> int:
    ran.append(number)
    return number * 2

@box.job(keep_result=True)
async def quick(number: int) -> int:
    ran.append(number)
    return number * 3

box.route("order.*", to=todoku.log("warehouse"))
box.ingest("github", todoku.github(secrets=["s3cr3t-of-github"]), topic="github.{type}")
if sys.argv[1].startswith("sqlite"):
    db = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"))
    with db:
        db.execute("create table orders (amount int)")
        db.execute("insert into orders values (42)")
        box.publish("order.created", {"amount": 42}, tx=db)
    db.close()
else:
    box.publish("order.created", {"amount": 42}, tx=None)
handles = slow.enqueue(1), quick.enqueue(2)
box.drain()
assert [handle.result() for handle in handles] == [2, 6], ran

async def beside() -> None:
    async with box.lifespan():
        handle = await quick.aenqueue(5)
        assert await handle.aresult(timeout=60) == 15

asyncio.run(beside())
assert callable(box.ingest_app)
assert bounds_of(box.settings).connections > 0
box.close()

class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = b'{"messageId": "1"}'
        self.send_response(201)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None: ...

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
threading.Thread(target=server.serve_forever, daemon=True).start()
queue = todoku.client.connect(f"http://127.0.0.1:{server.server_address[1]}", token="t", within=30)
for _ in range(2):  # the second is sent on the connection of the first
    queue.publish("https://example.com/", {"amount": 42})
print(sys.platform, "done")
"""


def apart(platform: str) -> dict[str, str]:
    """The environment of a process on that platform."""
    return {"PYTHONPATH": os.pathsep.join([str(PLATFORMS / platform), os.environ.get("PYTHONPATH", "")])}


def run(platform: str, *arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env={**os.environ, **apart(platform), **environ},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@BOTH
def test_importing_publishing_and_a_worker_in_the_program_work(platform: str, url: str, tmp_path: Path) -> None:
    """S1-53: on both databases; jobs in threads and in the loop, `lifespan`, ingest."""
    done = run(platform, "-c", PROGRAM, url, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{'win32' if platform == 'windows' else 'darwin'} done"


@BOTH
def test_commands_work(platform: str, tmp_path: Path) -> None:
    """S1-53: also on systems without user ids."""
    (tmp_path / "shop.py").write_text("import todoku\nbox = todoku.App()\n\n@box.job\ndef greet() -> None: ...\n")
    here = {"TODOKU_APP": "shop:box", "LOGNAME": "", "USER": "", "LNAME": "", "USERNAME": ""}
    for words in (["migrate"], ["enqueue", "greet"], ["run", "--once"], ["stats"], ["doctor"], ["pause", "default"]):
        done = run(platform, "-m", "todoku", *words, cwd=tmp_path, **here)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (words, done.stdout, done.stderr)
        if words == ["doctor"] and platform == "windows":
            assert "other users of this machine" not in done.stdout


@pytest.mark.parametrize("command", ["up", "run", "dev"])
def test_on_windows_a_daemon_says_in_one_sentence_that_it_cannot_run_and_what_can(command: str, tmp_path: Path) -> None:
    """S1-53."""
    done = run("windows", "-m", "todoku", command, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"todoku: `todoku {command}` needs process groups and signals, which Windows does not have")
    assert "WSL" in line
    assert "box.lifespan" in line
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_on_macos_a_daemon_works_and_drains(tmp_path: Path) -> None:
    """S1-53: `todoku up`, its demonstration, a worker process, and a clean end."""
    daemon = Daemon(("up",), tmp_path, apart("macos"))
    try:
        daemon.until_ready()
        until(lambda: [worker["state"] for worker in daemon.workers()] == ["running"], "a worker")
        assert daemon.stop() == 0, daemon.err
    finally:
        daemon.close()

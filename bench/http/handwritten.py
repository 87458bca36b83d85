"""The hand-written endpoint as a contender: its environment, made once below bench/.envs, and its process."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.daemon.running import until
from tests.support.ports import free_port

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent / ".envs" / "fastapi"
REQUIREMENTS = HERE / "fastapi_requirements.txt"
PATIENCE_SEC = 600


class NotInstalled(Exception):
    """The packages of the endpoint cannot be had; the message is the reason."""


def environment() -> Path:
    """The interpreter of an environment with the packages that are pinned, or NotInstalled."""
    python, stamp = ENVIRONMENT / "bin" / "python", ENVIRONMENT / "installed.txt"
    wanted = REQUIREMENTS.read_text()
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(ENVIRONMENT, ignore_errors=True)
        ENVIRONMENT.parent.mkdir(parents=True, exist_ok=True)
        _run(sys.executable, "-m", "venv", str(ENVIRONMENT))
        _run(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(REQUIREMENTS))
        stamp.write_text(wanted)
    return python


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise NotInstalled(f"{' '.join(command[1:4])} failed: {said[-1]}")


@contextmanager
def serving(way: str, database: str) -> Iterator[tuple[int, int]]:
    """The port and the process of an endpoint; see `fastapi_endpoint.py` for the ways."""
    port = free_port()
    program = str(HERE / "fastapi_endpoint.py")
    process = subprocess.Popen([str(environment()), program, way, str(port), database])
    try:
        until(lambda: listens(port) or process.poll() is not None, f"the endpoint with {way}")
        if process.returncode is not None:
            raise RuntimeError(f"the endpoint with {way} ended with {process.returncode}")
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    """Whether a process accepts connections on this port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

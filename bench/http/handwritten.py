"""The hand-written endpoint as a contender: its environment, made once below bench/.envs, and its process."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.peers.installing import make_environment
from tests.daemon.running import until
from tests.support.ports import free_port

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent / ".envs" / "fastapi"
REQUIREMENTS = HERE / "fastapi_requirements.txt"


def environment() -> Path:
    """The interpreter of an environment with the packages that are pinned, or NotInstalled."""
    lines = (line.strip() for line in REQUIREMENTS.read_text().splitlines())
    return make_environment(ENVIRONMENT, [line for line in lines if line and not line.startswith("#")])


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

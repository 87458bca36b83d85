"""Ports for servers that are started later, or never: nobody else in this run of the tests is given the same one."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from pathlib import Path


def free_port(*hosts: str) -> int:
    """A port that is free on these addresses (127.0.0.1), and stays so while its server is not up.

    Not one that the system gives to servers on port 0 and to outgoing connections: between the choice and the use it
    would be somebody else's one day, and a client that keeps trying would be connected with itself.
    """
    while True:
        port = random.SystemRandom().randrange(15_000, 32_000)
        if _is_free(port, hosts or ("127.0.0.1",)) and _is_ours(port):
            return port


def _is_free(port: int, hosts: tuple[str, ...]) -> bool:
    for host in hosts:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                return False
    return True


def _is_ours(port: int) -> bool:
    """Whoever makes the file of a port first has it, in whichever process of the run."""
    home = os.environ.get("TODOKU_TEST_HOME")
    if home is None:  # outside of the tests: a bench, `make crash`
        return True
    with suppress(FileExistsError):
        os.close(os.open(Path(home) / f"port.{port}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        return True
    return False

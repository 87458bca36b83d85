"""How peers are had: each in an environment of its own below bench/.envs, made once.

A stamp beside it has what was asked for; while that is the same, nothing is done. What cannot be had raises
NotInstalled with the reason, and the frame passes over it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import assert_never

from bench.peers.installing_go import install_go
from bench.peers.installing_node import install_node
from bench.peers.peer import PROGRAMS, Go, Installed, Node, NotInstalled, Own, Peer, Venv

STAMP = "installed.txt"
PATIENCE_SEC = 600


def install(peer: Peer) -> Installed:
    """Have a peer here, or raise NotInstalled."""
    match peer.install:
        case Own():
            return Installed((sys.executable, str(PROGRAMS / peer.program)), ())
        case Venv() as how:
            return install_venv(peer, how)
        case Node() as how:
            return install_node(peer, how)
        case Go() as how:
            return install_go(peer, how)
        case _:
            assert_never(peer.install)


def install_venv(peer: Peer, how: Venv) -> Installed:
    """An environment of Python with the packages that are pinned."""
    python = make_environment(peer.folder, how.packages, lowest=how.python)
    frozen = _run(str(python), "-m", "pip", "freeze", "--disable-pip-version-check").splitlines()
    names = {package.split("==")[0].split("[")[0].lower() for package in how.packages}
    versions = [line.replace("==", " ") for line in frozen if line.split("==")[0].lower() in names]
    return Installed((str(python), str(PROGRAMS / peer.program)), tuple(versions))


def make_environment(folder: Path, packages: Sequence[str], *, lowest: tuple[int, int] = (3, 11)) -> Path:
    """The interpreter of an environment with these packages, made unless it is here. NotInstalled."""
    python, stamp = folder / "bin" / "python", folder / STAMP
    wanted = "\n".join(packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        interpreter = _interpreter(lowest)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        _run(interpreter, "-m", "venv", str(folder))
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
        stamp.write_text(wanted)
    return python


def _interpreter(lowest: tuple[int, int]) -> str:
    """A Python that is new enough: this one, or one on the path, or one of pyenv's."""
    if sys.version_info[:2] >= lowest:
        return sys.executable
    names = [f"python{lowest[0]}.{minor}" for minor in range(lowest[1], lowest[1] + 3)]
    candidates = list(names)
    if shutil.which("pyenv"):
        versions = Path(_run("pyenv", "root").strip()) / "versions"
        candidates += [str(found) for name in names for found in sorted(versions.glob(f"*/bin/{name}"))]
    for candidate in candidates:
        found = shutil.which(candidate)
        if found and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
            return found
    raise NotInstalled(f"it needs Python {lowest[0]}.{lowest[1]} or newer, and none is here")


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise NotInstalled(f"{Path(command[0]).name} {' '.join(command[1:4])} failed: {said[-1]}")
    return done.stdout

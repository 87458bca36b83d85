"""How the Node peers are had: `npm ci` of bench/peers/node, with a Node of their own (pg-boss wants 22.12 or newer)."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from bench.peers.peer import PROGRAMS, Installed, Node, NotInstalled, Peer

PINNED = PROGRAMS / "node"
FILES = ("package.json", "package-lock.json")
STAMP = "installed.txt"
PATIENCE_SEC = 600


def install_node(peer: Peer, how: Node) -> Installed:
    """Have the packages here, or raise NotInstalled. All Node peers share one folder."""
    wanted = "\n".join((PINNED / name).read_text() for name in FILES)
    stamp = peer.folder / STAMP
    if not stamp.exists() or stamp.read_text() != wanted:
        _npm_ci(peer.folder)
        stamp.write_text(wanted)
    node = _node(peer.folder)
    versions = [_version(peer.folder, name) for name in how.packages]
    return Installed((str(node), str(PROGRAMS / peer.program)), (*versions, f"Node {_answer(str(node), '--version')}"))


def _npm_ci(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise NotInstalled("npm is not here (the package `npm` of Debian, or nodejs.org)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(PINNED / name, folder / name)
    # No install scripts: what we pin needs none. The engine it would complain of is that of npm itself, not ours.
    _answer(npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error", folder=folder)


def _node(folder: Path) -> Path:
    found = next(folder.glob("node_modules/node-linux-*/bin/node"), None)
    if found is None:
        raise NotInstalled("npm has no Node 22 for this machine: its package exists for Linux on x64 and arm64")
    return found


def _version(folder: Path, package: str) -> str:
    described = json.loads((folder / "node_modules" / package / "package.json").read_text())
    return f"{package} {described['version']}"


def _answer(*command: str, folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
        raise NotInstalled(f"{Path(command[0]).name} {' '.join(command[1:2])} failed: {said[-1]}")
    return done.stdout.strip()

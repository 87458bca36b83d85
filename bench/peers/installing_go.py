"""How the Go peers are had: `go build` of a folder below bench/peers, whose go.mod and go.sum pin what it needs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from bench.peers.peer import PROGRAMS, Go, Installed, NotInstalled, Peer

USUAL_PLACE = Path("/usr/local/go/bin/go")
"""Where Go's own installer puts it, which is seldom on the path."""
STAMP = "installed.txt"
PATIENCE_SEC = 900


def install_go(peer: Peer, how: Go) -> Installed:
    """Have the program here, or raise NotInstalled."""
    source, program = PROGRAMS / how.folder, peer.folder / how.folder
    wanted = "\n".join(path.read_text() for path in sorted(source.glob("*")) if path.suffix in {".go", ".mod", ".sum"})
    stamp = peer.folder / STAMP
    if not stamp.exists() or not program.exists() or stamp.read_text() != wanted:
        peer.folder.mkdir(parents=True, exist_ok=True)
        _build(source, program)
        stamp.write_text(wanted)
    # Only what its users would name: the module itself and the driver.
    versions = re.findall(rf"^\s+\S+/({how.folder}|pgx/v5) v(\S+)$", (source / "go.mod").read_text(), re.MULTILINE)
    return Installed((str(program),), tuple(f"{name} {version}" for name, version in versions))


def _build(source: Path, program: Path) -> None:
    go = shutil.which("go") or (str(USUAL_PLACE) if USUAL_PLACE.exists() else None)
    if go is None:
        raise NotInstalled("go is not here (go.dev, or the package `golang` of Debian)")
    command = (go, "build", "-mod=readonly", "-o", str(program), ".")
    # GOTOOLCHAIN=local: the Go at hand builds it, or the build fails and says why; no other one is fetched.
    environ = {**os.environ, "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    try:
        done = subprocess.run(
            command, cwd=source, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_SEC
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalled(f"{go}: {error}") from error
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or ["it says nothing"]
        raise NotInstalled(f"go build failed: {said[-1]}")

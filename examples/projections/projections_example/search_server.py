"""`python -m projections_example.search_server`: an OpenSearch node on SEARCH_PORT, from the jars of `make opensearch`.

For a machine without containers. A real installation has a cluster of its own, and SEARCH_URL names it.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
from pathlib import Path

import todoku
from projections_example.settings import SEARCH_PORT, read_port

CHECKOUT = Path(__file__).resolve().parents[3]
JARS = CHECKOUT / ".cache" / "opensearch"
NODE = CHECKOUT / "tests" / "support" / "opensearch" / "SearchNode.java"


def missing() -> str | None:
    """One sentence about why no search server can be started here; None: one can."""
    if shutil.which("java") is None:
        return (
            "There is no Java here, so no search server is started: the chronicle is the only projection."
            " Install a Java of version 17 or newer, or name a server with SEARCH_URL=http://…"
        )
    if not NODE.is_file() or not any(JARS.glob("opensearch-core-*.jar")):
        return (
            "The jars of OpenSearch are not here, so no search server is started: the chronicle is the only projection."
            " `make opensearch` fetches them (it needs mvn), or name a server with SEARCH_URL=http://…"
        )
    return None


def command(home: Path, port: int) -> list[str]:
    """The program that serves on `port`, with its data in `home`."""
    (home / "config").mkdir(parents=True, exist_ok=True)
    small = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
    return ["java", *small, "-cp", f"{JARS}/*", str(NODE), str(home.resolve()), str(port), str(_free_port())]


def _free_port() -> int:
    """A port that no program has now, for the node's own protocol."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> int:
    """Becomes the server."""
    if (sentence := missing()) is not None:
        sys.stderr.write(f"{sentence}\n")
        return 1
    try:
        port = read_port(os.environ, "SEARCH_PORT", SEARCH_PORT)
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"search_server: {error}\n")
        return 2
    words = command(Path("opensearch"), port)
    return os.execvp(words[0], words)  # noqa: S606 - our own program; signals reach it directly


if __name__ == "__main__":
    sys.exit(main())

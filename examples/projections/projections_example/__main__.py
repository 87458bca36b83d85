"""`make example NAME=projections`: search server, API and workers, until Ctrl-C, and what to try."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import todoku
from projections_example.running import Running, running
from projections_example.search_server import missing
from projections_example.settings import DAEMON_PORT, PORT, SEARCH_PORT, Settings, read_port, read_settings


def greeting(url: str, daemon: str, settings: Settings) -> str:
    """What to try."""
    database = settings.database.rpartition("@")[2]  # not the password
    search = f"""
The search index is at {settings.search_url}/{settings.index}. Readers do not use it yet:

  curl '{url}/search?q=river'                                     from the database, slowly
  {_TODOKU} projection switch search --readers on --why "it is complete" --app {_APP} --db {database}
  curl '{url}/search?q=river'                                     from the index
  {_TODOKU} projection rebuild search --why "new mappings" --app {_APP} --db {database}
  {_TODOKU} projection verify search --app {_APP} --db {database}
"""
    return f"""\
projections is running on {url} (database {database}), its daemon on {daemon}

  curl {url}/documents -H 'content-type: application/json' -d '{{"title": "a river", "author": "ada"}}'
  curl {url}/documents/ID/chronicle
  ../../.venv/bin/python -m projections_example.load --documents 200 --poison 2 --url {url}
  {_TODOKU} projection list --db {database}
  {_TODOKU} reasons --db {database}
{search if settings.search_url is not None else ""}
Ctrl-C stops all.
"""


_TODOKU = "../../.venv/bin/todoku"
_APP = "projections_example.box:box"


def start_all(processes: Running, ports: tuple[int, int, int], wanted: Callable[[], bool], *, search: bool) -> None:
    """In this order: the search server, the API, which makes the tables, and the daemon."""
    port, daemon, search_port = ports
    if search:
        processes.start_python("search", "projections_example.search_server")
        processes.until_served(f"http://127.0.0.1:{search_port}/_cluster/health", wanted)
    processes.start_python("server", "projections_example.server")
    processes.until_served(f"http://127.0.0.1:{port}/documents/none", wanted)
    processes.start_python("daemon", "todoku", "run", "--app", _APP)
    processes.until_served(f"http://127.0.0.1:{daemon}/readyz", wanted)


def main() -> int:
    """Returns 0 once all have stopped because of a signal; 1 if one of them ended by itself; 2 wrong usage."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.append(number))
    try:
        settings = read_settings(os.environ)
        port = read_port(os.environ, "PORT", PORT)
        daemon = read_port(os.environ, "TODOKU_PORT", port + 1 if port != PORT else DAEMON_PORT)
        search_port = read_port(os.environ, "SEARCH_PORT", SEARCH_PORT)
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"projections: {error}\n")
        return 2
    own = settings.search_url is None and (sentence := missing()) is None
    environ = {"TODOKU_DATABASE": settings.database, "PORT": str(port), "TODOKU_PORT": str(daemon)}
    if own:
        url = f"http://127.0.0.1:{search_port}"
        settings = read_settings({**os.environ, "SEARCH_URL": url})
        environ |= {"SEARCH_PORT": str(search_port), "SEARCH_URL": url}
    elif settings.search_url is None:
        sys.stdout.write(f"{sentence}\n\n")
    with running(Path.cwd(), environ) as processes:
        start_all(processes, (port, daemon, search_port), lambda: not asked, search=own)
        if not asked and processes.alive:
            sys.stdout.write(greeting(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{daemon}", settings))
            sys.stdout.flush()
        while not asked and processes.alive:
            time.sleep(0.1)
        codes = {*processes.close()}
    return 0 if asked and codes <= {0, 143, 130, -signal.SIGTERM, -signal.SIGINT} else 1


if __name__ == "__main__":
    sys.exit(main())

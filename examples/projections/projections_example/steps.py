"""The steps of the labs that are no commands of todoku's own: `python -m projections_example.steps STEP …`.

until WORD…        wait for each, and print them: `api`: the API answers; `index`: the search server does;
                   NAME=N: at most N events of that projection wait
kill-worker        kill -9 a worker process of the daemon
search WORDS       what GET /search answers: where from, and how many documents
lose ID            take the last entry of a document out of the chronicle, as a restored backup would
restore ID         put it back
write FIELD=VALUE… post a document; prints its id
change ID FIELD=VALUE…
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import text

from projections_example.application import Application, opened
from projections_example.running import answers
from projections_example.settings import PORT, Settings, read_port, read_settings

PATIENCE = 120.0
API = f"http://127.0.0.1:{read_port(os.environ, 'PORT', PORT)}"
DAEMON = f"http://127.0.0.1:{os.environ.get('TODOKU_PORT', '8320')}"
LAST = "select * from chronicle_entries where document_id = :id order by number desc limit 1"
TAKE = "delete from chronicle_entries where document_id = :id and number = :number"
PUT = (
    "insert into chronicle_entries (document_id, number, what, title, at, message_id)"
    " values (:document_id, :number, :what, :title, :at, :message_id)"
)


def wait(condition: Callable[[], bool], what: str) -> None:
    """Look again and again, for two minutes."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"steps: waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.1)


def until(*words: str) -> None:
    """Wait until each of them is true."""
    settings = read_settings(os.environ)
    for word in words:
        if word == "api":
            wait(lambda: answers(f"{API}/documents/none"), word)
        elif word == "index":
            wait(lambda: answers(f"{settings.search_url}/_cluster/health?wait_for_status=yellow&timeout=5s"), word)
        else:
            until_applied(settings, word)
    print(", ".join(words))


def until_applied(settings: Settings, word: str) -> None:
    """`NAME=N`: at most N events of a projection wait."""
    name, _, most = word.partition("=")
    with opened(settings) as application:
        wait(lambda: application.box.projections[name].lag().events <= int(most), word)


def kill_worker() -> None:
    """End a worker process as a crash does."""
    found: list[int] = []

    def living() -> bool:
        health = httpx.get(f"{DAEMON}/readyz?verbose", timeout=30).json()
        found[:] = [worker["pid"] for worker in health.get("workers", ())]
        return bool(found)

    wait(living, "a worker process")
    os.kill(found[0], signal.SIGKILL)
    print(f"killed {found[0]}")


def search(*words: str) -> None:
    """Ask the API, as a reader does."""
    answer = httpx.get(f"{API}/search", params={"q": " ".join(words)}, timeout=60).json()
    print(f"from the {answer['from']}: {len(answer['documents'])} documents")


def write(*fields: str) -> None:
    """Post a document."""
    answer = httpx.post(f"{API}/documents", json=_fields(fields), timeout=60)
    answer.raise_for_status()
    print(answer.json()["id"])


def change(id: str, *fields: str) -> None:
    """Change a document."""
    answer = httpx.put(f"{API}/documents/{id}", json=_fields(fields), timeout=60)
    answer.raise_for_status()
    print(f"revision {answer.json()['revision']}")


def _fields(pairs: tuple[str, ...]) -> dict[str, str]:
    return {"title": "a title", "author": "ada"} | dict(pair.split("=", 1) for pair in pairs)


def lose(id: str) -> None:
    """Take an entry out, and note it in a file."""
    with opened(read_settings(os.environ)) as application, _entries(application) as tx:
        row: Any = tx.execute(text(LAST), {"id": id}).mappings().one()
        tx.execute(text(TAKE), {"id": id, "number": row["number"]})
        Path("lost.json").write_text(json.dumps(dict(row)), "utf-8")
    print(f"entry {row['number']} is gone")


def restore(id: str) -> None:
    """Put back what `lose` took."""
    row = json.loads(Path("lost.json").read_text("utf-8"))
    if row["document_id"] != id:
        sys.exit(f"steps: lost.json is about {row['document_id']}")
    with opened(read_settings(os.environ)) as application, _entries(application) as tx:
        tx.execute(text(PUT), row)
    print(f"entry {row['number']} is back")


def _entries(application: Application) -> Any:
    return application.chronicle.engine.begin()


def plant(id: str) -> None:
    """Delete a document behind todoku's back."""
    with opened(read_settings(os.environ)) as application:
        if application.index is None:
            sys.exit("steps: SEARCH_URL names no search server")
        application.index.forget(id)
    print(f"{id} is gone from the index")


STEPS: dict[str, Callable[..., None]] = {
    "until": until,
    "kill-worker": kill_worker,
    "search": search,
    "write": write,
    "change": change,
    "plant": plant,
    "lose": lose,
    "restore": restore,
}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in STEPS:
        sys.exit(__doc__)
    STEPS[sys.argv[1]](*sys.argv[2:])

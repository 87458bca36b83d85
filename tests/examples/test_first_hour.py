"""Three programs as a newcomer writes them from the docs alone: each is started and checked as they would do it.

Issue 12: FastAPI, SQLAlchemy and PostgreSQL; Flask, SQLite, cron and a limit per key; GitHub in, a signed webhook out.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from standardwebhooks import Webhook

from tests.daemon.running import KEPT, PATIENCE, until
from tests.examples.users_at_work import PostOffice
from tests.support.ports import free_port
from tests.support.serving import PLAIN

HERE = Path(__file__).parent / "first_hour"
PROGRAMS = ("signup.py", "reports.py", "relay.py")


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    path = os.pathsep.join([str(HERE), *filter(None, [kept.get("PYTHONPATH")])])
    return kept | {"PYTHONPATH": path, "TODOKU_POLL_INTERVAL_SEC": "0.05"} | more


@contextmanager
def started(where: Path, *command: str, **environ: str) -> Iterator[Path]:
    """`python -m …` in a directory, until the block ends; the file with what it says."""
    said = where / f"{command[0]}.{free_port()}.said"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=where, env=environment(**environ),
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield said
            assert process.poll() is None, said.read_text("utf-8")
        finally:
            process.terminate()
            process.wait(PATIENCE)


def run(where: Path, *command: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=where, env=environment(**environ),
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def client_of(port: int) -> Iterator[httpx.Client]:
    """A client of the server that is about to listen there."""
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, trust_env=False, verify=PLAIN) as client:

        def listening() -> bool:
            try:
                client.get("/")
            except httpx.ConnectError:
                return False
            return True

        until(listening, "the program to listen")
        yield client


# ------------------------------------------------------------------------- FastAPI, SQLAlchemy, PostgreSQL


@pytest.mark.slow
@pytest.mark.postgres
def test_a_sign_up_and_its_jobs_are_one_commit_and_the_mail_arrives(
    postgres_url: str, post_office: PostOffice, tmp_path: Path
) -> None:
    port, smtp = free_port(), post_office.url.rpartition(":")[2]
    post_office.answers["nobody@example.com"] = "550 no such mailbox"
    with (
        started(
            tmp_path, "uvicorn", "signup:api", "--port", str(port), DATABASE_URL=postgres_url, SMTP_PORT=smtp
        ) as said,
        client_of(port) as client,
    ):
        ada = client.post("/users", json={"email": "ada@example.com"})
        assert ada.status_code == 201, said.read_text()
        assert client.post("/users", json={"email": "ada@example.com"}).status_code == 409
        assert client.post("/users", json={"email": "nobody@example.com"}).status_code == 201
        account = f"/users/{ada.json()['id']}"
        until(lambda: client.get(account).json() == {"email": "ada@example.com", "points": 100}, "the bonus")
        refused = until(lambda: client.get("/mails").json(), "the mail that is refused")
        assert refused == [{"status": "aborted", "attempts": 1, "error": "MAILBOX_UNKNOWN"}]
        until(lambda: post_office.receivers == ["ada@example.com"], "one mail, and none of what was rolled back")
    with psycopg.connect(postgres_url) as db:
        assert db.execute("select count(*) from users").fetchone() == (2,)
        # Two for each who signed up, and nothing of the address that was taken.
        assert db.execute("select count(*) from todoku.todoku_message").fetchone() == (4,)


# --------------------------------------------------------------------------- Flask, SQLite, cron, per key


def most_at_once(steps: list[list[str]], customer: str) -> int:
    running = most = 0
    for who, _, what in steps:
        if who == customer:
            running += 1 if what == "begins" else -1
            most = max(most, running)
    return most


@pytest.mark.slow
def test_reports_are_exported_one_at_a_time_per_customer_by_hand_and_by_the_clock(tmp_path: Path) -> None:
    port = free_port()
    flask = ("flask", "--app", "reports")
    run(tmp_path, *flask, "prepare")
    with (
        started(tmp_path, *flask, "run", "--port", str(port)),
        client_of(port) as client,
    ):
        for number in range(4):
            for customer in ("acme", "zen"):
                assert client.post(f"/reports/{customer}?report={number}").status_code == 202
        with started(tmp_path, *flask, "todoku", "run", "--no-http", "--workers", "2", NIGHTLY="* * * * * *"):

            def steps() -> list[list[str]]:
                found: list[list[str]] = client.get("/steps").json()
                return found

            def ended(report: str, customer: str) -> bool:
                return any(
                    who == customer and what == "ends" and name.startswith(report) for who, name, what in steps()
                )

            for customer in ("acme", "zen"):
                for number in range(4):
                    until(lambda c=customer, n=number: ended(str(n), c), f"report {number} of {customer}")  # type: ignore[misc]
                until(lambda c=customer: ended("night of", c), f"the nightly report of {customer}")  # type: ignore[misc]
        told = steps()
    assert {customer: most_at_once(told, customer) for customer in ("acme", "zen")} == {"acme": 1, "zen": 1}
    begun = [(who, name) for who, name, what in told if what == "begins"]
    assert len(set(begun)) == len(begun)  # none twice, however often the clock was asked


# ------------------------------------------------------------ GitHub in, a signed webhook out, a dead letter, replay

GITHUB, PARTNER = "it's a secret", "whsec_bm90IGEgc2VjcmV0LCBqdXN0IHdvcmRzIGhlcmU="


class Partner:
    """A partner's endpoint: it verifies what it gets, and is broken until it is mended."""

    def __init__(self) -> None:
        self.broken = True
        self.got: list[Any] = []
        self.asked: list[str] = []
        partner = self

        class Endpoint(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                event = Webhook(PARTNER).verify(body, dict(self.headers.items()))  # raises if it is not signed so
                partner.asked.append(self.headers["webhook-id"])
                if not partner.broken:
                    partner.got.append(event)
                self.send_response(500 if partner.broken else 204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/deploys"


@pytest.fixture
def partner() -> Iterator[Partner]:
    partner = Partner()
    yield partner
    partner.server.shutdown()
    partner.server.server_close()


def github(client: httpx.Client, kind: str, id: str, event: dict[str, object], secret: str = GITHUB) -> int:
    """An event, as GitHub posts it."""
    body = json.dumps(event).encode()
    signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "content-type": "application/json", "x-github-event": kind, "x-github-delivery": id,
        "x-hub-signature-256": f"sha256={signature}",
    }  # fmt: skip
    return client.post("/ingest/github", content=body, headers=headers).status_code


@pytest.mark.slow
def test_a_push_is_passed_on_signed_and_what_the_partner_refused_arrives_after_a_replay(
    partner: Partner, tmp_path: Path
) -> None:
    port = free_port()
    push = {"ref": "refs/heads/main", "repository": {"full_name": "ada/engine"}}
    given = {
        "GITHUB_SECRET": GITHUB, "PARTNER_URL": partner.url, "PARTNER_SECRET": PARTNER, "TODOKU_HTTP_LOOPBACK": "true",
        "TODOKU_MAX_ATTEMPTS": "2", "TODOKU_BACKOFF_SEC": "0.1",
    }  # fmt: skip
    with (
        started(tmp_path, "todoku", "up", "--app", "relay:box", "--port", str(port), **given) as said,
        client_of(port) as client,
    ):
        until(lambda: client.get("/readyz").status_code == 200, "the daemon to be ready")
        assert github(client, "ping", "1", {"zen": "Keep it logically awesome."}) == 204
        assert github(client, "push", "2", push) == github(client, "push", "2", push) == 204  # GitHub repeats itself
        assert github(client, "push", "3", push | {"ref": "refs/heads/draft"}) == 204
        assert github(client, "push", "4", push, secret="a guess") == 400
        until(lambda: "GitHub is connected" in said.read_text("utf-8"), "the ping")
        until(lambda: "the partner did not get ada/engine: HTTP_5XX" in said.read_text("utf-8"), "the dead letter")
        assert (len(partner.asked), partner.got) == (2, [])

        listed = run(tmp_path, "todoku", "list", "--db", "sqlite:///relay.db", "--status", "aborted", "--json")
        (letter,) = [json.loads(line) for line in listed.splitlines()]
        assert (letter["topic"], letter["destination"], letter["reason"]) == ("deploy.requested", "partner", "HTTP_5XX")
        partner.broken = False
        replay = ("replay", str(letter["id"]), "--by", "ada", "--why", "the partner is mended")
        run(tmp_path, "todoku", *replay, "--db", "sqlite:///relay.db")
        until(lambda: partner.got, "the webhook")
        assert partner.got == [{"repository": "ada/engine", "ref": "refs/heads/main"}]
        assert len(set(partner.asked)) == 1  # by its id the partner would recognise a repetition
    counted = run(tmp_path, "todoku", "stats", "--db", "sqlite:///relay.db", "--json")
    assert [row for line in counted.splitlines() if (row := json.loads(line)).get("aborted")] == []


# ------------------------------------------------------------------------------------------------ checked strictly


@pytest.mark.slow
@pytest.mark.xdist_group("mypy")
def test_mypy_has_nothing_to_say_of_them(mypy_cache: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--no-color-output",
        f"--cache-dir={mypy_cache}",
    ]
    done = subprocess.run([*command, *PROGRAMS], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        "signup.py",
        "reports.py",
        "relay.py",
    ],
)
def test_pyright_has_nothing_to_say_of_it(program: str, tmp_path: Path) -> None:
    """In its strict mode: the one TODOKU_TEST_PYRIGHT names, or the build of it that the tests install."""
    pyright = os.environ.get("TODOKU_TEST_PYRIGHT") or str(Path(sys.executable).with_name("basedpyright"))
    (tmp_path / program).write_text((HERE / program).read_text("utf-8"), encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}', encoding="utf-8")
    done = subprocess.run(
        [pyright, "--outputjson", "--pythonpath", sys.executable, program],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert [(one["range"]["start"]["line"] + 1, one["message"]) for one in told["generalDiagnostics"]] == []
    assert told["summary"]["filesAnalyzed"] == 1

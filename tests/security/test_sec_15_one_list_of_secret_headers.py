"""SEC-15: one list of secret headers for all who show, log or store them; and four smaller doors beside it."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

import todoku
from tests.destinations.http.receiving import Receiver, receiving
from tests.encryption.conftest import Boxes, boxes, new_key
from tests.encryption.test_at_rest import stored_in
from tests.encryption.test_requests import ask, drained, sending
from tests.integrations.test_django import environment, manage
from tests.security.test_sec_08_wrong_tokens import status
from tests.support.raw_http import Answer
from tests.support.raw_http import ask as ask_raw
from tests.support.serving import SOMEBODY, Server, serving
from tests.support.world import World
from todoku.cli.main import cli
from todoku.core.http_request import is_secret
from todoku.core.redaction import MASKED, mask
from todoku.engine.http import url_groups

__all__ = ["boxes", "environment"]

CANARY = "canary-of-secret-headers"
TOKEN = "the-token-of-these-tests-0123456789"

NAMED = [
    "X-Vault-Token", "X-Gitlab-Token", "X-Webhook-Secret", "X-Password", "Cookie", "Authorization", "X-Api-Key",
    "Api-Key", "X-Auth-Token", "Private-Token", "X-Amz-Security-Token", "X-Goog-Api-Key", "Ocp-Apim-Subscription-Key",
    "X-Anything-Token", "X-Any-Secret", "X-Any-Key", "X-Any-Password", "Token", "Apikey", "X-Forwarded-Authorization",
    "X-Csrf-Token", "X-Apikey", "x-other-TOKEN", "X_Vault_Token", "x_any_key",
]  # fmt: skip
NEVER_FORWARDED = ["Proxy-Authorization", "Set-Cookie", "Set-Cookie2"]
NOT_SECRET = [
    "Content-Type", "X-Request-Id", "X-Key-Id", "X-Token-Type", "Keyboard", "X-Monkey", "X-Hub-Signature-256",
    "Idempotency-Key", "Accept", "User-Agent", "Key",
]  # fmt: skip


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as made:
        yield made


@pytest.mark.parametrize("name", [*NAMED, *NEVER_FORWARDED])
def test_these_are_secrets_in_any_spelling(name: str) -> None:
    for spelled in (name, name.lower(), name.upper(), name.replace("-", "_")):
        assert is_secret(spelled), spelled
    assert not any(map(is_secret, NOT_SECRET))


@pytest.mark.parametrize("keys", [[], ["a master key"]], ids=["plain", "sealed"])
def test_every_view_of_a_request_hides_them(
    boxes: Boxes, world: World, receiver: Receiver, keys: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """/v2, /api/v1, callbacks, the command line and logs; with a master key not even the database has them."""
    canary = f"canary-{uuid4().hex}"  # the log of a PostgreSQL server has those of other tests
    caplog.set_level("DEBUG")
    box = sending(boxes, *[new_key("2026-11") for _ in keys])
    with serving(box) as server:
        forwarded = {f"Upstash-Forward-{name}": f"{canary}-{place}" for place, name in enumerate(NAMED)}
        told = {f"Upstash-Callback-Forward-{name}": f"{canary}-told" for name in NAMED}
        client = server.client("admin")
        sent = {**forwarded, **told, "Upstash-Callback": f"{receiver.url}/told", "Upstash-Forward-X-Seen": "seen"}
        id = client.post(f"/v2/publish/{receiver.url}/hook", headers=sent).json()["messageId"]
        schedule = {**sent, "Upstash-Cron": "0 0 1 1 *", "Upstash-Schedule-Id": "yearly"}
        assert client.post(f"/v2/schedules/{receiver.url}/hook", headers=schedule).status_code < 300
        assert not keys or stored_in(world, canary) == []
        drained(box)
        paths = [f"/v2/messages/{id}", "/v2/events", "/v2/logs", "/v2/schedules", f"/api/v1/messages/{id}"]
        shown = {path: client.get(path).text for path in paths}
    assert {path for path, text in shown.items() if canary in text} == set()
    assert "seen" in shown[f"/v2/messages/{id}"]
    hook = next(request for request in receiver.received if request.target == "/hook")
    assert hook.value("X-Vault-Token").startswith(canary)
    (callback,) = [request for request in receiver.received if request.target == "/told"]
    assert canary not in callback.body.decode()
    assert callback.value("X-Vault-Token") == f"{canary}-told"
    done = CliRunner().invoke(cli, ["show", id, "--json", "--db", world.url])
    assert done.exit_code == 0
    assert "X-Seen" in done.output
    assert canary not in done.output + caplog.text


def test_headers_of_a_message_are_hidden_by_the_same_list(boxes: Boxes, world: World) -> None:
    box = boxes()
    box.route("**", to="warehouse")
    headers = dict.fromkeys(NAMED, CANARY) | {"x-seen": "seen"}
    id = str(box.publish("order.created", {"n": 1}, tx=None, headers=headers).id)
    with serving(box) as server:
        shown = server.client("admin").get(f"/api/v1/messages/{id}").text
    shown += CliRunner().invoke(cli, ["show", id, "--json", "--db", world.url]).output
    assert shown.count("seen") >= 2
    assert CANARY not in shown


def test_a_log_line_with_headers_in_it_hides_them() -> None:
    given = {"headers": dict.fromkeys(["X-Vault-Token", "X-Signing-Key", "X-Password", "Cookie"], CANARY), "n": 1}
    assert CANARY not in str(mask(given, frozenset(MASKED)))
    assert mask({"primary_key": 7, "key": "a"}, frozenset(MASKED)) == {"primary_key": 7, "key": "a"}


def test_default_headers_of_a_group_are_hidden_by_the_same_list(boxes: Boxes, receiver: Receiver) -> None:
    box = sending(boxes)
    with serving(box) as server:
        url_groups.put(box.store, "shops", [url_groups.EndpointName(f"{receiver.url}/hook")], SOMEBODY)
        headers = {name: CANARY for name in NAMED if "_" not in name} | {"X-Seen": "seen"}
        ask(server, "PATCH", "/topics/shops", json.dumps({"headers": headers}).encode())
        shown = str(ask(server, "GET", "/topics/shops"))
    assert "seen" in shown
    assert CANARY not in shown


# --------------------------------------------------------------------------------------- addresses by /64


@pytest.fixture
def behind(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server behind a proxy on this machine."""
    monkeypatch.setenv("TODOKU_TRUSTED_PROXIES", "127.0.0.1")
    box = todoku.App(world.url)
    with serving(box) as server:
        yield server
    box.close()


def test_an_attacker_has_one_network_however_it_is_written(behind: Server) -> None:
    """All of a /64 belongs to one caller. Each address and each spelling was one of its own before."""
    spelled = [
        "2001:db8::{n:x}", "2001:db8::1:{n:x}", "2001:db8:0:0:{n:x}::1", "2001:DB8:0::{n:x}:0:1",
        "2001:0db8:0000:0000:ffff:ffff:ffff:{n:x}", "[2001:db8::a:{n:x}]:4711", "2001:db8::c0a8:1:0.0.0.{n}",
    ]  # fmt: skip

    async def tried() -> tuple[list[int], int]:
        guesses = [spelled[n % len(spelled)].format(n=n + 1) for n in range(30)]
        theirs = [await status(behind, f"wrong-{n}", caller=guess) for n, guess in enumerate(guesses)]
        return theirs, await status(behind, "wrong-other", caller="2001:db8:0:1::1")

    theirs, other = asyncio.run(tried())
    assert theirs[:20] == [401] * 20
    assert set(theirs[22:]) == {429}
    assert other == 401, "the next network is another client's"


def test_an_ipv4_address_inside_ipv6_is_that_address(behind: Server) -> None:
    async def tried() -> tuple[list[int], int]:
        guesses = ["192.0.2.7", "::ffff:192.0.2.7", "::FFFF:c000:207", "[::ffff:192.0.2.7]:80"]
        theirs = [await status(behind, f"wrong-{n}", caller=guesses[n % len(guesses)]) for n in range(30)]
        return theirs, await status(behind, "wrong-other", caller="::ffff:192.0.2.8")

    theirs, other = asyncio.run(tried())
    assert set(theirs[22:]) == {429}
    assert other == 401


# ------------------------------------------------------------------------------------------ names of tokens


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x1b[2Jb", "\x07", "a\rb", "\u202eevil", "a\u200bb", "a\u2028b", "a\x7fb", "\x9b31m", "a\tb"]
)
def test_the_name_of_a_token_has_no_control_characters(world: World, name: str) -> None:
    """It is printed by `tokens list`, and signed with in the audit."""
    box = todoku.App(world.url)
    with serving(box) as server:
        answer = server.client("admin").post(
            "/api/v1/tokens", json={"name": name, "scopes": ["read"], "why": "a test"}
        )  # fmt: skip
        assert answer.status_code == 422, answer.text
    box.close()
    command = ["tokens", "create", "--scope", "read", "--db", world.url, "--why", "a test", "--name"]
    for more in ([], ["--dry-run"]):
        done = CliRunner().invoke(cli, [*command, name, *more])
        assert done.exit_code != 0
        assert name not in done.output
    assert CliRunner().invoke(cli, [*command, "Ada's laptop 届く"]).exit_code == 0
    assert sorted(row[0] for row in world.sql("select name from todoku_api_key")) == ["Ada's laptop 届く", "ada"]


# ------------------------------------------------------------------------------------- a type of our own


OURS = "application/vnd.todoku.sealed"
PRETENDING = [
    f"{OURS};of=application/json", OURS, OURS.title(), f"{OURS}; of=text/plain", f" {OURS};of=x",
    f"{OURS};key=00000000-0000-4000-8000-000000000000;of=x",
]  # fmt: skip


@pytest.mark.parametrize("given", PRETENDING)
def test_a_content_type_cannot_say_that_its_body_is_sealed(
    world: World, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    """In the request, forwarded, in its callbacks, in a schedule, a batch, and as the default of a group."""
    monkeypatch.setenv("TODOKU_TOKEN", TOKEN)
    box = todoku.App(world.url)
    with serving(box) as server:

        def post(path: str, *headers: str, body: bytes = b"x") -> Answer:
            return ask_raw(server.port, f"POST /v2{path}", *headers, body=body, token=TOKEN)

        url = "/publish/https://shop.example/hook"
        assert post(url, f"Content-Type: {given}").status == 422
        assert post(url, f"Upstash-Forward-Content-Type: {given}").status == 422
        for who in ("Callback", "Failure-Callback"):
            told = (f"Upstash-{who}: https://shop.example/told", f"Upstash-{who}-Forward-Content-Type: {given}")
            assert post(url, *told).status == 422
        cron = ("Upstash-Cron: 0 0 1 1 *", "Upstash-Schedule-Id: yearly", f"Content-Type: {given}")
        assert post("/schedules/https://shop.example/hook", *cron).status == 422
        assert post("/enqueue/mails/https://shop.example/hook", f"Content-Type: {given}").status == 422
        batch = [{"destination": "https://shop.example/hook", "headers": {"Content-Type": given}, "body": "x"}]
        post("/batch", "Content-Type: application/json", body=json.dumps(batch).encode())
    box.close()
    assert world.sql("select count(*) from todoku_message") == [(0,)]
    assert world.sql("select count(*) from todoku_schedule") == [(0,)]


# --------------------------------------------------------------------------------------------- Django's tasks

FORGED = """
import json
import os
from todoku.engine.publish import MessageOptions
from todoku.integrations.django.project import get_box
from todoku.integrations.django.tasks import runner
box = get_box()
for name in json.loads(NAMES):
    stored = {"task": name, "args": ["touch " + MARK], "kwargs": {}, "backend": "default", "queue": "default"}
    draft = box.outbox.draft("x", {"stored": {**stored, "priority": 0}}, MessageOptions(), [runner().route])
    box.outbox.put([draft], None, twin="")
"""
DISGUISED = """
import pathlib
pathlib.Path({mark!r}).touch()
class Disguised:
    module_path = "elsewhere.disguised"
    takes_context = False
    def using(self, **options): return self
    def get_backend(self): return self
    def call(self, *args): pathlib.Path({mark!r}).touch()
disguised = Disguised()
"""


@pytest.mark.slow
def test_a_stored_task_is_a_task_of_the_project(environment: dict[str, str], tmp_path: Path) -> None:
    """What is stored may have been written by others: it loads no module of theirs, and calls nothing but tasks."""
    mark = tmp_path / "ran"
    (tmp_path / "elsewhere.py").write_text(DISGUISED.format(mark=str(mark)))
    environ = {**environment, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    names = [
        "elsewhere.disguised", "os.system", "subprocess.run", "shop.tasks.nothing", "shop.tasks",
        "shop.tasks.greet.func", "shop.tasks.PermissionDenied", "builtins.eval", "", "greet", "..", "shop..tasks.greet",
    ]  # fmt: skip
    assert (done := manage(environ, "migrate")).returncode == 0, done.stderr
    forged = FORGED.replace("NAMES", repr(json.dumps(names))).replace("MARK", repr(str(mark)))
    assert (done := manage(environ, "shell", "-c", forged)).returncode == 0, done.stderr
    good = manage(environ, "shell", "-c", "from shop.tasks import greet; print(greet.enqueue('ada').id)").stdout.split()
    assert (done := manage(environ, "todoku", "run", "--once")).returncode == 0, done.stderr
    assert not mark.exists()
    dead = manage(environ, "todoku", "reasons", "--json").stdout
    assert "UNKNOWN_TASK" in dead
    assert f'"number":{len(names)}' in dead, dead
    assert '"succeeded"' in manage(environ, "todoku", "show", good[-1], "--json").stdout

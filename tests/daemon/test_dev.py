"""`todoku dev`, as a developer meets it: one command, the official client, a receiver, and a line for each attempt."""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from qstash import QStash, Receiver

from tests.daemon.running import Daemon, Shop, until
from tests.support import nodejs
from tests.support.ports import free_port
from todoku.core.scope import KEYS, TOKEN

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("dev")]  # one `todoku dev` for all of them


class Developing:
    """A running `todoku dev`, a client that knows what everybody knows, and what the receiver has."""

    def __init__(self, home: Path) -> None:
        self.receiver = f"http://127.0.0.1:{free_port()}"
        port = self.receiver.rpartition(":")[2]
        self.daemon = Daemon(
            ("dev", "--receiver-port", port, "--rewrite", f"https://shop.example={self.receiver}"), home, {}
        )
        self.client = QStash(TOKEN, base_url=self.daemon.url)

    def received(self, message_id: str) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.receiver}/received", timeout=60) as answer:
            return [one for one in json.load(answer) if one["message_id"] == message_id]

    def publish(self, path: str, *, at: str | None = None, **options: Any) -> str:
        found = self.client.message.publish_json(url=(at or self.receiver) + path, body={"order": 7}, **options)
        return str(found.message_id)  # type: ignore[union-attr]

    def line(self, url: str, words: str) -> str:
        """The line on the terminal about a URL that has these words in it."""
        pattern = rf"^\d\d:\d\d:\d\d #\d+ POST {re.escape(url)}  .*{words}.*$"
        return until(
            lambda: (found := re.search(pattern, self.daemon.out, re.MULTILINE)) and found[0], f"{url} {words}"
        )


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Developing]:
    developing = Developing(tmp_path_factory.mktemp("dev"))
    try:
        developing.daemon.until_ready()
        yield developing
    finally:
        developing.client.http._client.close()  # it has no way of its own
        developing.daemon.close()


def test_it_says_what_a_client_needs(dev: Developing) -> None:
    until(lambda: "stop" in dev.daemon.out, "what it says")
    lines = [line.strip() for line in dev.daemon.out.splitlines()]
    assert lines[0] == f"todoku dev is running on {dev.daemon.url}"
    assert f"export QSTASH_URL={dev.daemon.url}" in lines
    assert f"export QSTASH_TOKEN={TOKEN}" in lines
    assert f"export QSTASH_CURRENT_SIGNING_KEY={KEYS.current}" in lines
    assert f"https://shop.example is sent to {dev.receiver}" in dev.daemon.out


def test_clients_recognise_it_by_its_keys(dev: Developing) -> None:
    """The JavaScript client with QSTASH_DEV=1 asks for the keys with the public token, and compares them."""
    keys = dev.client.signing_key.get()
    assert (keys.current, keys.next) == (KEYS.current, KEYS.next)


ADOPTING = """
import https from "node:https";
import { syncBuiltinESMExports } from "node:module";
https.get = https.request = () => { throw new Error("it looks for another server"); };
syncBuiltinESMExports();
const { Client } = await import(process.argv[1] + "/@upstash/qstash/index.mjs");
const sent = await new Client().publishJSON({ url: process.argv[2], body: { order: 7 } });
console.log(sent.messageId);
"""


def test_the_javascript_client_in_its_development_mode_adopts_it(dev: Developing) -> None:
    """QSTASH_DEV=1 and nothing else: no token, no URL. (The port is given because 8080 may be somebody's.)"""
    nodejs.required()
    done = subprocess.run(
        ["node", "--input-type=module", "-e", ADOPTING, str(nodejs.MODULES), f"{dev.receiver}/200"],
        env={"PATH": os.environ["PATH"], "QSTASH_DEV": "1", "QSTASH_DEV_PORT": str(dev.daemon.port)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (came,) = until(lambda: dev.received(done.stdout.split()[-1]), "it to arrive")
    assert came["signed"]


def test_a_message_arrives_signed_and_is_seen(dev: Developing) -> None:
    message = dev.publish("/200")
    (came,) = until(lambda: dev.received(message), "it to arrive")
    assert (came["method"], came["path"], came["signed"], came["retried"]) == ("POST", "/200", True, "0")
    assert "(attempt 1 of 4, " in dev.line(f"{dev.receiver}/200", "succeeded")
    assert "http.request" in dev.daemon.ask("/deliveries")[1]


def test_489_is_a_dead_letter_at_once(dev: Developing) -> None:
    """S4: 489 and Upstash-NonRetryable-Error."""
    message = dev.publish("/489")
    dev.line(f"{dev.receiver}/489", "dead letter")
    assert len(dev.received(message)) == 1
    (dead,) = [one for one in dev.client.dlq.list().messages if one.message_id == message]
    assert dead.response_status == 489


def test_a_receiver_that_recovers_gets_it_in_the_end(dev: Developing) -> None:
    message = dev.publish("/flaky?times=2", retries=3, retry_delay="50 * (1 + retried)")
    dev.line(f"{dev.receiver}/flaky?times=2", "succeeded")
    assert [one["retried"] for one in dev.received(message)] == ["0", "1", "2"]
    assert dev.line(f"{dev.receiver}/flaky?times=2", "again in")


def test_what_is_for_a_host_elsewhere_is_sent_here_and_signed_for_there(dev: Developing) -> None:
    """Without the internet: the receiver's code verifies the URL that it will have in production."""
    message = dev.publish("/echo?a=b", at="https://shop.example", callback=f"{dev.receiver}/200")
    (came,) = until(lambda: dev.received(message), "it to arrive")
    assert (came["path"], came["signed"]) == ("/echo?a=b", True)
    dev.line("https://shop.example/echo?a=b", "succeeded")
    dev.line(f"{dev.receiver}/200 as a callback", "succeeded")


def test_the_official_receiver_verifies_what_is_sent(dev: Developing, tmp_path: Path) -> None:
    """A worker endpoint of one's own, on this machine, that verifies as the documentation of QStash says."""
    from http.server import BaseHTTPRequestHandler, HTTPServer
    from threading import Thread

    verified: list[str] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            signature, url = self.headers["upstash-signature"], f"http://{self.headers['host']}{self.path}"
            Receiver(KEYS.current, KEYS.next).verify(signature=signature, body=body, url=url)
            verified.append(jwt.decode(signature, options={"verify_signature": False})["sub"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Endpoint) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        dev.publish("/worker?x=1", at=url)
        until(lambda: verified, "it to be verified")
        assert verified == [f"{url}/worker?x=1"]
        server.shutdown()


def test_a_page_from_elsewhere_cannot_use_the_browser_of_the_developer(dev: Developing) -> None:
    url = f"{dev.daemon.url}/v2/publish/{dev.receiver}/200?qstash_token={TOKEN}"
    with httpx.Client(timeout=60, trust_env=False) as browser:
        assert browser.post(url, headers={"Origin": "https://evil.example"}).status_code == 403
        assert browser.post(url, headers={"Host": "evil.example"}).status_code == 403
        assert browser.post(url).status_code == 200


def test_when_it_ends_nothing_is_left(tmp_path: Path) -> None:
    daemon = Daemon(("dev", "--receiver-port", "0"), tmp_path, {"TMPDIR": str(tmp_path)})
    try:
        daemon.until_ready()
        assert list(tmp_path.glob("todoku-dev-*"))
        assert daemon.stop() == 0
        assert not list(tmp_path.glob("todoku-dev-*"))
    finally:
        daemon.close()


def test_an_app_runs_as_well_on_its_own_database(sqlite_shop: Shop) -> None:
    daemon = sqlite_shop.start("dev", "--app", "shop:box", "--receiver-port", "0")
    daemon.until_ready()
    sqlite_shop.enqueue("quick", 1)
    until(lambda: sqlite_shop.noted("quick 1"), "its job to run")
    until(lambda: "shop:box" in daemon.out, "what it says")
    assert daemon.stop() == 0


@pytest.mark.parametrize("command", ["dev", "up"])
def test_the_public_credentials_are_refused_where_others_could_use_them(sqlite_shop: Shop, command: str) -> None:
    """webhooks.md §3: dev tokens are refused off loopback, whoever starts the server."""
    environ = {} if command == "dev" else {"TODOKU_TOKEN": TOKEN}
    daemon = sqlite_shop.start(command, "--host", "0.0.0.0", **environ)
    assert daemon.exit_code() == 1
    (line,) = daemon.err.splitlines()
    assert line.startswith("todoku: this server would be reachable by other machines with the public credentials")
    assert daemon.out == ""


def test_what_is_wrong_with_the_app_is_said_about_the_app(sqlite_shop: Shop) -> None:
    daemon = sqlite_shop.start("dev", "--app", "shop:nothing")
    assert daemon.exit_code() == 1
    assert "module shop has no 'nothing'" in daemon.err

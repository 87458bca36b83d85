"""QStash's client for Node, driven from Python: each call is made by the real client in a process of its own.

And Cloudflare's runtime, `workerd`: what runs in Workers runs in it, with the modules that a bundler put into one file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / ".cache" / "node" / "node_modules"
DRIVER = Path(__file__).parent / "node" / "driver.mjs"
WORKFLOWS = Path(__file__).parent / "node" / "workflows.mjs"


def missing() -> str | None:
    """Why it cannot be driven here; None: it can."""
    if shutil.which("node") is None:
        return "node is not installed: `make system-packages node-clients`"
    if not all((MODULES / "@upstash" / name).is_dir() for name in ("qstash", "workflow")):
        return "the clients for Node are not here: `make node-clients`"
    return None


class NodeError(Exception):
    """What the client raised."""

    def __init__(self, name: str, message: str, status: int | None) -> None:
        super().__init__(f"{name}: {message}")
        self.name, self.message, self.status = name, message, status


class NodeClient:
    """One Node process. `call("messages.get", id)` is `client.messages.get(id)`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def call(self, name: str, *arguments: Any, of: dict[str, Any] | None = None) -> Any:
        """What the call returned, or NodeError. `of`: which queue, or what a Receiver is made with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"call": name, "args": arguments, "of": of}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"node ended: {self._process.wait(10)}"
        answer = json.loads(line)
        if (error := answer.get("error")) is not None:
            raise NodeError(error["name"], error["message"], error["status"])
        return answer["value"]

    def queue(self, queue: str, method: str, *arguments: Any) -> Any:
        """`client.queue({queueName}).method(…)`."""
        return self.call(f"queue.{method}", *arguments, of={"queueName": queue})


def required(why: str | None = None) -> None:
    """Skip, or fail where services are required, if it cannot be driven here."""
    if (why := why or missing()) is not None:
        if os.environ.get("TODOKU_TEST_REQUIRE_SERVICES") == "1":
            pytest.fail(why)
        pytest.skip(why)


def workerd_missing() -> str | None:
    """Why no Worker can run here; None: one can."""
    if (why := missing()) is not None:
        return why
    if not (MODULES / "workerd").is_dir() or workerd() is None:
        return "Cloudflare's runtime is not here, or not for this machine: `make node-clients`"
    return None


def workerd() -> Path | None:
    """The program of this machine, which is a package of its own."""
    return next(iter((MODULES / "@cloudflare").glob("workerd-*/bin/workerd")), None)


CONFIGURATION = """\
using Workerd = import "/workerd/workerd.capnp";
const config :Workerd.Config = (
  services = [
    (name = "main", worker = (
      modules = [(name = "worker", esModule = embed "bundle.mjs")],
      compatibilityDate = "2026-10-01",
      globalOutbound = "network",
      bindings = [{bindings}],
    )),
    (name = "network", network = (allow = ["public", "private", "local"])),
  ],
  sockets = [(name = "http", address = "127.0.0.1:{port}", http = (), service = "main")],
);
"""


@contextmanager
def cloudflare_worker(code: str, home: Path, port: int, **bindings: str) -> Iterator[Path]:
    """Runs a Worker on this port; `bindings` are its `env`. Yields the file of what it logs. Skips as `required`."""
    required(workerd_missing())
    (home / "worker.mjs").write_text(code, "utf-8")
    bundling = [MODULES / ".bin" / "esbuild", "worker.mjs", "--bundle", "--format=esm", "--outfile=bundle.mjs"]
    subprocess.run(
        [*bundling, "--conditions=workerd,worker,browser", "--log-level=warning"], cwd=home, check=True,
        env=os.environ | {"NODE_PATH": str(MODULES)},
    )  # fmt: skip
    texts = ", ".join(f"(name = {json.dumps(name)}, text = {json.dumps(text)})" for name, text in bindings.items())
    (home / "config.capnp").write_text(CONFIGURATION.format(bindings=texts, port=port), "utf-8")
    log = home / "log"
    with log.open("wb") as file, subprocess.Popen(
        [str(workerd()), "serve", "config.capnp"], cwd=home, stdout=file, stderr=subprocess.STDOUT
    ) as process:  # fmt: skip
        try:
            yield log
        finally:
            process.kill()


class NodeWorkflows(NodeClient):
    """An application in Node that serves workflows, and its client: `call("trigger", …)` is `client.trigger(…)`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        super().__init__(process)
        assert process.stdout is not None
        self.url = f"http://127.0.0.1:{json.loads(process.stdout.readline())['port']}"


@contextmanager
def node_workflows(url: str, token: str, keys: tuple[str, str]) -> Iterator[NodeWorkflows]:
    """The application, with this server; skips as `node_client`."""
    required()
    named = {"QSTASH_CURRENT_SIGNING_KEY": keys[0], "QSTASH_NEXT_SIGNING_KEY": keys[1]}
    with subprocess.Popen(
        ["node", str(WORKFLOWS), str(MODULES)],
        env=os.environ | {"QSTASH_URL": url, "QSTASH_TOKEN": token} | named,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
    ) as process:  # fmt: skip
        try:
            yield NodeWorkflows(process)
        finally:
            process.kill()


@contextmanager
def node_client(url: str, token: str) -> Iterator[NodeClient]:
    """A client of the server there; skips, or fails where services are required, if there cannot be one."""
    required()
    with subprocess.Popen(
        ["node", str(DRIVER), str(MODULES)],
        env=os.environ | {"QSTASH_URL": url, "QSTASH_TOKEN": token},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
    ) as process:  # fmt: skip
        try:
            yield NodeClient(process)
        finally:
            process.kill()

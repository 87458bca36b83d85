"""An application that serves workflows with the official SDK for Python, and remembers what it did."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import FastAPI
from qstash import AsyncQStash
from upstash_workflow import AsyncWorkflowContext
from upstash_workflow.fastapi import Serve

from tests.daemon.running import until
from todoku.daemon.http_thread import HttpThread, listen, listening_url


@dataclass
class Workflows:
    """The application: which steps ran, what came out, and which failures it was told."""

    url: str = ""
    steps: Counter[str] = field(default_factory=Counter)
    """How often the code of a step ran, by the name that the caller gave and the step's."""
    results: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, tuple[int, str, Any]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    seen: dict[str, dict[str, str]] = field(default_factory=dict)
    """The headers of the last call, by the caller's name."""

    def step(self, name: str, what: str, result: Any = None) -> Any:
        self.steps[f"{name} {what}"] += 1
        return result

    def result(self, name: str) -> Any:
        """What the workflow came to."""
        return until(lambda: self.results.get(name), f"the result of {name}")


@contextmanager
def serving_workflows(server: str, token: str, keys: tuple[str, str] | None) -> Iterator[Workflows]:
    """Serves the workflows below. `keys`: it verifies signatures with these."""
    done, client = Workflows(), AsyncQStash(token, base_url=server, retry=False)
    # The SDK opens connections of its client in the loop that serves, and closes none.
    client.http._client = httpx.AsyncClient(limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)
    app = FastAPI()
    _declare(app, done, client, keys)
    listening = listen("127.0.0.1", 0)
    done.url = listening_url(listening)
    thread = HttpThread(lambda: app, listening)
    thread.start()
    try:
        yield done
    finally:
        thread.stop()


def _declare(app: FastAPI, done: Workflows, client: AsyncQStash, keys: tuple[str, str] | None) -> None:
    env: dict[str, str | None] = {}
    if keys is not None:
        env |= {"QSTASH_CURRENT_SIGNING_KEY": keys[0], "QSTASH_NEXT_SIGNING_KEY": keys[1]}
    serve = Serve(app)

    @serve.post("/orders", qstash_client=client, env=env)
    async def orders(context: AsyncWorkflowContext[dict[str, Any]]) -> None:
        name = _begin(done, context)

        async def reserve() -> dict[str, int]:
            return done.step(name, "reserve", {"reserved": context.request_payload["amount"]})

        reserved = await context.run("reserve", reserve)
        await context.sleep("a second", 1)
        await context.sleep_until("until now", time.time())
        charged = await context.run("charge", lambda: done.step(name, "charge", reserved["reserved"] * 2))
        done.results[name] = charged

    @serve.post("/calls", qstash_client=client, env=env)
    async def calls(context: AsyncWorkflowContext[dict[str, Any]]) -> None:
        # The SDK runs this up to the first step for each answer, too, with the answer as payload.
        name, url = await context.run("where to", lambda: (_begin(done, context), context.request_payload["url"]))
        answer = await context.call(
            "ask", url=url, method="POST", body={"question": 7}, headers={"X-Ours": "yes"}, retries=0
        )
        done.results[name] = (answer.status, answer.body, answer.header.get("X-Answer"))

    async def failed(context: Any, status: int, response: str, _headers: Any) -> None:
        done.failures[context.request_payload["name"]] = (status, response, context.workflow_run_id)

    @serve.post("/fails", qstash_client=client, env=env, retries=1, failure_function=failed)
    async def fails(context: AsyncWorkflowContext[dict[str, Any]]) -> None:
        name = _begin(done, context)
        await context.run("good", lambda: done.step(name, "good"))

        def bad() -> None:
            done.step(name, "bad")
            if "mended" not in done.results:
                raise ValueError("out of stock")

        await context.run("bad", bad)
        done.results[name] = "came through"

    @serve.post("/stops", qstash_client=client, env=env)
    async def stops(context: AsyncWorkflowContext[dict[str, Any]]) -> None:
        name = _begin(done, context)
        await context.run("before", lambda: done.step(name, "before"))
        await context.sleep("a day", "1d")
        done.results[name] = "went on"


def _begin(done: Workflows, context: AsyncWorkflowContext[dict[str, Any]]) -> str:
    name = str(context.request_payload["name"])
    done.runs[name] = context.workflow_run_id
    done.seen[name] = {key.lower(): value for key, value in dict(context.headers).items()}
    return name

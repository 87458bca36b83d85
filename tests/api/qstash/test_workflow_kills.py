"""Workers killed between and within the steps of workflow runs: no run is lost, and no step has two results."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.api.qstash.conftest import CURRENT, NEXT, TOKEN
from tests.api.qstash.workflow_server import serving_workflows
from tests.daemon.running import Daemon, shop_at, until
from tests.support.nodejs import node_workflows
from tests.support.world import SOMEBODY
from todoku.engine.http import api_tokens
from todoku.store.http_runs import RunFilter

RUNS, KILLS = 12, 6


@pytest.mark.slow
def test_every_run_ends_and_every_step_is_stored_once_although_workers_are_killed(url: str, tmp_path: Path) -> None:
    with shop_at(tmp_path, url) as shop:
        shop.box.migrate()
        keys = f"{CURRENT},{NEXT}"
        daemon = shop.run(
            "--workers", "1", TODOKU_TOKEN=TOKEN, TODOKU_SIGNING_KEYS=keys, TODOKU_HTTP_LOOPBACK="true"
        )  # fmt: skip
        with serving_workflows(daemon.url, TOKEN, (CURRENT, NEXT)) as workflows:
            names = [f"run-{number}" for number in range(RUNS)]
            for number, name in enumerate(names):
                start(daemon.url, f"{workflows.url}/orders", {"name": name, "amount": number + 1})
            for kill in range(KILLS):
                until(lambda: len(workflows.steps) > kill * 3, "runs go on")  # noqa: B023 - runs at once
                kill_worker(daemon)
            for number, name in enumerate(names):
                assert workflows.result(name) == (number + 1) * 2
            store = shop.box.store.http_runs
            until(lambda: len(store.find(RunFilter(state="success"))) == RUNS, "every run has ended")
            assert len(store.find(RunFilter())) == RUNS
            for run in store.find(RunFilter()):
                assert [step.key for step in store.steps(run.id)] == ["0", "1", "2", "3", "4"]


HOOKED = 8


@pytest.mark.slow
def test_every_request_to_a_webhook_reaches_its_run_although_workers_are_killed(url: str, tmp_path: Path) -> None:
    """What was answered with 200 is stored: before the run waits, while it waits, and while its worker is killed."""
    with shop_at(tmp_path, url) as shop:
        shop.box.migrate()
        _, token = api_tokens.create(shop.box.store, SOMEBODY, name="node", scopes=("publish", "read"), upstash=True)
        daemon = shop.run(
            "--workers", "1", TODOKU_TOKEN=TOKEN, TODOKU_SIGNING_KEYS=f"{CURRENT},{NEXT}", TODOKU_HTTP_LOOPBACK="true"
        )  # fmt: skip
        with node_workflows(daemon.url, token, (CURRENT, NEXT)) as workflows:
            names = [f"hooked-{number}" for number in range(HOOKED)]
            for name in names:
                body = {"name": name, "timeout": "1h", "times": 2}
                workflows.call("trigger", {"url": f"{workflows.url}/hooks", "body": body})
            for number, name in enumerate(names):
                if number % 2 == 0:
                    kill_worker(daemon)
                made = until(lambda: workflows.call("results")["webhooks"].get(name), "a webhook")  # noqa: B023
                for time in range(2):
                    httpx.post(made["webhookUrl"], content=f"{name} {time}", trust_env=False).raise_for_status()
            for name in names:
                got = until(lambda: workflows.call("results")["results"].get(name), "a result")  # noqa: B023
                assert [each["body"] for each in got] == [f"{name} 0", f"{name} 1"]
            store = shop.box.store.http_runs
            until(lambda: len(store.find(RunFilter(state="success"))) == HOOKED, "every run has ended")
            for run in store.find(RunFilter()):
                assert [step.key for step in store.steps(run.id)] == ["0", "1", "2", "3", "4", "5"]


def kill_worker(daemon: Daemon) -> None:
    """Kills the worker, and waits for another one."""
    (pid,) = until(lambda: [each["pid"] for each in daemon.workers() if each["pid"]], "a worker")
    os.kill(pid, signal.SIGKILL)
    until(lambda: pid not in [each["pid"] for each in daemon.workers()], "another worker")


def start(server: str, url: str, body: dict[str, object]) -> None:
    """Starts a run with an id of its own: a repeated start is the same run."""
    headers = {
        "Authorization": f"Bearer {TOKEN}", "Upstash-Workflow-Init": "true", "Upstash-Workflow-Url": url,
        "Upstash-Workflow-RunId": f"wfr_{body['name']}", "Upstash-Forward-Upstash-Workflow-Sdk-Version": "1",
    }  # fmt: skip
    httpx.post(f"{server}/v2/publish/{url}", json=body, headers=headers, trust_env=False).raise_for_status()

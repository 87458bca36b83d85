"""The Dockerfile, the compose file and the systemd unit agree with the daemon: ports, grace, paths, settings.

No container engine is needed: the files are parsed. What the image runs in is checked by their own tests elsewhere.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.files import DEFAULTS, DEPLOY, ROOT, STOPS_WITHIN, documents, named_variables, variables
from todoku.cli.main import cli

DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text("utf-8")
COMPOSE: Any = documents(DEPLOY / "compose" / "compose.yaml")[0]
UNIT = DEPLOY / "systemd" / "todoku.service"
MANIFESTS = sorted(
    path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix in {"", ".yaml", ".yml", ".service", ".tpl"}
)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.relative_to(DEPLOY).as_posix())
def test_every_setting_that_is_named_exists(path: Path) -> None:
    assert named_variables(path.read_text("utf-8")) <= variables()


def seconds(text: str) -> float:
    (number,) = re.findall(r"^(\d+)s?$", text)
    return float(number)


# --------------------------------------------------------------------------------------------------------- docker


def instructions(name: str) -> list[str]:
    """The arguments of an instruction, its continued lines joined."""
    joined = DOCKERFILE.replace("\\\n", " ")
    return re.findall(rf"^{name} +(.*)$", joined, re.MULTILINE)


def test_the_image_runs_the_daemon_without_rights() -> None:
    assert [json.loads(found) for found in instructions("ENTRYPOINT")] == [["todoku"]]
    first, *options = json.loads(instructions("CMD")[-1])
    known = {name for parameter in cli.commands[first].params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known
    assert instructions("USER") == ["10001"]
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_the_image_serves_and_checks_the_port_of_the_daemon() -> None:
    port = str(DEFAULTS.port)
    assert instructions("EXPOSE") == [port]
    environment = dict(pair.split("=", 1) for pair in shlex.split(instructions("ENV")[-1]))
    assert (environment["TODOKU_HOST"], environment["TODOKU_PORT"]) == ("0.0.0.0", port)
    (health,) = instructions("HEALTHCHECK")
    assert f"http://127.0.0.1:{port}/healthz" in health
    assert "readyz" not in health, "a daemon that waits for its database is not restarted"


def test_the_image_is_built_from_files_that_exist_and_are_let_in() -> None:
    copied = [word for line in instructions("COPY") if "--from" not in line for word in line.split()[:-1]]
    let_in = re.findall(r"^!(.*)$", (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text("utf-8"), re.MULTILINE)
    assert sorted(copied) == sorted(let_in)
    assert [name for name in copied if not (ROOT / name).exists()] == []


# -------------------------------------------------------------------------------------------------------- compose


def test_compose_waits_longer_than_the_drain() -> None:
    daemon = COMPOSE["services"]["todoku"]
    assert float(daemon["environment"]["TODOKU_DRAIN_GRACE_SEC"]) == DEFAULTS.drain_grace_sec
    assert seconds(daemon["stop_grace_period"]) > STOPS_WITHIN


def test_compose_starts_things_in_their_order() -> None:
    """Database, schema, daemon: each waits for the one before it."""
    services = COMPOSE["services"]
    assert services["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["todoku"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert services["migrate"]["image"] == services["todoku"]["image"]
    assert [services[name]["command"][0] for name in ("migrate", "todoku")] == ["migrate", "run"]


def test_compose_publishes_to_this_machine_alone_and_mounts_what_exists() -> None:
    services = COMPOSE["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert f"127.0.0.1:{DEFAULTS.port}:{DEFAULTS.port}" in published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []
    mounted = [volume.split(":")[0] for service in services.values() for volume in service.get("volumes", ())]
    files = [path for path in mounted if path.startswith(".")]
    assert len(files) >= 5
    assert [path for path in files if not (DEPLOY / "compose" / path).is_file()] == []
    assert {path for path in mounted if not path.startswith(".")} == COMPOSE["volumes"].keys()


def test_secrets_of_compose_are_files_that_its_services_are_given() -> None:
    for service in COMPOSE["services"].values():
        files = [value for name, value in service.get("environment", {}).items() if name.endswith("_FILE")]
        assert sorted(files) == sorted(f"/run/secrets/{name}" for name in service.get("secrets", ()) if files)
        assert set(service.get("secrets", ())) <= COMPOSE["secrets"].keys()
    assert "/secrets/" in (DEPLOY / "compose" / ".gitignore").read_text("utf-8").splitlines()


def test_compose_builds_the_image_from_the_dockerfile() -> None:
    build = COMPOSE["services"]["migrate"]["build"]
    context = (DEPLOY / "compose" / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).read_text("utf-8") == DOCKERFILE


@pytest.mark.parametrize("where", ["compose", "prometheus"])
@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed: `make system-packages`")
def test_prometheus_takes_its_configuration(where: str, tmp_path: Path) -> None:
    text = (DEPLOY / where / "prometheus.yml").read_text("utf-8")
    (credentials,) = re.findall(r"credentials_file: (\S+)", text)
    (tmp_path / "token").write_text("sesame", "utf-8")
    (tmp_path / "prometheus.yml").write_text(text.replace(credentials, str(tmp_path / "token")), "utf-8")
    shutil.copy(DEPLOY / "prometheus" / "todoku.rules.yml", tmp_path)
    command = ["promtool", "check", "config", tmp_path / "prometheus.yml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f":{DEFAULTS.port}" in text


def test_grafana_is_given_the_dashboard_and_prometheus() -> None:
    (source,) = documents(DEPLOY / "compose" / "grafana" / "datasource.yaml")[0]["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = documents(DEPLOY / "compose" / "grafana" / "dashboards.yaml")[0]["providers"]
    volumes = COMPOSE["services"]["grafana"]["volumes"]
    assert f"../grafana/todoku.json:{provider['options']['path']}/todoku.json:ro" in volumes


# -------------------------------------------------------------------------------------------------------- systemd


def unit() -> dict[str, str]:
    lines = [line for line in UNIT.read_text("utf-8").splitlines() if "=" in line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def test_systemd_waits_longer_than_the_drain_and_signals_the_supervisor_first() -> None:
    assert seconds(unit()["TimeoutStopSec"]) > STOPS_WITHIN
    assert unit()["KillMode"] == "mixed"
    assert unit()["Type"] == "notify"
    assert unit()["Restart"] == "on-failure"


def test_systemd_migrates_first_by_commands_that_exist() -> None:
    words = {name: unit()[name].split()[1:] for name in ("ExecStartPre", "ExecStart")}
    command, *options = words["ExecStart"]
    assert words["ExecStartPre"] == ["migrate", *options], "of the same App, whose projections it records"
    known = {name for parameter in cli.commands[command].params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd is not installed: `apt-get install systemd`"
)
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    text = re.sub(r"^(ExecStart(?:Pre)?=)\S+", r"\1/bin/true", UNIT.read_text("utf-8"), flags=re.MULTILINE)
    copy = tmp_path / "todoku.service"
    copy.write_text(text, "utf-8")
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "todoku.service" in line]) == (0, [])

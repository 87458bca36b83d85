"""The manifests for Kubernetes and the Helm chart agree with the daemon: ports, probes, grace, secrets, settings."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import DEFAULTS, DEPLOY, STOPS_WITHIN, documents, tool, variables
from todoku.cli.main import cli

KUBERNETES = DEPLOY / "kubernetes"
CHART = DEPLOY / "helm" / "todoku"
HELM = tool("helm")
PATHS = {"livenessProbe": "/healthz", "readinessProbe": "/readyz", "startupProbe": "/healthz"}


def of_kind(found: list[Any], kind: str) -> Any:
    (only,) = [one for one in found if one["kind"] == kind]
    return only


def manifests() -> list[Any]:
    listed = documents(KUBERNETES / "kustomization.yaml")[0]["resources"]
    assert set(listed) | {"kustomization.yaml"} == {path.name for path in KUBERNETES.iterdir()}
    return [document for name in listed for document in documents(KUBERNETES / name)]


def chart(*arguments: str) -> list[Any]:
    """What Helm makes of the chart."""
    assert HELM is not None
    done = subprocess.run(
        [HELM, "template", "shop", CHART, "--kube-version", "1.34", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found is not None]


needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed: `make helm`")


@pytest.fixture(params=["kubernetes", pytest.param("helm", marks=needs_helm)])
def found(request: pytest.FixtureRequest) -> list[Any]:
    """The manifests, written by hand or by Helm."""
    return manifests() if request.param == "kubernetes" else chart()


def pod(found: list[Any], kind: str = "Deployment") -> Any:
    return of_kind(found, kind)["spec"]["template"]["spec"]


def environment(found: list[Any], container: Any) -> dict[str, str]:
    """What the settings of a container are, wherever they are written."""
    values = {one["name"]: one["value"] for one in container.get("env", ())}
    for source in container.get("envFrom", ()):
        config = of_kind(found, "ConfigMap")
        assert config["metadata"]["name"] == source["configMapRef"]["name"]
        values |= config["data"]
    return values


def test_the_grace_covers_the_pre_stop_and_the_whole_drain(found: list[Any]) -> None:
    """S2-21, S2-33. The pod's grace begins with preStop; what outlasts it is killed with its attempts running."""
    (container,) = pod(found)["containers"]
    sleep, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
    assert sleep == "sleep"
    readiness = container["readinessProbe"]
    assert int(seconds) >= readiness["periodSeconds"] * readiness["failureThreshold"]
    assert pod(found)["terminationGracePeriodSeconds"] > int(seconds) + STOPS_WITHIN
    assert float(environment(found, container)["TODOKU_DRAIN_GRACE_SEC"]) == DEFAULTS.drain_grace_sec


def test_probes_ask_the_port_that_the_daemon_serves(found: list[Any]) -> None:
    """S2-24, S2-25: a database that is away makes a daemon not ready, and never restarts it."""
    (container,) = pod(found)["containers"]
    (port,) = container["ports"]
    settings = environment(found, container)
    assert (port["containerPort"], settings["TODOKU_PORT"]) == (DEFAULTS.port, str(DEFAULTS.port))
    assert settings["TODOKU_HOST"] == "0.0.0.0"
    for probe, path in PATHS.items():
        assert container[probe]["httpGet"] == {"path": path, "port": port["name"]}
    (service,) = of_kind(found, "Service")["spec"]["ports"]
    assert (service["port"], service["targetPort"]) == (DEFAULTS.port, port["name"])


def test_a_rolling_restart_always_leaves_a_worker(found: list[Any]) -> None:
    """S2-33."""
    deployment = of_kind(found, "Deployment")
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert deployment["spec"]["replicas"] >= 2
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    for selector in (
        deployment["spec"]["selector"]["matchLabels"],
        of_kind(found, "Service")["spec"]["selector"],
        of_kind(found, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= of_kind(found, "Job")["spec"]["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_settings_exist_and_secrets_are_files_that_the_user_can_read(found: list[Any], kind: str) -> None:
    spec = pod(found, kind)
    (container,) = spec["containers"]
    settings = environment(found, container)
    assert settings.keys() <= variables()
    (secrets,) = [volume for volume in spec["volumes"] if "secret" in volume]
    assert secrets["secret"]["defaultMode"] == 0o440
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"], "the group may read them"
    (mounted,) = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == secrets["name"]]
    files = {value for name, value in settings.items() if name.endswith("_FILE")}
    assert files == {f"{mounted}/database", f"{mounted}/token"}


@pytest.mark.parametrize("kind", ["Deployment", "Job"])
def test_containers_run_commands_that_exist_with_no_rights(found: list[Any], kind: str) -> None:
    spec = pod(found, kind)
    (container,) = spec["containers"]
    command, *options = container["args"]
    known = {name for parameter in cli.commands[command].params for name in parameter.opts}
    assert {option for option in options if option.startswith("--")} <= known
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
    }  # fmt: skip
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert "memory" in container["resources"]["limits"]


def test_the_schema_is_migrated_by_the_same_image_and_app(found: list[Any]) -> None:
    """Whose projections are recorded with it."""
    (daemon,), (migrate,) = pod(found)["containers"], pod(found, "Job")["containers"]
    assert (migrate["args"], migrate["image"]) == (["migrate"], daemon["image"])
    assert environment(found, migrate)["TODOKU_APP"] == environment(found, daemon)["TODOKU_APP"]


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed: `apt-get install kubectl`")
def test_kustomize_takes_the_manifests() -> None:
    done = subprocess.run(["kubectl", "kustomize", KUBERNETES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    assert {one["kind"] for one in built} == {one["kind"] for one in manifests()}
    assert {one["metadata"]["namespace"] for one in built} == {"todoku"}


# ----------------------------------------------------------------------------------------------------------- helm


@needs_helm
def test_helm_lints_the_chart() -> None:
    assert HELM is not None
    done = subprocess.run([HELM, "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
def test_the_grace_of_the_pod_follows_the_grace_of_the_drain() -> None:
    spec = pod(chart("--set", "drainGraceSec=300", "--set", "preStopSec=10"))
    assert spec["terminationGracePeriodSeconds"] > 10 + 300 + STOPS_WITHIN - DEFAULTS.drain_grace_sec


@needs_helm
@pytest.mark.parametrize(
    "wrong", ["app=shop", "drainGraceSec=-1", "drain_grace_sec=30", "port=80", "settings.LEASE=60", "image.tag="]
)
def test_values_that_mean_nothing_are_refused(wrong: str) -> None:
    assert HELM is not None
    command = [HELM, "template", "shop", CHART, "--kube-version", "1.34", "--set", wrong]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_templates_ask_for_values_that_exist_and_every_value_is_asked_for() -> None:
    """Also where there is no Helm."""
    (values,) = documents(CHART / "values.yaml")
    text = "".join(path.read_text("utf-8") for path in sorted((CHART / "templates").iterdir()))
    asked = set(re.findall(r"\.Values\.([\w.]+)", text))
    for name in asked:
        at = values
        for part in name.split("."):
            assert part in at, name
            at = at[part]
    assert {name.split(".")[0] for name in asked} == values.keys()


def test_the_chart_has_the_version_of_the_package() -> None:
    (about,) = documents(CHART / "Chart.yaml")
    project = (Path(CHART).parents[2] / "pyproject.toml").read_text("utf-8")
    assert f'version = "{about["appVersion"]}"' in project

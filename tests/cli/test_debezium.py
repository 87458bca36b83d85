"""Issue 15: `todoku debezium-config` prints a document to stdout, and what there is to know to stderr."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.program import Run, misused, refused, said

URL = "postgresql://debezium:very-secret@127.0.0.1:1/shop"


def test_it_prints_the_connector_without_the_password_and_opens_no_database(run: Run) -> None:
    done = run("debezium-config", "--db", URL, "--schema", "orders", "--topic", "order.**")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    config = document["config"]
    assert document["name"] == "todoku-shop"
    assert [config[f"database.{name}"] for name in ("hostname", "port", "dbname", "user")] == [
        *("127.0.0.1", "1", "shop", "debezium")
    ]
    assert config["database.password"] == "${env:TODOKU_DEBEZIUM_PASSWORD}"
    assert config["table.include.list"] == r"orders\.todoku_message"
    assert "very-secret" not in done.stdout + done.stderr
    assert "the password is not printed" in done.stderr
    assert "--sql" in done.stderr
    assert "warning" not in done.stderr


def test_a_properties_file_and_the_statements(run: Run) -> None:
    properties = run("debezium-config", "--db", URL, "--properties", "--name", "events", "--kafka-topic", "all")
    assert properties.stdout.startswith("name=events\nconnector.class=io.debezium.")
    assert "transforms.outbox.route.topic.replacement=all\n" in properties.stdout
    statements = said(run("debezium-config", "--db", URL, "--sql", "--from-now"))
    assert statements[2].startswith('create publication "todoku_shop" for table "public".todoku_message where (')
    assert statements[-1].endswith('"debezium" with login replication;')


def test_sqlite_is_refused_with_what_to_do(run: Run, tmp_path: Path) -> None:
    assert "log of a PostgreSQL server" in refused(run("debezium-config"))
    assert not (tmp_path / "todoku.db").exists()
    misused(run("debezium-config", "--db", URL, "--sql", "--properties"))
    assert "hunter2" not in refused(run("debezium-config", "--db", URL, "--password-from", "hunter2"))


APP = """
from dataclasses import dataclass
import todoku
box = todoku.App("postgresql://debezium@127.0.0.1:1/shop", schema="orders")
@box.event("person.moved", encrypted=True)
@dataclass(frozen=True)
class Moved:
    person: int
"""


def test_the_app_says_which_topics_are_encrypted(run: Run, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    keys = "2026:" + "A" * 43 + "="
    done = run("debezium-config", "--app", "shop:box", TODOKU_MASTER_KEYS=keys)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["config"]["table.include.list"] == r"orders\.todoku_message"
    assert "warning: messages of person.moved are encrypted" in done.stderr
    other = run("debezium-config", "--app", "shop:box", "--db", URL, TODOKU_MASTER_KEYS=keys, TODOKU_ENCRYPT="all")
    assert json.loads(other.stdout)["config"]["table.include.list"] == r"orders\.todoku_message"
    assert "warning: all messages are encrypted" in other.stderr

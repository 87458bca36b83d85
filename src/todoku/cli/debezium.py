"""`todoku debezium-config`: the configuration of a Debezium connector over todoku's message table."""

from __future__ import annotations

import click

from todoku.app import load_settings
from todoku.cli.options import database_option
from todoku.cli.output import print_document, say
from todoku.core.debezium import (
    PASSWORD,
    DebeziumConnector,
    check_connector,
    name_connector,
    publication_sql,
    read_address,
    remarks,
    write_json,
    write_properties,
)
from todoku.core.settings import Settings
from todoku.daemon.app_loader import find_app_name, load_app


@click.command("debezium-config")
@database_option
@click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app).")
@click.option("--topic", "topics", multiple=True, metavar="PATTERN", help="Send these topics only. May be repeated.")
@click.option("--kafka-topic", metavar="NAME", help="One Kafka topic for all; default: each its own.")
@click.option("--from-now", is_flag=True, help="Leave out messages that are in the table already.")
@click.option("--name", help="Name of connector, slot and publication; default: todoku-DATABASE.")
@click.option("--password-from", default=PASSWORD, show_default=True, help="Where Kafka Connect finds the password.")
@click.option("--properties", is_flag=True, help="Print a properties file instead of JSON.")
@click.option("--sql", "only_sql", is_flag=True, help="Print the statements that create the publication.")
def debezium_config(
    *, database: str | None, schema: str | None, app: str | None, topics: tuple[str, ...], kafka_topic: str | None,
    from_now: bool, name: str | None, password_from: str, properties: bool, only_sql: bool,
) -> None:  # fmt: skip
    """Print a Debezium connector for the message table.

    Events then arrive in Kafka through PostgreSQL's log: key, id, type, headers and payload as published. Opens no
    database; --db may name it as Kafka Connect reaches it. What to do before it is started is printed to stderr.
    """
    if properties and only_sql:
        raise click.UsageError("--properties and --sql are two documents: ask for one of them.")
    settings, encrypted = _find_settings(database, schema, app)
    address = read_address(settings.database)
    connector = check_connector(DebeziumConnector(
        address=address, name=name or name_connector(address), schema=settings.schema or "public", topics=topics,
        kafka_topic=kafka_topic, from_now=from_now, password=password_from,
    ))  # fmt: skip
    if only_sql:
        print_document(publication_sql(connector))
        return
    print_document(write_properties(connector) if properties else write_json(connector))
    for remark in remarks(connector, encrypts_all=settings.encrypt == "all", encrypted=encrypted):
        say(remark, err=True)


def _find_settings(database: str | None, schema: str | None, app: str | None) -> tuple[Settings, frozenset[str]]:
    """The settings, and the encrypted topics of the App, if one is named. --db may name its database otherwise."""
    settings = load_settings(database=database, schema=schema)
    if (name := find_app_name(app)) is None:
        return settings, frozenset()
    box = load_app(name)
    box.close()
    of_app = box.settings if database is None and settings.database == Settings().database else settings
    in_schema = schema or of_app.schema or box.settings.schema
    return load_settings(database=of_app.database, schema=in_schema), box.outbox.sealer.encrypted_topics

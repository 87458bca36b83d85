"""The configuration of a Debezium connector that reads events from todoku's own message table.

Debezium's event router makes a Kafka record of each row: key, payload and headers are columns of the message. Which
rows it gets is decided by the publication that `publication_sql` creates; the first snapshot has the same condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from todoku.core.cloudevents import MESSAGE_ID, TOPIC
from todoku.core.ending import OWN
from todoku.core.errors import InvalidSetting, UnknownDatabase
from todoku.core.http_request import CALLBACK_TOPIC
from todoku.core.http_request import TOPIC as REQUEST_TOPIC
from todoku.core.topic_pattern import pattern

PASSWORD: Final = "${env:TODOKU_DEBEZIUM_PASSWORD}"  # noqa: S105 - where it is, not what it is
"""What Kafka Connect replaces by the password of the database: a variable of the worker's environment."""

_ENVIRONMENT: Final = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"

HEADERS: Final = "todoku-headers"
"""The header with the publisher's own headers, as a JSON object: Debezium cannot make a header of each."""

TABLE: Final = "todoku_message"
HEARTBEAT_MS: Final = 10_000
_URL: Final = "it is like postgresql://user@host:5432/name"
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,60}")
_KAFKA_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_SCHEMA: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLACEHOLDER: Final = re.compile(r"\$\{[^${}:]+:[^${}]+\}")
_TLS: Final = ("sslmode", "sslrootcert", "sslcert", "sslkey")
"""Options of the URL that Debezium has under the same names."""

_COLUMNS: Final = {
    MESSAGE_ID: "id",
    TOPIC: "topic",
    HEADERS: "headers",
    "eventType": "type",
    "content-type": "content_type",
    "todoku-created-at": "created_at",
}
"""The headers of a record, and the column each is taken from. The router itself adds `id`."""


class DatabaseAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where Debezium finds the database, and as whom. It has no password, which is never printed."""

    host: str
    port: int
    database: str
    user: str
    tls: tuple[tuple[str, str], ...] = ()


class DebeziumConnector(msgspec.Struct, frozen=True, kw_only=True):
    """What to read, and where it goes."""

    address: DatabaseAddress
    name: str
    schema: str = "public"
    topics: tuple[str, ...] = ()
    """Patterns of the topics to send; empty: all but those of todoku's own messages."""
    kafka_topic: str | None = None
    """The Kafka topic of all events; None: each goes to the Kafka topic of its own name."""
    from_now: bool = False
    """Whether messages that are in the table already are left out."""
    password: str = PASSWORD

    @property
    def slot(self) -> str:
        """The name of the replication slot and of the publication. Slots of all databases of a server share names."""
        return re.sub(r"[^a-z0-9_]", "_", self.name.lower())


# ------------------------------------------------------------
# What is given, checked.


def check_connector(connector: DebeziumConnector) -> DebeziumConnector:
    """Returns the connector if Debezium and Kafka take its names; raises InvalidSetting or InvalidMessage."""
    for topic in connector.topics:
        pattern(topic)
        if ":" in topic and connector.kafka_topic is None:
            raise InvalidSetting(f"Kafka has no topic {topic!r}", hint="--kafka-topic NAME sends all topics to one")
    if not _NAME.fullmatch(connector.name):
        raise InvalidSetting(f"a connector cannot be called {connector.name!r}", hint="letters, digits, . _ and -")
    if connector.kafka_topic is not None and not _KAFKA_TOPIC.fullmatch(connector.kafka_topic):
        raise InvalidSetting(f"Kafka has no topic {connector.kafka_topic!r}", hint="letters, digits, . _ and -")
    if not _SCHEMA.fullmatch(connector.schema):
        hint = "use a schema whose name has letters, digits and _ only"
        raise InvalidSetting(f"Debezium's configuration cannot name the schema {connector.schema!r}", hint=hint)
    if not _PLACEHOLDER.fullmatch(connector.password):
        hint = f"name where Kafka Connect finds it: {PASSWORD}, or ${{file:/etc/kafka/debezium.properties:password}}"
        raise InvalidSetting("the password is not printed, so it cannot be given", hint=hint)
    return connector


def name_connector(address: DatabaseAddress) -> str:
    """Returns the usual name of a connector: that of its database."""
    return "todoku-" + re.sub(r"[^A-Za-z0-9._-]", "_", address.database)[:50]


def read_address(url: str) -> DatabaseAddress:
    """Returns what a database URL says about the server. UnknownDatabase: Debezium cannot read from it."""
    scheme, separator, _ = url.partition("://")
    if not separator or scheme.split("+")[0] not in ("postgresql", "postgres"):
        raise UnknownDatabase(
            "Debezium reads the log of a PostgreSQL server, and this database has none that it can read",
            hint="name the database with --db postgresql://user@host/name; `todoku copy` moves a SQLite file there",
        )
    given = _read_url(url)
    host, port, user, database = (given.get(name, "") for name in ("host", "port", "user", "dbname"))
    if not host or host.startswith(("/", "@")) or "," in host or not user:
        raise UnknownDatabase(
            "Debezium connects to one host, by TCP and as a named user, and the database URL does not name them",
            hint="give them with --db postgresql://user@host:5432/name; nothing is opened",
        )
    if not (port or "5432").isdecimal():
        raise UnknownDatabase(f"the database URL cannot be read: the port is {port!r}", hint=_URL)
    tls = tuple((name, given[name]) for name in _TLS if name in given)
    return DatabaseAddress(host=host, port=int(port or 5432), database=database or user, user=user, tls=tls)


def _read_url(url: str) -> dict[str, str]:
    """The parameters of a connection by libpq's names; those of the query replace those before it."""
    authority = url.partition("://")[2].partition("/")[0].rpartition("@")[2]
    if "," in authority:  # several hosts, whose ports urlsplit would not read
        return {"host": authority}
    try:
        parts = urlsplit(url)
        port = str(parts.port or "")
    except ValueError as error:
        raise UnknownDatabase(f"the database URL cannot be read: {error}", hint=_URL) from error
    before = {
        "host": unquote(parts.hostname or ""),
        "port": port,
        "user": unquote(parts.username or ""),
        "dbname": unquote(parts.path.removeprefix("/")),
    }
    return before | dict(parse_qsl(parts.query))


# ------------------------------------------------------------
# The configuration, and what has to be in the database before it is used.


def connector_settings(connector: DebeziumConnector) -> dict[str, str]:
    """Returns the configuration of the connector, without its name."""
    address, table = connector.address, f"{connector.schema}.{TABLE}"
    snapshot = "snapshot.select.statement.overrides"
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "tasks.max": "1",
        "database.hostname": address.host,
        "database.port": str(address.port),
        "database.dbname": address.database,
        "database.user": address.user,
        "database.password": connector.password,
        **{f"database.{name}": value for name, value in address.tls},
        "topic.prefix": connector.name,
        "plugin.name": "pgoutput",
        "slot.name": connector.slot,
        "publication.name": connector.slot,
        "publication.autocreate.mode": "disabled",
        "table.include.list": re.escape(table),
        "snapshot.mode": "no_data" if connector.from_now else "initial",
        snapshot: table,
        f"{snapshot}.{table}": f"select * from {_quoted(connector)} where {condition(connector)} order by seq",
        # Changes of other tables fill the log, too: without heartbeats the slot would keep all of it.
        "heartbeat.interval.ms": str(HEARTBEAT_MS),
        "heartbeat.action.query": "select pg_logical_emit_message(false, 'todoku.debezium', '')",
        "message.prefix.exclude.list": ".*",
        "extended.headers.enabled": "false",
        "tombstones.on.delete": "false",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
        "topic.creation.default.partitions": "-1",
        "topic.creation.default.replication.factor": "-1",
        **_router(connector),
    }


def _router(connector: DebeziumConnector) -> dict[str, str]:
    settings = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": "id",
        "table.field.event.key": "key",
        "table.field.event.payload": "payload",
        "table.fields.additional.placement": ",".join(f"{column}:header:{name}" for name, column in _COLUMNS.items()),
        "table.op.invalid.behavior": "error",
        "route.by.field": "topic",
        "route.topic.replacement": connector.kafka_topic or "${routedByValue}",
    }
    return {"transforms": "outbox"} | {f"transforms.outbox.{name}": value for name, value in settings.items()}


def condition(connector: DebeziumConnector) -> str:
    """Returns the SQL condition of the messages that are sent: JSON payloads of the topics that were chosen.

    A payload of bytes, which an encrypted one is, would arrive as a record without a value. Without `kafka_topic`, a
    topic that Kafka cannot have would stop the connector.
    """
    own = f"topic !~ '^{re.escape(OWN)}' and topic not in ('{REQUEST_TOPIC}', '{CALLBACK_TOPIC}')"
    chosen = f"('.' || topic) ~ '^({'|'.join(map(_expression, connector.topics))})$'" if connector.topics else own
    possible = [] if connector.kafka_topic else [f"topic ~ '^{_KAFKA_TOPIC.pattern}$'"]
    return " and ".join(["payload is not null", chosen, *possible])


def _expression(topic: str) -> str:
    """The regular expression of a pattern of topics, as `topic_pattern.pattern`, for PostgreSQL."""
    parts = {"**": r"(\.[^.]+)*", "*": r"\.[^.]+"}
    return "".join(parts.get(part, rf"\.{part}") for part in topic.split("."))


def publication_sql(connector: DebeziumConnector) -> str:
    """Returns the statements to run as the owner of the table, before the connector is started."""
    schema, user, publication = map(_quote, (connector.schema, connector.address.user, connector.slot))
    rows = f"table {_quoted(connector)} where ({condition(connector)})"
    return f"""\
-- Which messages Debezium gets: inserts of these rows. To choose others later:
--   alter publication {publication} set {rows};
create publication {publication} for {rows} with (publish = 'insert');
grant usage on schema {schema} to {user};
grant select on {_quoted(connector)} to {user};
-- The role also needs the right to replicate, which only an administrator can give:
--   alter role {user} with login replication;
"""


def _quoted(connector: DebeziumConnector) -> str:
    return f"{_quote(connector.schema)}.{TABLE}"


def _quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


# ------------------------------------------------------------
# How it is written.


def write_json(connector: DebeziumConnector) -> str:
    """Returns the connector as Kafka Connect's REST interface and `connect-standalone` take it."""
    document = {"name": connector.name, "config": connector_settings(connector)}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode() + "\n"


def write_properties(connector: DebeziumConnector) -> str:
    """Returns the connector as a Java properties file, for `connect-standalone`."""
    lines = {"name": connector.name} | connector_settings(connector)
    return "".join(f"{name}={_escape(value)}\n" for name, value in lines.items())


def _escape(value: str) -> str:
    r"""A value of a properties file, which is read as Latin-1: a backslash is doubled, other characters are \uXXXX."""
    escaped = "".join(_escape_character(character) for character in value)
    return f"\\{escaped}" if escaped.startswith(" ") else escaped


def _escape_character(character: str) -> str:
    if character == "\\":
        return "\\\\"
    if " " <= character <= "~":
        return character
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


# ------------------------------------------------------------
# What the person who runs it has to know.


def remarks(connector: DebeziumConnector, *, encrypts_all: bool, encrypted: Iterable[str]) -> list[str]:
    """Returns what to do before the connector is started, and what it does not send."""
    provider = "config.providers=env and config.providers.env.class=" + _ENVIRONMENT
    needed = provider if connector.password.startswith("${env:") else "a provider for it in config.providers"
    found = [
        f"the password is not printed: Kafka Connect reads {connector.password}, and its worker needs {needed}",
        "first run the statements of `todoku debezium-config --sql` with the same options: they create the publication",
    ]
    if not connector.topics:
        found.append("messages of all topics are sent, those of jobs, too: --topic 'order.**' chooses some")
    if encrypts_all:
        found.append("warning: all messages are encrypted (TODOKU_ENCRYPT=all): Debezium gets none of them")
    elif names := sorted(topic for topic in encrypted if _is_chosen(connector, topic)):
        found.append(f"warning: messages of {', '.join(names)} are encrypted, and Debezium does not get them")
    return found


def _is_chosen(connector: DebeziumConnector, topic: str) -> bool:
    return not connector.topics or any(pattern(one).fullmatch(f".{topic}") for one in connector.topics)

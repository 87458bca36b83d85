"""The composition root: the only place that names a backend, and the object people hold in their hands."""

from __future__ import annotations

import asyncio
import os
import re
import time
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable
from uuid import UUID

import msgspec

from todoku.core.errors import BlockingCall, InvalidMessage, InvalidSetting, UnknownDatabase
from todoku.core.identity import uuid7
from todoku.core.message import Draft, Message
from todoku.core.outcome import Duration
from todoku.core.route import Route, pattern
from todoku.core.settings import Settings, read_settings
from todoku.core.status import Status
from todoku.engine.publish import Options, draft
from todoku.store.database import Database
from todoku.store.join import run, run_async
from todoku.store.port import Steps
from todoku.store.publish import Publishing, publish
from todoku.store.store import SqlStore
from todoku.store.values import Counts, Migrated


@runtime_checkable
class Destination(Protocol):
    """Where messages go: anything with a name and `async send(batch)`."""

    name: str


def load_settings(**given: object) -> Settings:
    """Settings of this process: arguments, then the environment, then `todoku.toml`."""
    file = Path("todoku.toml")
    try:
        stored = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:  # not ours to read, not UTF-8, not TOML
        raise InvalidSetting(f"todoku.toml cannot be read: {error}", hint="mend it, or move it away") from error
    return read_settings(_with_secret_files(os.environ), stored, **given)


def _with_secret_files(environ: Mapping[str, str]) -> dict[str, str]:
    """NAME_FILE names a file that holds NAME: how secrets reach containers."""
    read = dict(environ)
    for name in ("TODOKU_DATABASE", "DATABASE_URL"):
        if path := environ.get(f"{name}_FILE"):
            try:
                read[name] = Path(path).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSetting(f"{name}_FILE cannot be read: {error}", hint="does the file exist?") from error
    return read


def open_database(settings: Settings) -> Database:
    """The database a URL names."""
    scheme, separator, rest = settings.database.partition("://")
    if scheme == "sqlite":
        from todoku.store.sqlite.database import SqliteDatabase  # noqa: PLC0415 - only the backend in use

        return SqliteDatabase(settings)
    if separator and scheme.split("+")[0] in ("postgresql", "postgres"):
        try:
            from todoku.store.postgres.database import PostgresDatabase  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UnknownDatabase(
                "PostgreSQL needs psycopg, which is not installed", hint='pip install "todoku[postgres]"'
            ) from error
        return PostgresDatabase(_replaced(settings, f"postgresql://{rest}"))
    raise UnknownDatabase(
        f"{scheme or settings.database!r} is no database todoku knows",
        hint="use sqlite:///name.db or postgresql://user@host/name",
    )


def _replaced(settings: Settings, url: str) -> Settings:
    return msgspec.structs.replace(settings, database=url)


def printed_migrations(database: str | None, schema: str | None) -> str:
    """The whole schema as one SQL script, for people who apply SQL with their own tools."""
    opened = open_database(load_settings(database=database, schema=schema))
    return opened.printed()


class About(msgspec.Struct, frozen=True):
    """What `up` says: where the data is, and what there is of it."""

    database: str
    dialect: str
    detail: str
    counts: Counts

    def as_dict(self) -> dict[str, object]:
        """One JSON object."""
        where: dict[str, object] = {"database": self.database, "dialect": self.dialect, "detail": self.detail}
        return where | dict(self._numbers())

    def as_lines(self) -> list[str]:
        """A few lines for a person."""
        numbers = ", ".join(f"{number} {status}" for status, number in self._numbers().items())
        return [
            f"todoku is ready on {self.database}",
            f"  {self.detail}",
            f"  deliveries: {numbers}" + ("" if self.counts.exact else " (sampled)"),
        ]

    def _numbers(self) -> dict[str, int]:
        return {status.value: self.counts.of(status.value) for status in Status}


class App:
    """Your messages and where they go. Examples call it `box`.

    `database` is `sqlite:///file.db` or `postgresql://…`; None reads TODOKU_DATABASE or DATABASE_URL.
    `schema` is the PostgreSQL schema todoku lives in (None: wherever the search path leads).
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str | None = None,
        require_tx: bool = False,
        no_route: Literal["error", "dead_letter"] = "error",
    ) -> None:
        self.settings = load_settings(database=database, schema=schema)
        self._database = open_database(self.settings)
        self.store = SqlStore(self._database, ledger_ttl=self.settings.ledger_ttl)
        self._require_tx = require_tx
        self._no_route: Literal["error", "dead_letter"] = no_route
        self._routes: list[Route] = []

    def migrate(self) -> Migrated:
        """Create or update todoku's tables; does nothing when they are up to date."""
        return self.store.migrate()

    def close(self) -> None:
        """Give back every connection."""
        self.store.close()

    def about(self) -> About:
        """What is in the database, for `todoku up`."""
        counts = self.store.counts(max_age=60.0)
        shown = _without_password(self.settings.database)
        return About(shown, self._database.dialect, self._database.describe(), counts)

    def route(self, topic: str, to: Destination | str, *, name: str | None = None, ordered: bool = False) -> None:
        """Send what matches `topic` to a destination: `*` is one word of the topic, `**` any number.

        `to` may be the name of a destination that another process serves. `ordered`: messages with the same key
        arrive one after the other, as they were committed.
        """
        pattern(topic)
        destination = name or (to if isinstance(to, str) else to.name)
        if not destination:
            raise InvalidMessage("a destination needs a name", hint="pass name=…")
        attempts = self.settings.max_attempts
        self._routes.append(
            Route(
                pattern=topic,
                destination=destination,
                queue=destination,
                ordered=ordered,
                max_attempts=attempts,
            )
        )

    # ----------------------------------------------------------------------------------------- publish

    def publish(
        self,
        topic: str,
        payload: object = None,
        *,
        tx: Any,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        expires: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Publish in your own transaction `tx`: it commits with your rows, or not at all (I2).

        `tx=None` is a transaction of its own, on purpose. With an idempotency key, a repetition returns the earlier
        message with `duplicate=True`; the same key with another payload raises IdempotencyConflict.
        """
        options = Options(
            key=key, idempotency_key=idempotency_key, delay=delay, at=at, expires=expires, priority=priority,
            headers=headers,
        )  # fmt: skip
        return self._publish([self._draft(topic, payload, options)], tx)[0]

    async def apublish(
        self,
        topic: str,
        payload: object = None,
        *,
        tx: Any,
        key: str | None = None,
        idempotency_key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        expires: Duration | None = None,
        priority: int = 0,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """As `publish`, for async code."""
        options = Options(
            key=key, idempotency_key=idempotency_key, delay=delay, at=at, expires=expires, priority=priority,
            headers=headers,
        )  # fmt: skip
        return (await self._apublish([self._draft(topic, payload, options)], tx))[0]

    def publish_many(self, events: Iterable[tuple[str, object]], *, tx: Any) -> list[Message]:
        """Publish many (topic, payload) at once, in your transaction: all of them, or none."""
        return self._publish([self._draft(topic, payload, _PLAIN) for topic, payload in events], tx)

    async def apublish_many(self, events: Iterable[tuple[str, object]], *, tx: Any) -> list[Message]:
        """As `publish_many`, for async code."""
        return await self._apublish([self._draft(topic, payload, _PLAIN) for topic, payload in events], tx)

    def _draft(self, topic: str, payload: object, options: Options) -> Draft:
        return draft(
            new_id(),
            topic,
            payload,
            options,
            self._routes,
            max_payload_bytes=self.settings.max_payload_bytes,
            no_route=self._no_route,
        )

    def _steps(self, drafts: list[Draft]) -> Steps[list[Message]]:
        database = self._database
        return publish(Publishing(database.dialect, database.queries, database.now()), drafts)

    def _joining(self, drafts: list[Draft]) -> Steps[list[Message]]:
        yield from self._database.check_tx()
        return (yield from self._steps(drafts))

    def _publish(self, drafts: list[Draft], tx: Any) -> list[Message]:
        if tx is not None:
            return run(tx, self._database.dialect, self._joining(drafts))
        if self._require_tx:
            raise InvalidMessage("this App requires tx=", hint="pass your connection or session")
        if _in_event_loop():
            raise BlockingCall("publish blocks, and this thread runs an event loop", hint="await box.apublish(…)")
        return self.store.run(self._steps(drafts))

    async def _apublish(self, drafts: list[Draft], tx: Any) -> list[Message]:
        if tx is not None:
            return await run_async(tx, self._database.dialect, self._joining(drafts))
        return await asyncio.to_thread(self._publish, drafts, None)


_PLAIN = Options()


def _without_password(url: str) -> str:
    url = re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", url)
    return re.sub(r"([?&]\w*password=)[^&]*", r"\1***", url)


def new_id() -> UUID:
    """A public message id: time in front, unguessable behind."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True

"""An application that knows nothing of todoku, and an App that captures its tables."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import ExecStatus

from tests.support.crew import until
from todoku.app import App
from todoku.capture.session import SessionOptions
from todoku.engine.context import Context
from todoku.store.captures import CaptureRow
from todoku.store.deliveries import Delivery, Filter

ORDERS = "create table orders (id int primary key, what text, amount numeric)"
QUICK = SessionOptions(heartbeat=0.2, measure=0.2)


class Shop:
    """The source, with statements of its own, and the App."""

    def __init__(self, url: str, source: str | None, *, options: SessionOptions = QUICK, **settings: Any) -> None:
        self.box = App(url, **({"no_route": "dead_letter"} | settings))
        self.source = source or url
        self._database = source
        self._options = options
        self.seen: list[tuple[str, str | None, dict[str, Any]]] = []
        self.box.migrate()

    def close(self) -> None:
        self.box.close()

    # ------------------------------------------------------------------------------------------ the source

    def sql(self, *statements: str, url: str | None = None) -> list[tuple[Any, ...]]:
        """Runs statements in one transaction of the source; returns the rows of the last one."""
        with psycopg.connect(url or self.source) as connection:
            for statement in statements:
                cursor = connection.execute(statement)  # type: ignore[arg-type]
            found = cursor.pgresult is not None and cursor.pgresult.status == ExecStatus.TUPLES_OK
            return cursor.fetchall() if found else []  # `select from …` has rows without columns

    def drop_slot(self) -> None:
        """Drops the slot of the capture, once its server has seen that the reader is gone."""
        drop = "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
        until(lambda: self.sql(f"{drop} where slot_name = '{self.row.slot}' and not active"), what="an inactive slot")

    @contextmanager
    def session(self) -> Iterator[psycopg.Connection[Any]]:
        """A session of the application, in a transaction."""
        with psycopg.connect(self.source) as connection:
            yield connection

    # --------------------------------------------------------------------------------------------- the App

    def capture(self, table: str = "orders", **options: Any) -> None:
        """Captures a table; its changes go to a handler that notes them."""
        given = {"topic": "{table}.{op}", "key": "id", "database": self._database} | options
        capture = self.box.capture(table, **given)
        capture.options = self._options

    def route(self, *patterns: str, ordered: bool = True) -> None:
        """Lets a handler note what arrives."""
        for number, pattern in enumerate(patterns or ("**",)):
            self.box.on(pattern, name=f"notes-{number}", ordered=ordered)(self._note)

    async def _note(self, ctx: Context, event: Any) -> None:
        self.seen.append((ctx.topic, ctx.key, event))

    def catch_up(self, name: str = "main", *, timeout: float = 60) -> CaptureRow:
        """Reads until everything is stored that is committed now."""
        return self.box.captures[name].catch_up(timeout=timeout)

    @property
    def row(self) -> CaptureRow:
        """The capture as todoku's database has it."""
        return self.box.captures["main"].status()

    def messages(self, topic: str | None = None) -> list[tuple[str, str | None, dict[str, Any]]]:
        """The messages that are stored, in their order: topic, key and payload."""
        rows = self._rows("select topic, key, payload from todoku_message order by seq")
        found = [(row[0], row[1], json.loads(row[2]) if isinstance(row[2], str) else row[2]) for row in rows]
        return [one for one in found if topic is None or one[0] == topic]

    def headers(self) -> list[dict[str, str]]:
        """The headers of the messages."""
        rows = self._rows("select headers from todoku_message order by seq")
        return [json.loads(row[0]) if isinstance(row[0], str) else row[0] for row in rows]

    def _rows(self, statement: str) -> Sequence[Any]:
        if self.box.settings.database.startswith("sqlite"):
            import sqlite3

            from todoku.store.sqlite.database import file_path

            connection = sqlite3.connect(file_path(self.box.settings.database))
            try:
                return connection.execute(statement).fetchall()
            finally:
                connection.close()
        with psycopg.connect(self.box.settings.database) as connection:
            return connection.execute(statement).fetchall()  # type: ignore[arg-type]

    def dead_letters(self) -> list[Delivery]:
        """The dead letters."""
        return list(self.box.store.deliveries.find(Filter(status="aborted"), limit=1000).items)

    def dead(self) -> dict[str, str | None]:
        """The reason of each dead letter, by the topic of its message."""
        return {one.topic: one.reason for one in self.dead_letters()}

    def state_of(self, table: str = "orders", key: str = "id") -> dict[Any, dict[str, Any]]:
        """The rows of a table as the messages say they are, by key."""
        rows: dict[Any, dict[str, Any]] = {}
        for _, _, event in self.messages():
            if event["table"] != f"public.{table}":
                continue
            match event["op"]:
                case "delete":
                    rows.pop(event["old"][key], None)
                case "truncate":
                    rows.clear()
                case _:
                    rows[event["row"][key]] = event["row"]
        return rows

    @contextmanager
    def reading(self) -> Iterator[None]:
        """A worker reads while the block runs."""
        self.box.migrate()
        worker = self.box.worker()
        thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
        thread.start()
        try:
            yield
        finally:
            worker.drain()
            thread.join()

    def until(self, condition: Callable[[], object], *, seconds: float = 30) -> None:
        """Waits until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.row
            time.sleep(0.02)

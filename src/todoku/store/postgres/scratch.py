"""SQL for test databases: stop the clock, empty the tables, drop the schema."""

from __future__ import annotations

from todoku.core.errors import StoreError
from todoku.store.sql import qualify, quote


def stop_clock_sql(at: float | None, schema: str | None) -> str:
    """Stops the database's clock at a moment (unix seconds); None: lets it run again."""
    now = "statement_timestamp()" if at is None else f"timestamptz 'epoch' + interval '{at * 1e6:.0f} microseconds'"
    define = "create or replace function todoku_now() returns timestamptz language sql stable parallel safe"
    return qualify(f"{define} as $$ select {now} $$", schema)


def truncate_sql(schema: str | None) -> str:
    """Empties all tables but the migrations, the append-only audit, and the data keys, which processes cache."""
    return qualify(
        """do $$ declare names text; begin
            select string_agg(format('%I.%I', schemaname, tablename), ', ') into names from pg_tables
                where schemaname::regnamespace = (
                        select relnamespace from pg_class where oid = to_regclass('todoku_message'))
                    and tablename like 'todoku\\_%' and tablename !~ '(migration|audit|data_key)$';
            execute 'truncate ' || names;
        end $$""",
        schema,
    )


def drop_schema_sql(schema: str | None) -> str:
    """Drops the schema with everything in it."""
    if schema is None:
        raise StoreError("the default schema is never removed", hint="only a schema configured by schema=… is")
    return f"drop schema if exists {quote(schema)} cascade"

"""What tests do to a database of their own: stop its clock, empty it, drop its schema."""

from __future__ import annotations

from todoku.core.errors import StoreError
from todoku.store.sql import qualify, quote


def stop_clock_sql(at: float | None, schema: str | None) -> str:
    """The clock stands still at a moment; None: it goes again."""
    now = "statement_timestamp()" if at is None else f"timestamptz 'epoch' + interval '{at * 1e6:.0f} microseconds'"
    define = "create or replace function todoku_now() returns timestamptz language sql stable parallel safe"
    return qualify(f"{define} as $$ select {now} $$", schema)


def truncate_sql(schema: str | None) -> str:
    """Nothing is left but the schema itself, the audit, which is append-only, and keys that a process may remember."""
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
    """The schema is gone, with everything in it."""
    if schema is None:
        raise StoreError("this schema is not todoku's own", hint="only one that was named is removed: schema=…")
    return f"drop schema if exists {quote(schema)} cascade"

"""What tests do to a database of their own: stop its clock, empty it, drop its schema."""

from __future__ import annotations

from todoku.core.errors import StoreError
from todoku.store.sql import qualified, quoted


def stopped(at: float | None, schema: str | None) -> str:
    """The clock stands still at a moment; None: it goes again."""
    now = "statement_timestamp()" if at is None else f"timestamptz 'epoch' + interval '{at * 1e6:.0f} microseconds'"
    define = "create or replace function todoku_now() returns timestamptz language sql stable parallel safe"
    return qualified(f"{define} as $$ select {now} $$", schema)


def emptied(schema: str | None) -> str:
    """Nothing is left but the schema itself, the audit, which is append-only, and keys that a process may remember."""
    return qualified(
        """do $$ declare names text; begin
            select string_agg(format('%I.%I', schemaname, tablename), ', ') into names from pg_tables
                where schemaname::regnamespace = (
                        select relnamespace from pg_class where oid = to_regclass('todoku_message'))
                    and tablename like 'todoku\\_%' and tablename !~ '(migration|audit|data_key)$';
            execute 'truncate ' || names;
        end $$""",
        schema,
    )


def dropped(schema: str | None) -> str:
    """The schema is gone, with everything in it."""
    if schema is None:
        raise StoreError("this schema is not todoku's own", hint="only one that was named is removed: schema=…")
    return f"drop schema if exists {quoted(schema)} cascade"

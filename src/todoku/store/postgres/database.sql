-- The database itself: its clock, its version, savepoints.

-- name: savepoint_open
-- Changes nothing; on SQLite it makes sure that the savepoint is inside a transaction.
select 1

-- name: savepoint
-- Only this name is undone or released, so it may be nested in the caller's savepoints.
savepoint todoku_best_effort

-- name: savepoint_undo
-- Undoes the writes of todoku since the savepoint, and none of the caller's; works in a failed transaction, too.
rollback to savepoint todoku_best_effort

-- name: savepoint_close
-- The caller's transaction stays open; this commits nothing.
release savepoint todoku_best_effort

-- name: clock
-- Only reads: the database's clock.
select date_part('epoch', todoku_now())

-- name: notify
-- Writes no row. The notices are sent with the commit, or never; repeating one is harmless.
select pg_notify(:channel, payload) from unnest(:payloads::text[]) as s(payload)

-- name: server
-- Only reads.
select current_setting('server_version'), current_setting('synchronous_commit')

-- name: schema_version
-- Only reads.
select max(version) from todoku_migration

-- name: server_facts
-- Only reads: used and allowed connections, whether the server or this role is read-only (a standby, or a setting our
-- transactions start with), the backend's process id (it differs behind a pooler), and every schema with tables of
-- todoku.
select (select count(*) from pg_stat_activity where backend_type = 'client backend'),
       current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
       pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean,
       current_setting('synchronous_commit'), current_setting('fsync'), pg_backend_pid(),
       current_setting('server_encoding'), current_schema() is null,
       array(select relnamespace::regnamespace::text from pg_class
              where relname = 'todoku' || '_message' and relkind = 'r' order by 1)

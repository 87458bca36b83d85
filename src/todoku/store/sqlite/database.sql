-- The database itself: its clock, its version, savepoints.

-- name: savepoint_open
-- Changes nothing. Some drivers open a transaction before the first change: this statement makes them do so. A
-- savepoint outside of a transaction would itself be one, and its release a commit.
delete from todoku_count where false

-- name: savepoint
-- Only this name is undone or released, so it may be nested in the caller's savepoints.
savepoint todoku_best_effort

-- name: savepoint_undo
-- Undoes the writes of todoku since the savepoint, and none of the caller's.
rollback to savepoint todoku_best_effort

-- name: savepoint_close
-- The caller's transaction stays open; this commits nothing.
release savepoint todoku_best_effort

-- name: clock
-- Only reads: the database's clock, after an access to the file.
select :now / 1e6 from (select count(*) from todoku_migration)

-- name: schema_version
-- Only reads.
select max(version) from todoku_migration

-- The database itself: its clock, its version, savepoints.

-- name: savepoint_open
-- Changes nothing. A driver that opens a transaction before the first change has opened it after this: a savepoint
-- outside of one would be a transaction of its own, and its release a commit.
delete from todoku_count where false

-- name: savepoint
-- Only this name is undone or closed, so it may be nested in the caller's own.
savepoint todoku_best_effort

-- name: savepoint_undo
-- Undoes what todoku did since, and nothing of the caller's.
rollback to savepoint todoku_best_effort

-- name: savepoint_close
-- The caller's transaction goes on; nothing is committed by this.
release savepoint todoku_best_effort

-- name: clock
-- Only reads: the database's clock, having touched the file.
select :now / 1e6 from (select count(*) from todoku_migration)

-- name: schema_version
-- Only reads.
select max(version) from todoku_migration

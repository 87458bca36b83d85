-- Whole tables, for copies.

-- name: tables
-- Only reads: every table of todoku with its columns, their types, and their position in the primary key (0: none).
select t.name, c.name, lower(c.type), c.pk
  from sqlite_schema t join pragma_table_xinfo(t.name) c
 where t.type = 'table' and t.name like 'todoku!_%' escape '!' and c.hidden = 0
 order by t.name, c.cid

-- name: leases
-- Only reads: the workers that may be running deliveries now.
select name from todoku_worker where expires_at > :now order by name

-- name: migrated_at
-- Only reads. Microseconds: two databases are hardly ever created in the same one.
select applied_at from todoku_migration order by version

-- name: identities
-- Only reads: the last assigned ids, even of deleted rows.
select name, seq from sqlite_sequence where name like 'todoku!_%' escape '!' order by name

-- name: set_identity
-- The caller only raises it: an assigned id is never assigned again.
delete from sqlite_sequence where name = :name;
insert into sqlite_sequence (name, seq) values (:name, :last)

-- name: history_days
-- Only reads: days since 1970, without days in the future.
select distinct finished_at / 86400000000 from todoku_history where finished_at <= :now order by 1 desc limit :most

-- name: copy_begun
-- Only reads: the table exists while a copy into this database is unfinished.
select count(*) from sqlite_schema where type = 'table' and name = 'todoku_copy'

-- name: copy_begin
-- In the transaction that found the database empty, so that two copies cannot both begin.
create table todoku_copy (name text primary key, done integer not null, origin text not null) strict

-- name: copy_stand
-- Only reads.
select name, done, origin from todoku_copy order by name

-- name: copy_note
-- In the transaction that writes the counted rows: both commit, or neither.
insert into todoku_copy (name, done, origin) values (:name, :rows, :origin)
    on conflict (name) do update set done = excluded.done

-- name: copy_end
-- In the transaction that has compared both sides.
drop table todoku_copy

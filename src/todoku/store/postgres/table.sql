-- Whole tables, for copies.

-- name: tables
-- Only reads: every table of todoku with its columns, their types, and their position in the primary key (0: none).
select c.relname, a.attname, format_type(a.atttypid, null),
       coalesce(array_position(string_to_array(i.indkey::text, ' '), a.attnum::text), 0)
  from pg_class c
  join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
  left join pg_index i on i.indrelid = c.oid and i.indisprimary
 where c.relnamespace = (select relnamespace from pg_class where oid = 'todoku_migration'::regclass)
   and c.relname like 'todoku!_%' escape '!' and c.relkind in ('r', 'p') and not c.relispartition
 order by c.relname, a.attnum

-- name: leases
-- Only reads: the workers that may be running deliveries now.
select name from todoku_worker where expires_at > todoku_now() order by name

-- name: migrated_at
-- Only reads. Microseconds: two databases are hardly ever created in the same one.
select (extract(epoch from applied_at) * 1000000)::bigint from todoku_migration order by version

-- name: identities
-- Only reads: the last assigned ids, even of deleted rows.
select c.relname, coalesce(pg_sequence_last_value(pg_get_serial_sequence(c.oid::regclass::text, a.attname)), 0)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
 where c.relnamespace = (select relnamespace from pg_class where oid = 'todoku_migration'::regclass)
   and c.relname like 'todoku!_%' escape '!'
 order by c.relname

-- name: set_identity
-- The caller only raises it: an assigned id is never assigned again.
select setval(pg_get_serial_sequence(c.oid::regclass::text, a.attname), :last)
  from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attidentity <> ''
 where c.relnamespace = (select relnamespace from pg_class where oid = 'todoku_migration'::regclass)
   and c.relname = :name

-- name: history_days
-- Only reads: days since 1970, without days in the future.
select distinct floor(extract(epoch from finished_at) / 86400)::bigint
  from todoku_history where finished_at <= todoku_now() and isfinite(finished_at) order by 1 desc limit :most

-- name: copy_begun
-- Only reads: the table exists while a copy into this database is unfinished.
select count(to_regclass('todoku_copy'))

-- name: copy_begin
-- In the transaction that found the database empty, so that two copies cannot both begin.
create table todoku_copy (name text primary key, done bigint not null, origin text not null)

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

-- name: place
-- Only reads: identifies the server, the database and the table, regardless of their names; an empty database has no
-- table yet.
select system_identifier::text || '/' || (select oid from pg_database where datname = current_database()) || '/' ||
       coalesce(to_regclass('todoku_migration')::oid::text, '')
  from pg_control_system()

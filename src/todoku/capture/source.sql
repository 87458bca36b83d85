-- The source of a capture: what is compared and checked before a start, and what the reader does there beside the stream.
-- No statement here changes a row of the application.

-- name: server
-- Only reads settings and counts.
select current_setting('wal_level'), current_setting('server_version_num')::int, pg_is_in_recovery(),
       current_setting('max_replication_slots')::int - (select count(*) from pg_replication_slots)::int,
       (select setting::bigint from pg_settings where name = 'max_slot_wal_keep_size'),
       (select setting::bigint from pg_settings where name = 'wal_sender_timeout') / 1000.0::float8,
       current_database()::text, pg_current_wal_lsn_or_null.lsn
  from (select case when pg_is_in_recovery() then null else pg_current_wal_flush_lsn()::text end as lsn)
       as pg_current_wal_lsn_or_null

-- name: role
-- Only reads. Amazon RDS grants replication by a role; everywhere else it is an attribute.
select rolname::text,
       rolsuper or rolreplication
           or exists (select from pg_roles m where m.rolname = 'rds_replication' and pg_has_role(m.oid, 'member')),
       has_database_privilege(current_database(), 'create')
  from pg_roles where rolname = current_user

-- name: table
-- Only reads the catalog.
select c.oid::bigint, c.relkind::text, c.relpersistence::text, c.relreplident::text,
       has_schema_privilege(n.oid, 'usage') and has_table_privilege(c.oid, 'select'),
       pg_has_role(c.relowner, 'usage'), pg_get_userbyid(c.relowner)::text
  from pg_class c join pg_namespace n on n.oid = c.relnamespace
 where n.nspname = :schema and c.relname = :table and c.relkind in ('r', 'p', 'v', 'm', 'f')

-- name: columns
-- Only reads the catalog. Generated columns are not in the log.
select a.attname::text, a.atttypid::bigint, format_type(a.atttypid, a.atttypmod)
  from pg_attribute a
 where a.attrelid = :oid::oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by a.attnum

-- name: identities
-- Only reads the catalog: the table and its partitions, each with its replica identity and the columns of the index
-- behind that; with FULL, those of the primary key, or else of another unique index over columns that are never null.
select c.oid::bigint, c.oid::regclass::text, c.relreplident::text,
       (select array_agg(a.attname::text order by k.place)
          from (select i.* from pg_index i
                 where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate
                   and i.indpred is null and i.indexprs is null
                   and case c.relreplident when 'd' then i.indisprimary when 'i' then i.indisreplident
                       when 'f' then not exists (select from pg_attribute n where n.attrelid = c.oid
                                                    and n.attnum = any (i.indkey) and not n.attnotnull)
                       else false end
                 order by i.indisprimary desc, i.indexrelid limit 1) i
         cross join unnest(i.indkey) with ordinality k(number, place)
          join pg_attribute a on a.attrelid = c.oid and a.attnum = k.number
         where k.place <= i.indnkeyatts)
  from pg_class c
 where c.oid = :oid::oid or c.oid in (select relid from pg_partition_tree(:oid::oid::regclass))
 order by c.oid <> :oid::oid, c.oid

-- name: expected_rows
-- Only reads statistics: how many rows a table has, with its partitions, about.
select coalesce(sum(greatest(c.reltuples, 0)), 0)::bigint
  from pg_class c
 where c.relkind = 'r' and (c.oid = :oid::oid or c.oid in (select relid from pg_partition_tree(:oid::oid::regclass)))

-- name: publication
-- Only reads the catalog.
select p.oid::bigint, p.pubinsert and p.pubupdate and p.pubdelete and p.pubtruncate, p.pubviaroot, p.puballtables,
       pg_has_role(p.pubowner, 'usage')
  from pg_publication p where p.pubname = :publication

-- name: published_tables
-- Only reads the catalog. The oid is that of the membership: a table that left the publication and came back has another.
select n.nspname || '.' || c.relname, r.oid::bigint, r.prqual is not null or r.prattrs is not null
  from pg_publication_rel r join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace
 where r.prpubid = :oid::oid

-- name: slot
-- Only reads. Columns that older servers do not have are null.
select s.active, s.active_pid, s.wal_status, s.confirmed_flush_lsn::text, s.restart_lsn::text,
       to_jsonb(s) ->> 'invalidation_reason', s.plugin::text, s.database::text
  from pg_replication_slots s where s.slot_name = :slot

-- name: lag
-- Only reads: the bytes that the slot has not confirmed yet, and those that it makes the server keep.
select greatest(pg_current_wal_lsn() - confirmed_flush_lsn, 0)::bigint,
       greatest(pg_current_wal_lsn() - restart_lsn, 0)::bigint
  from pg_replication_slots where slot_name = :slot

-- name: create_slot
-- Fails if the slot exists. A session that ends before this returns leaves no slot.
select lsn::text from pg_create_logical_replication_slot(:slot, 'pgoutput', false, false)

-- name: create_failover_slot
-- As create_slot; from version 17 on the slot may be carried to a standby.
select lsn::text from pg_create_logical_replication_slot(:slot, 'pgoutput', false, false, true)

-- name: drop_slot
-- Dropping a slot twice is dropping it once; fails while a reader uses it.
select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = :slot

-- name: end_reader
-- Ends the session that uses the slot. Its reader connects again, and compares before it starts.
select pg_terminate_backend(active_pid) from pg_replication_slots where slot_name = :slot and active_pid is not null

-- name: write_mark
-- A message in the log, flushed: it commits nothing and changes no row.
select pg_logical_emit_message(false, :prefix, :content::text, true)::text

-- name: commit_mark
-- As write_mark, for servers before version 17, which flush a message only with a commit.
select pg_logical_emit_message(true, :prefix, :content::text)::text

-- name: next_xid
-- A number above those of all transactions that have begun to write.
select pg_current_xact_id()::text::bigint

-- name: oldest_xid
-- Every transaction below this number has ended, and what it committed is visible.
select pg_snapshot_xmin(pg_current_snapshot())::text::bigint

-- name: page_snapshot
-- Fixes the snapshot of the transaction: which commits the page sees.
select pg_current_snapshot()::text

-- name: position
-- Only reads: everything that was committed before this statement ends at or below it.
select pg_current_wal_insert_lsn()::text

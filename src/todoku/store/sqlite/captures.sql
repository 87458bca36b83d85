-- Captures: which worker reads, how far it is, and what it has staged.

-- name: capture_columns
-- A fragment: a capture, and whether the lease of its owner is live.
name, slot, publication, state, reason, why, state_at / 1e6, owner, owner_name,
       exists (select 1 from todoku_worker w where w.id = c.owner and w.expires_at > :now),
       epoch, lsn, newest_xid, system_id, timeline, publication_oid, generation, behind_bytes, retained_bytes,
       measured_at / 1e6, warnings, changes, committed_at / 1e6,
       created_at / 1e6, updated_at / 1e6, :now / 1e6

-- name: capture_rows
-- Only reads; there are few.
select {capture_columns} from todoku_capture c order by name

-- name: capture_row
-- Only reads, by the primary key.
select {capture_columns} from todoku_capture c where name = :name

-- name: lock_capture
-- No lock to take: there is one writer.
select {capture_columns} from todoku_capture c where name = :name

-- name: capture_tables
-- Only reads, by the primary key.
select table_name, topic, key_columns, relation_oid, phase, position, copied, expected, generation, snapshot
  from todoku_capture_table where capture = :capture order by table_name

-- name: declare_capture
-- One row; declaring twice is declaring once.
insert into todoku_capture (name, slot, publication, state_at, created_at, updated_at)
values (:name, :slot, :publication, :now, :now, :now)
    on conflict (name) do nothing

-- name: add_capture_table
-- Under the lock of the capture.
insert into todoku_capture_table (capture, table_name, topic, key_columns, snapshot, phase, generation, key_set)
values (:capture, :table, :topic, :key, :snapshot, :phase, :generation, :key_set)

-- name: change_capture_table
-- Under the lock of the capture. Its snapshot and its keys stay.
update todoku_capture_table set topic = :topic, snapshot = :snapshot where capture = :capture and table_name = :table

-- name: rekey_capture_table
-- In one transaction with its reading: another key column makes other keys, so the snapshot begins anew, with no known key.
update todoku_capture_table
   set key_columns = :key, phase = :phase, position = null, copied = 0, expected = 0, generation = :generation,
       key_set = :key_set
 where capture = :capture and table_name = :table

-- name: take_capture
-- There is one writer, so no lease changes meanwhile. The epoch makes every write of an earlier owner find 0 rows
-- (R16). A worker without a live lease takes nothing.
update todoku_capture as c
   set owner = w.id, owner_name = w.name, epoch = epoch + 1, updated_at = :now
  from todoku_worker w
 where c.name = :name and w.id = :worker and w.expires_at > :now
   and (c.owner is null or c.owner = :worker
        or not exists (select 1 from todoku_worker o where o.id = c.owner and o.expires_at > :now))
returning epoch

-- name: release_capture
-- Fenced by owner and epoch; releasing twice is releasing once.
update todoku_capture set owner = null, owner_name = null, updated_at = :now
 where name = :name and owner = :owner and epoch = :epoch

-- name: fence_out_capture
-- Under the lock of the row: the worker that reads finds 0 rows at its next write, and reads the row again.
update todoku_capture set owner = null, owner_name = null, epoch = epoch + 1, updated_at = :now where name = :name

-- name: begin_capture
-- Fenced by owner and epoch. The position never falls.
update todoku_capture
   set system_id = :system_id, timeline = :timeline, publication_oid = :publication_oid, generation = :generation,
       lsn = max(lsn, :lsn), state = 'starting', reason = null, why = null,
       state_at = case when state = 'starting' then state_at else :now end, updated_at = :now
 where name = :name and owner = :owner and epoch = :epoch
returning name

-- name: set_capture_oids
-- In the transaction of begin_capture.
update todoku_capture_table
   set relation_oid = (select o.value from json_each(:oids) o where o.key = todoku_capture_table.table_name)
 where capture = :name and table_name in (select o.key from json_each(:oids) o)

-- name: set_capture_state
-- Under the lock of the row; the caller has compared owner and epoch.
update todoku_capture
   set state = :state, reason = :reason, why = :why, updated_at = :now,
       state_at = case when state = :state then state_at else :now end
 where name = :name

-- name: move_capture
-- Fenced by owner, epoch and position (R16): a reader that was replaced, and a portion that is stored already, find 0
-- rows.
update todoku_capture
   set lsn = :lsn, newest_xid = coalesce(:xid, newest_xid), changes = changes + :changes,
       committed_at = coalesce(cast(round(:committed_at * 1e6) as integer), committed_at), updated_at = :now
 where name = :name and owner = :owner and epoch = :epoch and lsn < :lsn
returning lsn

-- name: capture_position
-- Only reads: whether this owner and epoch are the present ones, and the position.
select lsn from todoku_capture where name = :name and owner = :owner and epoch = :epoch

-- name: fence_capture
-- No lock to take: there is one writer.
select epoch from todoku_capture where name = :name and owner = :owner and epoch = :epoch

-- name: renew_key_sets
-- After a TRUNCATE, in the transaction that publishes it: the old keys belong to no table any more.
update todoku_capture_table
   set key_set = (select s.value from json_each(:key_sets) s where s.key = todoku_capture_table.table_name)
 where capture = :name and table_name in (select s.key from json_each(:key_sets) s)

-- name: add_capture_keys
-- In the transaction that publishes their rows. A key that has this generation already is not written again: most changes
-- are of rows that are known. The `where true` tells the parser that no join follows.
insert into todoku_capture_key as k (key_set, key, generation)
select t.key_set, one.value, t.generation
  from json_each(:keys) s
  join todoku_capture_table t on t.capture = :name and t.table_name = s.key
  join json_each(s.value) one
 where true
    on conflict (key_set, key) do update set generation = excluded.generation where k.generation <> excluded.generation

-- name: remove_capture_keys
-- In the transaction that publishes the deletes; by the primary key.
delete from todoku_capture_key
 where (key_set, key) in (select t.key_set, one.value
                            from json_each(:keys) s
                            join todoku_capture_table t on t.capture = :name and t.table_name = s.key
                            join json_each(s.value) one)

-- name: advance_capture_table
-- In the transaction that publishes the page, under the lock of the capture.
update todoku_capture_table
   set position = :position, copied = :copied, expected = coalesce(:expected, expected), phase = :phase
 where capture = :name and table_name = :table

-- name: stale_capture_keys
-- Only reads, by the index of generations: keys that neither the snapshot nor the stream has seen (R20).
select k.key from todoku_capture_key k
 where k.key_set = (select key_set from todoku_capture_table where capture = :name and table_name = :table)
   and k.generation < :generation
 order by k.generation limit :most

-- name: stray_key_sets
-- Only reads: key sets that belong to no table, one step of the primary key for each set.
with recursive sets(id) as (
    select min(key_set) from todoku_capture_key
    union all
    select (select min(k.key_set) from todoku_capture_key k where k.key_set > sets.id)
      from sets where sets.id is not null
)
select id from sets
 where id is not null and not exists (select 1 from todoku_capture_table t where t.key_set = sets.id)

-- name: prune_capture_keys
-- Keys of a set that belongs to no table: a set is never given to a table again, so two that prune remove the same.
delete from todoku_capture_key
 where key_set = :key_set and key in (
        select key from todoku_capture_key where key_set = :key_set order by key limit :most)
returning 1

-- name: stage_capture
-- Under the lock of the capture. Staging a number again, after a lost reply, replaces it with the same.
insert into todoku_capture_stage (capture, epoch, number, drafts, destinations, data)
values (:name, :epoch, :number, :drafts, :destinations, :data)
    on conflict (capture, epoch, number) do update
       set drafts = excluded.drafts, destinations = excluded.destinations, data = excluded.data

-- name: staged_captures
-- Only reads, by the primary key: what this epoch has staged, without the data.
select number, drafts, destinations from todoku_capture_stage
 where capture = :name and epoch = :epoch order by number

-- name: staged_data
-- Only reads, by the primary key.
select data from todoku_capture_stage where capture = :name and epoch = :epoch and number = :number

-- name: discard_capture_stage
-- Under the lock of the capture: what this owner and the earlier ones have staged. It was never published (R19).
delete from todoku_capture_stage where capture = :name

-- name: measure_capture
-- Fenced by owner and epoch.
update todoku_capture
   set behind_bytes = :behind, retained_bytes = :retained, measured_at = :now
 where name = :name and owner = :owner and epoch = :epoch
returning name

-- name: warn_capture
-- Fenced by owner and epoch.
update todoku_capture set warnings = :warnings
 where name = :name and owner = :owner and epoch = :epoch
returning name

-- name: restart_capture_tables
-- In one transaction with its reading: their snapshots begin anew, with a new generation (R20).
update todoku_capture_table
   set phase = 'waiting', position = null, copied = 0, expected = 0, generation = :generation
 where capture = :name and table_name in (select value from json_each(:tables))

-- name: raise_capture_generation
-- Under the lock of the row.
update todoku_capture set generation = :generation, updated_at = :now where name = :name

-- name: reset_capture
-- What was known of the slot is forgotten, so that the reader makes a new one.
update todoku_capture_table set relation_oid = null where capture = :name;
update todoku_capture
   set state = 'starting', reason = null, why = null, state_at = :now, lsn = 0, newest_xid = null,
       system_id = null, timeline = null, publication_oid = null, behind_bytes = null, retained_bytes = null,
       measured_at = null, warnings = '[]', updated_at = :now
 where name = :name

-- name: remove_capture
-- With its tables and what is staged. Its keys belong to no table then, and are pruned.
delete from todoku_capture_table where capture = :name;
delete from todoku_capture_stage where capture = :name;
delete from todoku_capture where name = :name

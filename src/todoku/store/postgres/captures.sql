-- Captures: which worker reads, how far it is, and what it has staged.

-- name: capture_columns
-- A fragment: a capture, and whether the lease of its owner is live.
name, slot, publication, state, reason, why, date_part('epoch', state_at), owner, owner_name,
       exists (select from todoku_worker w where w.id = c.owner and w.expires_at > todoku_now()),
       epoch, lsn, newest_xid, system_id, timeline, publication_oid, generation, behind_bytes, retained_bytes,
       date_part('epoch', measured_at), warnings::text, changes, date_part('epoch', committed_at),
       date_part('epoch', created_at), date_part('epoch', updated_at), date_part('epoch', todoku_now())

-- name: capture_rows
-- Only reads; there are few.
select {capture_columns} from todoku_capture c order by name

-- name: capture_row
-- Only reads, by the primary key.
select {capture_columns} from todoku_capture c where name = :name

-- name: lock_capture
-- Locks the row: of two workers one takes it, and what is decided about it holds until the commit.
select {capture_columns} from todoku_capture c where name = :name for update

-- name: capture_tables
-- Only reads, by the primary key.
select table_name, topic, key_columns::text, relation_oid, phase, position, copied, expected, generation, snapshot
  from todoku_capture_table where capture = :capture order by table_name

-- name: declare_capture
-- One row; declaring twice is declaring once.
insert into todoku_capture (name, slot, publication) values (:name, :slot, :publication)
    on conflict (name) do nothing

-- name: add_capture_table
-- Under the lock of the capture.
insert into todoku_capture_table (capture, table_name, topic, key_columns, snapshot, phase, generation, key_set)
values (:capture, :table, :topic, :key::json, :snapshot, :phase, :generation, :key_set)

-- name: change_capture_table
-- Under the lock of the capture. Its snapshot and its keys stay.
update todoku_capture_table set topic = :topic, snapshot = :snapshot where capture = :capture and table_name = :table

-- name: rekey_capture_table
-- Under the lock of the capture: another key column makes other keys, so the snapshot begins anew, with no known key.
update todoku_capture_table
   set key_columns = :key::json, phase = :phase, position = null, copied = 0, expected = 0, generation = :generation,
       key_set = :key_set
 where capture = :capture and table_name = :table

-- name: take_capture
-- Under the lock of the row, after which this statement sees every lease that was committed before it. The epoch makes
-- every write of an earlier owner find 0 rows (R16). A worker without a live lease takes nothing.
update todoku_capture c
   set owner = w.id, owner_name = w.name, epoch = epoch + 1, updated_at = todoku_now()
  from todoku_worker w
 where c.name = :name and w.id = :worker and w.expires_at > todoku_now()
   and (c.owner is null or c.owner = :worker
        or not exists (select from todoku_worker o where o.id = c.owner and o.expires_at > todoku_now()))
returning epoch

-- name: release_capture
-- Fenced by owner and epoch; releasing twice is releasing once.
update todoku_capture set owner = null, owner_name = null, updated_at = todoku_now()
 where name = :name and owner = :owner and epoch = :epoch

-- name: fence_out_capture
-- Under the lock of the row: the worker that reads finds 0 rows at its next write, and reads the row again.
update todoku_capture set owner = null, owner_name = null, epoch = epoch + 1, updated_at = todoku_now() where name = :name

-- name: begin_capture
-- Fenced by owner and epoch. The position never falls.
update todoku_capture
   set system_id = :system_id, timeline = :timeline, publication_oid = :publication_oid, generation = :generation,
       lsn = greatest(lsn, :lsn), state = 'starting', reason = null, why = null,
       state_at = case when state = 'starting' then state_at else todoku_now() end, updated_at = todoku_now()
 where name = :name and owner = :owner and epoch = :epoch
returning name

-- name: set_capture_oids
-- In the transaction of begin_capture, which has locked the capture.
update todoku_capture_table t set relation_oid = o.value::bigint
  from json_each_text(:oids::json) o
 where t.capture = :name and t.table_name = o.key

-- name: set_capture_state
-- Under the lock of the row; the caller has compared owner and epoch.
update todoku_capture
   set state = :state, reason = :reason, why = :why, updated_at = todoku_now(),
       state_at = case when state = :state then state_at else todoku_now() end
 where name = :name

-- name: move_capture
-- Fenced by owner, epoch and position (R16): a reader that was replaced, and a portion that is stored already, find 0
-- rows. It locks the row before anything is published, so two readers never publish side by side.
update todoku_capture
   set lsn = :lsn, newest_xid = coalesce(:xid::bigint, newest_xid), changes = changes + :changes,
       committed_at = coalesce(to_timestamp(:committed_at::float8), committed_at), updated_at = todoku_now()
 where name = :name and owner = :owner and epoch = :epoch and lsn < :lsn
returning lsn

-- name: capture_position
-- Only reads: whether this owner and epoch are the present ones, and the position.
select lsn from todoku_capture where name = :name and owner = :owner and epoch = :epoch

-- name: fence_capture
-- Locks the row if owner and epoch are the present ones.
select epoch from todoku_capture where name = :name and owner = :owner and epoch = :epoch for update

-- name: renew_key_sets
-- After a TRUNCATE, in the transaction that publishes it: the old keys belong to no table any more.
update todoku_capture_table t set key_set = s.value::bigint
  from json_each_text(:key_sets::json) s
 where t.capture = :name and t.table_name = s.key

-- name: add_capture_keys
-- In the transaction that publishes their rows, under the lock of the capture. A key that has this generation already is
-- not written again: most changes are of rows that are known.
insert into todoku_capture_key as k (key_set, key, generation)
select t.key_set, one.key, t.generation
  from json_each(:keys::json) s
  join todoku_capture_table t on t.capture = :name and t.table_name = s.key
 cross join lateral json_array_elements_text(s.value) one(key)
    on conflict (key_set, key) do update set generation = excluded.generation where k.generation <> excluded.generation

-- name: remove_capture_keys
-- In the transaction that publishes the deletes, under the lock of the capture; by the primary key.
delete from todoku_capture_key k
 using (select t.key_set, one.key
          from json_each(:keys::json) s
          join todoku_capture_table t on t.capture = :name and t.table_name = s.key
         cross join lateral json_array_elements_text(s.value) one(key)) gone
 where k.key_set = gone.key_set and k.key = gone.key

-- name: advance_capture_table
-- In the transaction that publishes the page, under the lock of the capture.
update todoku_capture_table
   set position = :position, copied = :copied, expected = coalesce(:expected::bigint, expected), phase = :phase
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
    (select key_set from todoku_capture_key order by key_set limit 1)
    union all
    select (select k.key_set from todoku_capture_key k where k.key_set > sets.id order by k.key_set limit 1)
      from sets where sets.id is not null
)
select id from sets
 where id is not null and not exists (select from todoku_capture_table t where t.key_set = sets.id)

-- name: prune_capture_keys
-- Keys of a set that belongs to no table: a set is never given to a table again, so two that prune remove the same.
delete from todoku_capture_key
 where key_set = :key_set and key = any (array(
        select key from todoku_capture_key where key_set = :key_set order by key limit :most))
returning 1

-- name: stage_capture
-- Under the lock of the capture. Staging a number again, after a lost reply, replaces it with the same.
insert into todoku_capture_stage (capture, epoch, number, drafts, destinations, data)
values (:name, :epoch, :number, :drafts, :destinations::json, :data)
    on conflict (capture, epoch, number) do update
       set drafts = excluded.drafts, destinations = excluded.destinations, data = excluded.data

-- name: staged_captures
-- Only reads, by the primary key: what this epoch has staged, without the data.
select number, drafts, destinations::text from todoku_capture_stage
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
   set behind_bytes = :behind, retained_bytes = :retained, measured_at = todoku_now()
 where name = :name and owner = :owner and epoch = :epoch
returning name

-- name: warn_capture
-- Fenced by owner and epoch.
update todoku_capture set warnings = :warnings::json
 where name = :name and owner = :owner and epoch = :epoch
returning name

-- name: restart_capture_tables
-- Under the lock of the capture: their snapshots begin anew, with a new generation (R20).
update todoku_capture_table
   set phase = 'waiting', position = null, copied = 0, expected = 0, generation = :generation
 where capture = :name and table_name = any (:tables::text[])

-- name: raise_capture_generation
-- Under the lock of the row.
update todoku_capture set generation = :generation, updated_at = todoku_now() where name = :name

-- name: reset_capture
-- Under the lock of the row: what was known of the slot is forgotten, so that the reader makes a new one.
with forgotten as (update todoku_capture_table set relation_oid = null where capture = :name)
update todoku_capture
   set state = 'starting', reason = null, why = null, state_at = todoku_now(), lsn = 0, newest_xid = null,
       system_id = null, timeline = null, publication_oid = null, behind_bytes = null, retained_bytes = null,
       measured_at = null, warnings = '[]', updated_at = todoku_now()
 where name = :name

-- name: remove_capture
-- Under the lock of the row, with its tables and what is staged. Its keys belong to no table then, and are pruned.
with gone_tables as (delete from todoku_capture_table where capture = :name),
     gone_stage as (delete from todoku_capture_stage where capture = :name)
delete from todoku_capture where name = :name

-- Projections.

-- name: projection_columns
-- A fragment: a projection.
name, kind, state, why, revision, readable, date_part('epoch', created_at), date_part('epoch', updated_at)

-- name: projection_index_columns
-- A fragment: an index of a projection.
name, generation, role, written, phase, position, step, copied, expected, rejected, date_part('epoch', created_at)

-- name: projections
-- Only reads; there are few.
select {projection_columns} from todoku_projection order by name

-- name: projection
-- Only reads, by the primary key.
select {projection_columns} from todoku_projection where name = :name

-- name: lock_projection
-- Locks the row: of two operators one changes the indexes, and no worker is admitted meanwhile.
select {projection_columns} from todoku_projection where name = :name for update

-- name: share_projection
-- Locks the row against a change of the indexes, not against other workers.
select {projection_columns} from todoku_projection where name = :name for share

-- name: projection_indexes
-- Only reads, by the primary key.
select {projection_index_columns} from todoku_projection_index where projection = :projection order by generation

-- name: declare_projection
-- One row; declaring twice is declaring once. Returns a row if it is new.
insert into todoku_projection (name, kind) values (:name, :kind)
    on conflict (name) do nothing
returning name

-- name: set_projection
-- Under the lock of the row. The revision rises only if the set of written indexes changed.
update todoku_projection
   set state = :state, why = :why, readable = :readable, revision = revision + :raised, updated_at = todoku_now()
 where name = :name

-- name: remove_projection
-- Under the lock of the row, with its indexes and writers.
with gone_indexes as (delete from todoku_projection_index where projection = :name),
     gone_writers as (delete from todoku_projection_writer where projection = :name)
delete from todoku_projection where name = :name

-- name: add_projection_index
-- Under the lock of the projection, which gives the next generation to one caller.
insert into todoku_projection_index (projection, name, generation, role, phase)
values (:projection, :name, :generation, :role, :phase)

-- name: set_projection_index
-- Under the lock of the projection.
update todoku_projection_index set role = :role, written = :written, phase = :phase, updated_at = todoku_now()
 where projection = :projection and name = :name

-- name: remove_projection_index
-- Under the lock of the projection; removing twice is removing once.
delete from todoku_projection_index where projection = :projection and name = :name returning name

-- name: advance_projection_index
-- Compares the step: of two rebuilds at once one goes on, and the other changes 0 rows.
update todoku_projection_index
   set phase = :phase, position = :position, copied = :copied, expected = :expected, rejected = rejected + :rejected,
       step = step + 1, updated_at = todoku_now()
 where projection = :projection and name = :name and step = :step
returning step

-- name: reject_projection_index
-- Counts; a worker that dies before its settle counts again.
update todoku_projection_index set rejected = rejected + :number where projection = :projection and name = :name

-- name: bury_projection_writers
-- A worker without a row in todoku_worker can settle nothing (I3), so what it acknowledged does not matter.
delete from todoku_projection_writer r
 where projection = :projection and not exists (select from todoku_worker w where w.id = r.worker_id)

-- name: acknowledge_projection
-- One row by its key. A revision only rises, so a late acknowledgement changes nothing.
insert into todoku_projection_writer as r (projection, worker_id, revision) values (:projection, :worker, :revision)
    on conflict (projection, worker_id) do update set revision = greatest(r.revision, excluded.revision)

-- name: late_projection_writers
-- Only reads: the workers that may still settle a write under an older revision. One whose lease ran out may, until it
-- is reclaimed.
select w.name from todoku_projection_writer r join todoku_worker w on w.id = r.worker_id
 where r.projection = :projection and r.revision < :revision order by w.name

-- name: newest_seq
-- Only reads: the highest number that was ever drawn, committed or not, pruned or not.
select coalesce(pg_sequence_last_value(pg_get_serial_sequence('todoku_message', 'seq')), 0)

-- name: projection_lanes
-- A fragment: a limited number of lanes of a destination whose queue has its name: free, owned, parked; each by its index.
(select id from todoku_lane where queue = :name and destination = :name and worker_id is null and not parked
  order by ready_at, id limit :most)
union all
(select id from todoku_lane where worker_id is not null and not parked and destination = :name limit :most)
union all
(select id from todoku_lane where parked and queue = :name and destination = :name limit :most)

-- name: projection_lag
-- Only reads: the unfinished deliveries of a limited number of lanes, by the index of lanes.
select count(*), coalesce(sum(counted.number), 0)::bigint, min(head.message_seq),
       coalesce(date_part('epoch', todoku_now() - min(m.created_at)), 0)
  from ({projection_lanes}) l
 cross join lateral (select message_seq from todoku_delivery d
                      where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                      order by d.id limit 1) head
 cross join lateral (select count(*) as number from (
        select from todoku_delivery d where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
         order by d.id limit :deep) few) counted
  left join todoku_message m on m.seq = head.message_seq

-- name: unfinished_lanes
-- Only reads: those of these lanes that have an unfinished delivery, by the index of lanes.
select distinct l.id from unnest(:lanes::bigint[]) as l(id)
 where exists (select from todoku_delivery d where d.lane = l.id and d.lane is not null and d.status <> 'aborted')

-- name: projection_dead
-- Only reads: a dead letter of each of these keys, by the indexes of keys and messages.
select m.key, min(m.seq), max(d.id) from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.key = any (:keys::text[]) and d.destination = :name and d.status = 'aborted'
 group by m.key

-- name: projection_dead_letters
-- Only reads: dead letters in the order of their index.
select d.id, m.key, m.seq from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.status = 'aborted' and d.destination = :name and d.id > :after and m.key is not null
 order by d.id limit :most

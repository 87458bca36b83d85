-- Projections.

-- name: projection_columns
-- A fragment: a projection.
name, kind, state, why, revision, readable, created_at / 1e6, updated_at / 1e6

-- name: projection_index_columns
-- A fragment: an index of a projection.
name, generation, role, written, phase, position, step, copied, expected, rejected, created_at / 1e6

-- name: projections
-- Only reads; there are few.
select {projection_columns} from todoku_projection order by name

-- name: projection
-- Only reads, by the primary key.
select {projection_columns} from todoku_projection where name = :name

-- name: lock_projection
-- No lock to take: there is one writer.
select {projection_columns} from todoku_projection where name = :name

-- name: share_projection
-- No lock to take: there is one writer.
select {projection_columns} from todoku_projection where name = :name

-- name: projection_indexes
-- Only reads, by the primary key.
select {projection_index_columns} from todoku_projection_index where projection = :projection order by generation

-- name: declare_projection
-- One row; declaring twice is declaring once. Returns a row if it is new.
insert into todoku_projection (name, kind, created_at, updated_at) values (:name, :kind, :now, :now)
    on conflict (name) do nothing
returning name

-- name: set_projection
-- Under the lock of the row. The revision rises only if the set of written indexes changed.
update todoku_projection
   set state = :state, why = :why, readable = :readable, revision = revision + :raised, updated_at = :now
 where name = :name

-- name: remove_projection
-- Under the lock of the row, with its indexes and writers.
delete from todoku_projection_index where projection = :name;
delete from todoku_projection_writer where projection = :name;
delete from todoku_projection where name = :name

-- name: add_projection_index
-- Under the lock of the projection, which gives the next generation to one caller.
insert into todoku_projection_index (projection, name, generation, role, phase, created_at, updated_at)
values (:projection, :name, :generation, :role, :phase, :now, :now)

-- name: set_projection_index
-- Under the lock of the projection.
update todoku_projection_index set role = :role, written = :written, phase = :phase, updated_at = :now
 where projection = :projection and name = :name

-- name: remove_projection_index
-- Under the lock of the projection; removing twice is removing once.
delete from todoku_projection_index where projection = :projection and name = :name returning name

-- name: advance_projection_index
-- Compares the step: of two rebuilds at once one goes on, and the other changes 0 rows.
update todoku_projection_index
   set phase = :phase, position = :position, copied = :copied, expected = :expected, rejected = rejected + :rejected,
       step = step + 1, updated_at = :now
 where projection = :projection and name = :name and step = :step
returning step

-- name: reject_projection_index
-- Counts; a worker that dies before its settle counts again.
update todoku_projection_index set rejected = rejected + :number where projection = :projection and name = :name

-- name: bury_projection_writers
-- A worker without a row in todoku_worker can settle nothing (I3), so what it acknowledged does not matter.
delete from todoku_projection_writer
 where projection = :projection and worker_id not in (select id from todoku_worker)

-- name: acknowledge_projection
-- One row by its key. A revision only rises, so a late acknowledgement changes nothing.
insert into todoku_projection_writer as r (projection, worker_id, revision) values (:projection, :worker, :revision)
    on conflict (projection, worker_id) do update set revision = max(r.revision, excluded.revision)

-- name: late_projection_writers
-- Only reads: the workers that may still settle a write under an older revision. One whose lease ran out may, until it
-- is reclaimed.
select w.name from todoku_projection_writer r join todoku_worker w on w.id = r.worker_id
 where r.projection = :projection and r.revision < :revision order by w.name

-- name: newest_seq
-- Only reads: the highest number that was ever drawn, committed or not, pruned or not.
select coalesce((select seq from sqlite_sequence where name = 'todoku_message'), 0)

-- name: projection_lanes
-- A fragment: a limited number of lanes of a destination whose queue has its name: free, owned, parked; each by its index.
select id from (select id from todoku_lane indexed by todoku_lane_due
                 where queue = :name and destination = :name and worker_id is null and parked = 0
                 order by ready_at, id limit :most)
union all
select id from (select id from todoku_lane indexed by todoku_lane_owner
                 where worker_id is not null and parked = 0 and destination = :name limit :most)
union all
select id from (select id from todoku_lane indexed by todoku_lane_parked
                 where parked = 1 and queue = :name and destination = :name limit :most)

-- name: projection_lag
-- Only reads: the unfinished deliveries of a limited number of lanes, by the index of lanes.
select count(*), coalesce(sum(h.number), 0), min(h.message_seq), coalesce((:now - min(m.created_at)) / 1e6, 0)
  from (select (select d.message_seq from todoku_delivery d indexed by todoku_delivery_lane
                 where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                 order by d.id limit 1) as message_seq,
               (select count(*) from (
                   select 1 from todoku_delivery d indexed by todoku_delivery_lane
                    where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                    order by d.id limit :deep)) as number
          from ({projection_lanes}) l) h
  left join todoku_message m on m.seq = h.message_seq
 where h.message_seq is not null

-- name: unfinished_lanes
-- Only reads: those of these lanes that have an unfinished delivery, by the index of lanes.
select distinct l.value from json_each(:lanes) l
 where exists (select 1 from todoku_delivery d indexed by todoku_delivery_lane
                where d.lane = l.value and d.lane is not null and d.status <> 'aborted')

-- name: projection_dead
-- Only reads: a dead letter of each of these keys, by the indexes of keys and messages.
select m.key, min(m.seq), max(d.id) from todoku_message m join todoku_delivery d on d.message_seq = m.seq
 where m.key in (select value from json_each(:keys)) and m.key is not null and d.destination = :name and d.status = 'aborted'
 group by m.key

-- name: projection_dead_letters
-- Only reads: dead letters in the order of their index.
select d.id, m.key, m.seq from todoku_delivery d indexed by todoku_delivery_dead join todoku_message m on m.seq = d.message_seq
 where d.status = 'aborted' and d.destination = :name and d.id > :after and m.key is not null
 order by d.id limit :most

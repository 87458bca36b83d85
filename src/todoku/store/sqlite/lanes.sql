-- Lanes.

-- name: skips
-- A fragment: dead letters do not block the lane, because its destination is set so, or is a host, where a queue
-- always continues.
(instr(l.destination, '://') > 0
    or exists (select 1 from todoku_destination b where b.name = l.destination and b.on_abort = 'skip'))

-- name: due_lanes
-- A fragment: lanes of these places that may run.
select l.id from json_each(:places) p cross join todoku_lane l indexed by todoku_lane_due
 where l.queue = json_extract(p.value, '$.queue') and l.destination = json_extract(p.value, '$.destination')
   and l.worker_id is null and l.parked = 0 and l.ready_at <= :now and {live}
   and {open}
 limit :lanes

-- name: take_lanes
-- Reads and takes the same lanes: no other connection writes between the two statements.
select id, failures, queue, destination from todoku_lane where id in ({due_lanes});
update todoku_lane set worker_id = :worker, epoch = epoch + 1 where id in ({due_lanes})

-- name: lane_rows
-- A fragment: of each lane the first rows in id order, up to the first that may not run yet (I10).
select id, lost, next_run_at from (
    select d.id, d.next_run_at, row_number() over (partition by d.lane order by d.id) as place, s.value as most,
           max(d.lost) over (partition by d.lane order by d.id) as lost,
           min(d.status <> 'sending' and d.next_run_at <= :now and d.expires_at > :now)
               over (partition by d.lane order by d.id) as runs
      from json_each(:mosts) s cross join todoku_delivery d
        on d.id in (select n.id from todoku_delivery n indexed by todoku_delivery_lane
                     where n.lane = cast(s.key as integer) and n.lane is not null and n.status <> 'aborted'
                     order by n.id limit :most))
 where runs and place <= most and (place = 1 or lost = 0)

-- name: next_lane_rows
-- A fragment: of those, all except rows whose owner died; or one such row alone, once it is the oldest (H6).
with next as materialized ({lane_rows})
select id from next
 where case when (select lost > 0 from next order by next_run_at, id limit 1)
            then id = (select id from next order by next_run_at, id limit 1) else lost = 0 end

-- name: claim_lane_rows
-- The lanes are owned by this worker. Reads and takes the same rows.
{claimed} from todoku_delivery t {claimed_from} where t.id in ({next_lane_rows}) order by t.lane, t.id;
{take} where id in ({next_lane_rows})

-- name: lock_lanes
-- No lock to take: there is one writer.
select 0

-- name: settle_lanes
-- As PostgreSQL: the worker owns the lanes until none of their deliveries is in flight, and with `drop` those that end
-- empty are left for drop_empty_lanes.
select l.id, l.destination from todoku_lane l
 where l.id in (select value from json_each(:lanes)) and l.worker_id = :worker and {ends};
update todoku_lane as l
   set failures = case when l.id in (select value from json_each(:failing)) then l.failures + 1
                       when l.id in (select value from json_each(:succeeding)) then 0 else l.failures end,
       parked = {parks},
       worker_id = case when {busy} then l.worker_id end,
       epoch = l.epoch + not {busy},
       ready_at = coalesce((select d.next_run_at from todoku_delivery d indexed by todoku_delivery_lane
                             where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                             order by d.id limit 1), :now + 20000)
 where l.id in (select value from json_each(:lanes)) and l.worker_id = :worker and not ({ends})

-- name: ends
-- A fragment: the lane is to be dropped: nothing of it waits, is in flight, or blocks it.
:drop and not ({busy}) and not ({parks}) and not exists (
    select 1 from todoku_delivery d where d.lane = l.id and d.lane is not null and d.status <> 'aborted')

-- name: busy
-- A fragment: a delivery of the lane is in flight.
l.id in (select d.lane from todoku_delivery d indexed by todoku_delivery_owner
         where d.worker_id = :worker and d.status = 'sending' and d.lane is not null)

-- name: parks
-- A fragment: a dead letter blocks the lane, unless its destination skips them.
(l.parked or (l.id in (select value from json_each(:aborting)) and not {skips}))

-- name: try_lock_lanes
-- No lock to try: the single writer orders publishers and this settle.
select cast(key as integer) from json_each(:locks)

-- name: drop_empty_lanes
-- In the transaction that emptied the lane, so no publisher can have added a row meanwhile. Fenced by the owner;
-- `+` keeps the planner from the index of owners.
delete from todoku_lane
 where id in (select value from json_each(:lanes)) and +worker_id = :worker and parked = 0
   and not exists (select 1 from todoku_delivery d
                    where d.lane = todoku_lane.id and d.lane is not null and d.status <> 'aborted')
returning id

-- name: refresh_lanes
-- The next row of the lanes, and so their due time, may have changed. If a worker owns the lane, its settle computes
-- both again.
update todoku_lane as l
   set parked = l.parked and not :unpark,
       ready_at = coalesce((select d.next_run_at from todoku_delivery d indexed by todoku_delivery_lane
                             where d.lane = l.id and d.lane is not null and d.status <> 'aborted'
                             order by d.id limit 1), :now)
 where l.id in (select value from json_each(:lanes))

-- Lanes.

-- name: skips
-- A fragment: dead letters do not block the lane, because its destination is set so, or is a host, where a queue
-- always continues. With `offset 0` the destination is looked up by its name; without it the planner could first read
-- all skipping destinations into a hash.
(strpos(l.destination, '://') > 0
    or exists (select from todoku_destination b where b.name = l.destination and b.on_abort = 'skip' offset 0))

-- name: take_lanes
-- As claim, for lanes: SKIP LOCKED between workers, owner and epoch set in the same statement.
with due as materialized (
    select l.id from json_to_recordset(:places::json) as s(queue text, destination text)
      cross join lateral (
        select id from todoku_lane
         where queue = s.queue and destination = s.destination
           and worker_id is null and not parked and ready_at <= todoku_now()
         order by ready_at, id limit :lanes for update skip locked) l
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     limit :lanes
), {me}
update todoku_lane set worker_id = :worker, epoch = epoch + 1
 where id = any (array(select id from due)) and exists (select from me)
returning id, failures

-- name: claim_lane_rows
-- The lanes are owned by this worker. Rows are taken in id order up to the first that may not run yet: it blocks the
-- rest (I10). A row that another transaction is changing counts as such: it is neither overtaken nor waited for,
-- because its cancellation may be waiting for this lane (H11). A row whose owner died is claimed alone, once it is the
-- oldest (H6).
with head as materialized (
    select s.lane, d.id, h.lost, h.next_run_at, coalesce(h.runs, false) as runs
      from json_each_text(:mosts::json) as s(lane, most)
     cross join lateral (
        select id from todoku_delivery
         where lane = s.lane::bigint and status <> 'aborted' order by id limit s.most::int) d
      left join lateral (
        select lost, next_run_at,
               status <> 'sending' and next_run_at <= todoku_now() and expires_at > todoku_now() as runs
          from todoku_delivery where id = d.id and status <> 'aborted' limit 1 for update skip locked) h on true
), next as materialized (
    select id, lost, next_run_at from (
        select *, bool_and(runs) over w and (row_number() over w = 1 or max(lost) over w = 0) as able
          from head window w as (partition by lane order by id)) h where able
), due as materialized (
    select id from next
     where case when (select lost > 0 from next order by next_run_at, id limit 1)
                then id = (select id from next order by next_run_at, id limit 1) else lost = 0 end
), {me}, {taken}
select {claimed}

-- name: lock_lanes
-- A separate statement: the next one sees what operators did to these lanes before this one got the locks. Sorted
-- (H11).
select from todoku_lane where id = any (:lanes::bigint[]) order by id for update

-- name: settle_lanes
-- The worker owns the lanes until this statement releases them, which it does once none of their deliveries is in
-- flight. A lane is due when its next row is; without one it is checked again in 20 ms, or dropped by the next
-- statement. Deliveries in flight are read once, from the small index of owned rows: a lane may have a hundred
-- thousand followers.
with flying as materialized (
    select distinct lane from (
        select lane from todoku_delivery where worker_id = :worker and status = 'sending' offset 0) owned
     where lane = any (:lanes::bigint[])
)
update todoku_lane l
   set failures = case when l.id = any (:failing::bigint[]) then l.failures + 1
                       when l.id = any (:succeeding::bigint[]) then 0 else l.failures end,
       parked = l.parked or (l.id = any (:aborting::bigint[]) and not {skips}),
       worker_id = case when busy then l.worker_id end,
       epoch = l.epoch + (not busy)::int,
       ready_at = coalesce(head.next_run_at, todoku_now() + interval '20 milliseconds')
  from unnest(:lanes::bigint[]) as s(lane)
  left join lateral (select next_run_at from todoku_delivery d
                      where d.lane = s.lane and d.status <> 'aborted' order by d.id limit 1) head on true
 cross join lateral (select s.lane = any (array(select lane from flying)) as busy) b
 where l.id = s.lane and l.id = any (:lanes::bigint[]) and l.worker_id = :worker
returning l.id, l.destination, head.next_run_at is null and not l.parked and not busy

-- name: try_lock_lanes
-- Tries, never waits: if a publisher holds the lock, the lane stays.
select lane::bigint from json_each_text(:locks::json) as s(lane, destination_lock)
 where pg_try_advisory_xact_lock_shared(destination_lock::bigint)
   and pg_try_advisory_xact_lock(lane::bigint)

-- name: drop_empty_lanes
-- The lanes' locks are held and this statement's snapshot is younger than they are: no row can be added meanwhile.
with empty as materialized (
    select l.id from unnest(:lanes::bigint[]) as s(lane)
     cross join lateral (select id, worker_id, parked from todoku_lane where id = s.lane limit 1 for update) l
     where l.worker_id is null and not l.parked
       and not exists (select from todoku_delivery d where d.lane = s.lane and d.status <> 'aborted')
)
delete from todoku_lane where id = any (array(select id from empty))

-- name: refresh_lanes
-- The next row of the lanes, and so their due time, may have changed. If a worker owns the lane, its settle computes
-- both again.
update todoku_lane l
   set parked = l.parked and not :unpark,
       ready_at = coalesce((select next_run_at from todoku_delivery d
                             where d.lane = l.id and d.status <> 'aborted' order by d.id limit 1), todoku_now())
 where l.id = any (:lanes::bigint[])

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
returning id, failures, queue, destination

-- name: claim_lane_rows
-- The lanes are owned by this worker. Rows are taken in id order up to the first that may not run yet: it blocks the
-- rest (I10). A row that another transaction is changing counts as such: it is neither overtaken nor waited for,
-- because its cancellation may be waiting for this lane (H11). So does one that is listed, which is one of a worker that
-- is gone: the lists of live workers name rows of lanes that are theirs. A row whose owner died is claimed alone, once
-- it is the oldest (H6).
with {lane_next}, due as materialized (select id from next where {alone}), {me}, {taken}
select {claimed}

-- name: claim_lane_list
-- As claim_lane_rows and claim_list in one. It needs no second look at lists: whoever listed a delivery of these lanes
-- had them, and committed before this worker locked the lanes, in a statement before this one. Rows are locked, so that
-- an act that has locked one, and seen no list, is not overtaken by one; and found by their ids, not their places on
-- disk: one that changed since the snapshot must not be left out while its followers are taken.
with {lane_next}, due as materialized (
    select *, untouched and destination = any (:listable::text[]) as lists from next where {alone}
), listed as materialized (select '{}'::bigint[] as ids), {me}, {list}, updated as (
    update todoku_delivery d set {take}
     where id = any (array(select id from due where {by_row})) and exists (select from me)
    returning d.lane as place, {updated_columns}
), {list_taken}
select {list_claimed}

-- name: alone
-- A fragment: rows whose owner did not die; or one whose owner did, once it is the oldest (H6).
case when (select lost > 0 from next order by next_run_at, id limit 1)
     then id = (select id from next order by next_run_at, id limit 1) else lost = 0 end

-- name: lane_next
-- A fragment: the first rows of lanes, locked, up to the first of each that may not run yet.
{named}, first as materialized (
    select s.lane, d.id
      from (select lane::bigint, most::int from json_each_text(:mosts::json) as m(lane, most)) s
     cross join lateral (
        select id from todoku_delivery
         where lane = s.lane and status <> 'aborted' order by id limit s.most) d
), held as materialized (
    select d.id, d.epoch, d.message_seq, d.max_attempts, d.timeout, d.destination, d.priority, d.lost, d.next_run_at,
           {untouched} as untouched,
           status <> 'sending' and next_run_at <= todoku_now() and expires_at > todoku_now()
               and (epoch > 0 or id not in (select id from named)) as runs
      from todoku_delivery d
     where id = any (array(select id from first)) and status <> 'aborted' for update skip locked
), head as materialized (
    select f.lane as place, f.id, h.epoch, h.message_seq, h.max_attempts, h.timeout, h.destination, h.priority, h.lost,
           h.next_run_at, h.untouched, coalesce(h.runs, false) as runs
      from first f left join held h on h.id = f.id
), next as materialized (
    select * from (
        select *, bool_and(runs) over w and (row_number() over w = 1 or max(lost) over w = 0) as able
          from head window w as (partition by place order by id)) h where able
)

-- name: lock_lanes
-- A separate statement: the next one sees what operators did to these lanes before this one got the locks. Sorted
-- (H11).
select from todoku_lane where id = any (:lanes::bigint[]) order by id for update

-- name: settle_lanes
-- The worker owns the lanes until this statement releases them, which it does once none of their deliveries is in
-- flight. A lane is due when its next row is; without one it is checked again in 20 ms. With `drop`, lanes that end
-- empty are left as they are and returned, for drop_empty_lanes in this transaction: one write less than a release
-- before it. Their rows are locked. Rows are claimed in order: behind a head that was never claimed, nothing is in
-- flight, and a head that looks so is in flight if a list of this worker names it. Behind another one, deliveries in
-- flight are read once, from the small index of owned rows and from the lists: a lane may have a hundred thousand
-- followers. A head that was written out has an owner, though its epoch is 0. The update finds lanes by their ids and
-- takes no join, which could walk over all lanes; ids are sorted and unique, so the time of an id has the same place in
-- its array.
with mine as materialized (
    select unnest(array(
        select unnest(ids) from (select ids from todoku_claim_list where worker_id = :worker order by id) l)) as id
), flying as materialized (
    select distinct lane from (
        (select lane from todoku_delivery where worker_id = :worker and status = 'sending' offset 0)
        union all
        select d.lane from mine cross join lateral (
            select lane from todoku_delivery where id = mine.id and epoch = 0 and worker_id is null limit 1) d) owned
     where lane = any (:lanes::bigint[])
), seen as materialized (
    select l.id, l.destination, b.busy, p.parks, :drop and head.next_run_at is null and not p.parks as ends,
           coalesce(head.next_run_at, todoku_now() + interval '20 milliseconds') as ready_at
      from todoku_lane l
      left join lateral (select id, next_run_at, epoch = 0 and worker_id is null as untouched from todoku_delivery d
                          where d.lane = l.id and d.status <> 'aborted' order by d.id limit 1) head on true
     cross join lateral (select case when head.untouched then head.id in (select id from mine)
                                     else head.id is not null and l.id = any (array(select lane from flying)) end
                                as busy) b
     cross join lateral (select l.parked or (l.id = any (:aborting::bigint[]) and not {skips}) as parks) p
     where l.id = any (:lanes::bigint[]) and l.worker_id = :worker
), kept as materialized (
    select id, busy, parks, ready_at from seen where not ends order by id
), released as (
    update todoku_lane l
       set failures = case when l.id = any (:failing::bigint[]) then l.failures + 1
                           when l.id = any (:succeeding::bigint[]) then 0 else l.failures end,
           parked = l.id = any (array(select id from kept where parks)),
           worker_id = case when l.id = any (array(select id from kept where busy)) then l.worker_id end,
           epoch = l.epoch + (l.id <> all (array(select id from kept where busy)))::int,
           ready_at = (array(select ready_at from kept))[width_bucket(l.id, array(select id from kept))]
     where l.id = any (array(select id from kept))
)
select id, destination from seen where ends

-- name: try_lock_lanes
-- Tries, never waits: if a publisher holds the lock, the lane stays.
select lane::bigint from json_each_text(:locks::json) as s(lane, destination_lock)
 where pg_try_advisory_xact_lock_shared(destination_lock::bigint)
   and pg_try_advisory_xact_lock(lane::bigint)

-- name: drop_empty_lanes
-- The lanes' locks and their rows' are held, and this statement's snapshot is younger than the locks: no delivery can
-- be added meanwhile. Fenced by the owner; `is not distinct from` keeps the planner from the index of owners.
delete from todoku_lane l
 where l.id = any (:lanes::bigint[]) and l.worker_id is not distinct from :worker::uuid and not l.parked
   and not exists (select from todoku_delivery d where d.lane = l.id and d.status <> 'aborted' offset 0)
returning l.id

-- name: refresh_lanes
-- The next row of the lanes, and so their due time, may have changed. If a worker owns the lane, its settle computes
-- both again.
update todoku_lane l
   set parked = l.parked and not :unpark,
       ready_at = coalesce((select next_run_at from todoku_delivery d
                             where d.lane = l.id and d.status <> 'aborted' order by d.id limit 1), todoku_now())
 where l.id = any (:lanes::bigint[])

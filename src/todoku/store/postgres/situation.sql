-- Why a delivery waits.

-- name: situation
-- Only reads; deliveries in flight are counted in their small index.
select case when d.expires_at < 'infinity' then date_part('epoch', d.expires_at) end, date_part('epoch', d.claimed_at),
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.queue = d.queue),
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.destination = d.destination), d.gate
  from todoku_delivery d where d.id = :id

-- name: gate
-- Only reads.
select key, "limit", rate, running, case when rate is not null then date_part('epoch', tat) end
  from todoku_gate where id = :gate

-- name: lane
-- Only reads.
select date_part('epoch', ready_at), worker_id, failures, parked from todoku_lane where id = :lane

-- name: lane_head
-- Only reads: the first unfinished row of a lane, which is the next to run (I10).
select id from todoku_delivery where lane = :lane and status <> 'aborted' order by id limit 1

-- name: lane_blocker
-- Only reads: the dead letters of a lane that may have parked it.
select id from todoku_delivery
 where lane = :lane and status = 'aborted' and coalesce(reason, '') <> all (:gone::text[])
 order by id limit 1

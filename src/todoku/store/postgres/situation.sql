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
 where lane = :lane and lane is not null and status = 'aborted' and coalesce(reason, '') <> all (:gone::text[])
 order by id limit 1

-- name: situations
-- Only reads, by the primary key: the facts of many deliveries that `situation` has of one.
select d.id, case when d.expires_at < 'infinity' then date_part('epoch', d.expires_at) end, date_part('epoch', d.claimed_at), d.gate
  from todoku_delivery d where d.id = any (:ids::bigint[])

-- name: in_flight
-- Only reads: deliveries in flight, counted in their small index.
select queue, destination, count(*) from todoku_delivery where status = 'sending' group by queue, destination

-- name: gates
-- Only reads, by the primary key.
select id, key, "limit", rate, running, case when rate is not null then date_part('epoch', tat) end
  from todoku_gate where id = any (:gates::bigint[])

-- name: lanes
-- Only reads: lanes by the primary key, with the next row to run of each (I10), and of a parked one the dead letter that
-- may have parked it.
select l.id, date_part('epoch', l.ready_at), l.worker_id, l.failures, l.parked,
       (select d.id from todoku_delivery d
         where d.lane = l.id and d.lane is not null and d.status <> 'aborted' order by d.id limit 1),
       case when l.parked then (
           select d.id from todoku_delivery d
            where d.lane = l.id and d.lane is not null and d.status = 'aborted' and coalesce(d.reason, '') <> all (:gone::text[])
            order by d.id limit 1) end
  from todoku_lane l where l.id = any (:lanes::bigint[])

-- name: deliveries_of
-- Only reads, by the primary key.
select {delivery_columns}
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.id = any (:ids::bigint[])

-- name: run_waits
-- Only reads, by the primary keys: what parked runs wait for, in the order of their steps. A plain job has no steps.
select d.id, s.name, s.kind, s.awaits, date_part('epoch', s.wake_at), b.open, b.total
  from todoku_delivery d join todoku_step s on s.message_seq = d.message_seq
  left join todoku_batch b on b.id = case when s.kind = 'children' then replace(s.awaits, 'any ', '')::uuid end
 where d.id = any (:ids::bigint[]) and d.status = 'pending' and s.state = 'open'
   and (s.awaits is not null or s.wake_at > todoku_now())
 order by d.id, s.number, s.step_key

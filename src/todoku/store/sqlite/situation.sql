-- Why a delivery waits.

-- name: situation
-- Only reads; deliveries in flight are counted in their small index.
select case when d.expires_at < 9223372036854775807 then d.expires_at / 1e6 end, d.claimed_at / 1e6,
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.queue = d.queue),
       (select count(*) from todoku_delivery f where f.status = 'sending' and f.destination = d.destination), d.gate
  from todoku_delivery d where d.id = :id

-- name: gate
-- Only reads.
select key, "limit", rate, running, case when rate is not null then tat / 1e6 end from todoku_gate where id = :gate

-- name: lane
-- Only reads.
select ready_at / 1e6, worker_id, failures, parked from todoku_lane where id = :lane

-- name: lane_head
-- Only reads: the first unfinished row of a lane, which is the next to run (I10).
select id from todoku_delivery indexed by todoku_delivery_lane
 where lane = :lane and lane is not null and status <> 'aborted' order by id limit 1

-- name: lane_blocker
-- Only reads: the dead letters of a lane that may have parked it.
select id from todoku_delivery indexed by todoku_delivery_lane_dead
 where lane = :lane and lane is not null and status = 'aborted' and coalesce(reason, '') not in (select value from json_each(:gone))
 order by id limit 1

-- name: situations
-- Only reads, by the primary key: the facts of many deliveries that `situation` has of one.
select d.id, case when d.expires_at < 9223372036854775807 then d.expires_at / 1e6 end, d.claimed_at / 1e6, d.gate
  from todoku_delivery d where d.id in (select value from json_each(:ids))

-- name: in_flight
-- Only reads: deliveries in flight, counted in their small index.
select queue, destination, count(*) from todoku_delivery indexed by todoku_delivery_owner where status = 'sending' group by queue, destination

-- name: gates
-- Only reads, by the primary key.
select id, key, "limit", rate, running, case when rate is not null then tat / 1e6 end
  from todoku_gate where id in (select value from json_each(:gates))

-- name: lanes
-- Only reads: lanes by the primary key, with the next row to run of each (I10), and of a parked one the dead letter that
-- may have parked it.
select l.id, l.ready_at / 1e6, l.worker_id, l.failures, l.parked,
       (select d.id from todoku_delivery d
         where d.lane = l.id and d.lane is not null and d.status <> 'aborted' order by d.id limit 1),
       case when l.parked then (
           select d.id from todoku_delivery d
            where d.lane = l.id and d.lane is not null and d.status = 'aborted' and coalesce(d.reason, '') not in (select value from json_each(:gone))
            order by d.id limit 1) end
  from todoku_lane l where l.id in (select value from json_each(:lanes))

-- name: deliveries_of
-- Only reads, by the primary key.
select {delivery_columns}
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
 where d.id in (select value from json_each(:ids))

-- name: run_waits
-- Only reads, by the primary keys: what parked runs wait for, in the order of their steps. A plain job has no steps.
select d.id, s.name, s.kind, s.awaits, s.wake_at / 1e6, b.open, b.total
  from todoku_delivery d cross join todoku_step s on s.message_seq = d.message_seq
  left join todoku_batch b on s.kind = 'children' and b.id = replace(s.awaits, 'any ', '')
 where d.id in (select value from json_each(:ids)) and d.status = 'pending' and s.state = 'open'
   and (s.awaits is not null or s.wake_at > :now)
 order by d.id, s.number, s.step_key

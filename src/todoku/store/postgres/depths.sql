-- How deep the queues are.

-- name: depth_places
-- Only reads a limited number of rows of each place, from the index alone: those that are due, the oldest first, and those
-- that wait for their time.
select s.queue, due.number, due.age, later.number
  from json_to_recordset(:places::json) as s(queue text, destination text, priority smallint)
 cross join lateral (
    select count(*) as number, coalesce(date_part('epoch', todoku_now() - min(next_run_at)), 0) as age from (
        select next_run_at from todoku_delivery
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at <= todoku_now() and expires_at > todoku_now()
         order by next_run_at, id limit :most) d) due
 cross join lateral (
    select count(*) as number from (
        select from todoku_delivery
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at > todoku_now()
         order by next_run_at, id limit :most) d) later

-- name: depth_apart
-- Only reads a limited number of rows: deliveries that are not in the due index, in lanes, at gates, and suspects.
select queue, count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0),
       count(*) filter (where not due)
  from (select queue, next_run_at, next_run_at <= todoku_now() and expires_at > todoku_now() as due from (
            (select queue, next_run_at, expires_at, status from todoku_delivery
              where lane is not null and status <> 'aborted' order by lane, id limit :most)
            union all
            (select queue, next_run_at, expires_at, status from todoku_delivery
              where status in ('pending', 'failed') and lane is null and lost > 0
              order by queue, destination, next_run_at, id limit :most)
            union all
            (select queue, next_run_at, expires_at, status from todoku_delivery
              where status in ('pending', 'failed') and gate is not null and lost = 0
              order by gate, priority, next_run_at, id limit :most)) rows
         where status <> 'sending') apart
 group by queue

-- name: running_places
-- Only reads deliveries in flight, by their small index.
select queue, destination, count(*), coalesce(date_part('epoch', todoku_now() - min(claimed_at)), 0)
  from todoku_delivery where status = 'sending' group by 1, 2

-- name: dead_reasons
-- Only reads a limited number of dead letters, the newest, by their index.
select coalesce(reason, ''), count(*), date_part('epoch', max(updated_at)), max(id)
  from (select id, reason, updated_at from todoku_delivery where status = 'aborted' order by id desc limit :most) dead
 group by 1 order by 2 desc, 1

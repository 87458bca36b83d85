-- How deep the queues are.

-- name: depth_places
-- Only reads a limited number of rows of each place, from the index alone: those that are due, the oldest first, and those
-- that wait for their time.
select json_extract(place, '$.queue'), json_extract(due, '$[0]'), json_extract(due, '$[1]'), later
  from (select s.value as place,
               (select json_array(count(*), coalesce((:now - min(next_run_at)) / 1e6, 0)) from (
                    select d.next_run_at from todoku_delivery d indexed by todoku_delivery_due
                     where d.queue = json_extract(s.value, '$.queue')
                       and d.destination = json_extract(s.value, '$.destination')
                       and d.priority = json_extract(s.value, '$.priority')
                       and d.status in ('pending', 'failed') and d.lane is null and d.lost = 0 and d.gate is null
                       and d.next_run_at <= :now and d.expires_at > :now
                     order by d.next_run_at, d.id limit :most)) as due,
               (select count(*) from (
                    select 1 from todoku_delivery d indexed by todoku_delivery_due
                     where d.queue = json_extract(s.value, '$.queue')
                       and d.destination = json_extract(s.value, '$.destination')
                       and d.priority = json_extract(s.value, '$.priority')
                       and d.status in ('pending', 'failed') and d.lane is null and d.lost = 0 and d.gate is null
                       and d.next_run_at > :now
                     order by d.next_run_at, d.id limit :most)) as later
          from json_each(:places) s)

-- name: depth_apart
-- Only reads a limited number of rows: deliveries that are not in the due index, in lanes, at gates, and suspects.
select queue, count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0),
       count(*) filter (where not due)
  from (select queue, next_run_at, next_run_at <= :now and expires_at > :now as due from (
            select * from (
                select queue, next_run_at, expires_at, status from todoku_delivery indexed by todoku_delivery_lane
                 where lane is not null and status <> 'aborted' order by lane, id limit :most)
            union all
            select * from (
                select queue, next_run_at, expires_at, status from todoku_delivery indexed by todoku_delivery_suspect
                 where status in ('pending', 'failed') and lane is null and lost > 0
                 order by queue, destination, next_run_at, id limit :most)
            union all
            select * from (
                select queue, next_run_at, expires_at, status from todoku_delivery indexed by todoku_delivery_gate
                 where status in ('pending', 'failed') and gate is not null and lost = 0
                 order by gate, priority, next_run_at, id limit :most))
         where status <> 'sending')
 group by queue

-- name: running_places
-- Only reads deliveries in flight, by their small index.
select queue, destination, count(*), coalesce((:now - min(claimed_at)) / 1e6, 0)
  from todoku_delivery indexed by todoku_delivery_owner where status = 'sending' group by 1, 2

-- name: dead_reasons
-- Only reads a limited number of dead letters, the newest, by their index.
select coalesce(reason, ''), count(*), max(updated_at) / 1e6, max(id)
  from (select id, reason, updated_at from todoku_delivery indexed by todoku_delivery_dead
         where status = 'aborted' order by id desc limit :most)
 group by 1 order by 2 desc, 1

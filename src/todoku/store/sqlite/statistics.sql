-- Statistics.

-- name: size
-- Only reads a limited number of rows: enough to know whether counting is cheap.
select count(*) from (select 1 from todoku_delivery limit :most)

-- name: id_range
-- Only reads both ends of the primary key: each by a query of its own, or SQLite reads the whole table.
select (select min(id) from todoku_delivery), (select max(id) from todoku_delivery)

-- name: is_of_hook
-- A fragment: whether a delivery is a hook's, by its message. Only messages to a hook's destination are looked up.
(d.destination in (select name from todoku_hook)
       and (select m.topic from todoku_message m where m.seq = d.message_seq)
           in ('todoku.succeeded', 'todoku.aborted'))

-- name: has_hooks
-- Only reads.
select exists (select 1 from todoku_hook)

-- name: count_hook_history
-- Only reads a limited number of rows, the newest by the index of messages.
select count(*), count(*) filter (where {is_of_hook})
  from (select destination, message_seq from todoku_history order by message_seq desc limit 100001) d

-- name: count_deliveries
-- Only reads, a limited number of rows.
select status, destination, coalesce(reason, ''), count(*), {is_of_hook}
  from (select status, destination, reason, message_seq from todoku_delivery order by id limit :most) d
 group by 1, 2, 3, 5

-- name: count_dead
-- Only reads a limited number of rows, by the index of dead letters.
select destination, coalesce(reason, ''), count(*), {is_of_hook}
  from (select destination, reason, message_seq from todoku_delivery indexed by todoku_delivery_dead
         where status = 'aborted' order by id limit :most) d
 group by 1, 2, 4

-- name: edges
-- Only reads: the first and the last id of each part of the id range, by two probes of the primary key.
select low, high from (
    select (select min(d.id) from todoku_delivery d where d.id >= json_extract(s.value, '$.low')
               and d.id <= json_extract(s.value, '$.high')) as low,
           (select max(d.id) from todoku_delivery d where d.id >= json_extract(s.value, '$.low')
               and d.id <= json_extract(s.value, '$.high')) as high
      from json_each(:parts) s)
 where low is not null

-- name: count_sample
-- Only reads: windows of the id range; each row counts for the ratio of its part to its window.
select d.status, d.destination, coalesce(d.reason, ''), sum(json_extract(s.value, '$.weight')), {is_of_hook}
  from json_each(:windows) s cross join todoku_delivery d
    on d.id >= json_extract(s.value, '$.start')
   and d.id < json_extract(s.value, '$.start') + json_extract(s.value, '$.width')
 group by 1, 2, 3, 5

-- name: lag_due
-- Only reads a limited number of rows of each place, from the index alone, oldest first.
select json_extract(found, '$[0]'), json_extract(found, '$[1]'), json_extract(found, '$[0]')
  from (select (select json_array(count(*), coalesce((:now - min(next_run_at)) / 1e6, 0)) from (
                    select d.next_run_at from todoku_delivery d indexed by todoku_delivery_due
                     where d.queue = json_extract(s.value, '$.queue')
                       and d.destination = json_extract(s.value, '$.destination')
                       and d.priority = json_extract(s.value, '$.priority')
                       and d.status in ('pending', 'failed') and d.lane is null and d.lost = 0 and d.gate is null
                       and d.next_run_at <= :now and d.expires_at > :now
                     order by d.next_run_at, d.id limit :most)) as found
          from json_each(:places) s)

-- name: lag_apart
-- Only reads: deliveries that are not in the due index. Lanes by their index, so that no other row is read; suspects,
-- which are few; gates by their index. A limited number of rows of each.
select count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0), count(*)
  from (select next_run_at, status in ('pending', 'failed') and next_run_at <= :now and expires_at > :now as due
          from todoku_delivery indexed by todoku_delivery_lane
         where lane is not null and status <> 'aborted' order by lane, id limit :most)
union all
select count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0), count(*)
  from (select next_run_at, next_run_at <= :now and expires_at > :now as due
          from todoku_delivery indexed by todoku_delivery_suspect
         where status in ('pending', 'failed') and lane is null and lost > 0
         order by queue, destination, next_run_at, id limit :most)
union all
select count(*) filter (where due), coalesce((:now - min(next_run_at) filter (where due)) / 1e6, 0), count(*)
  from (select next_run_at, lost = 0 and next_run_at <= :now and expires_at > :now as due
          from todoku_delivery indexed by todoku_delivery_gate
         where status in ('pending', 'failed') and gate is not null
         order by gate, priority, next_run_at, id limit :most)

-- name: lag_held
-- Only reads: deliveries in flight by their small index, and a limited number of dead letters by theirs.
select count(*),
       count(*) filter (where d.claimed_at < :now - :stuck_after * 1e6
                           or not exists (select 1 from todoku_worker w
                                           where w.id = d.worker_id and w.expires_at > :now)),
       (select count(*) from (select 1 from todoku_delivery indexed by todoku_delivery_dead
                               where status = 'aborted' order by id limit :most))
  from todoku_delivery d indexed by todoku_delivery_owner where d.status = 'sending'

-- name: lag_sample
-- Only reads: as count_sample, of due deliveries and of dead letters.
select sum(json_extract(s.value, '$.weight')) filter (where d.status in ('pending', 'failed')
                                                        and d.next_run_at <= :now and d.expires_at > :now),
       sum(json_extract(s.value, '$.weight')) filter (where d.status = 'aborted')
  from json_each(:windows) s cross join todoku_delivery d
    on d.id >= json_extract(s.value, '$.start')
   and d.id < json_extract(s.value, '$.start') + json_extract(s.value, '$.width')

-- name: count_history
-- Only reads: exact for small numbers; otherwise the distance of the first and the last row, because rows are appended
-- and pruned in order (except those an operator cleared).
select case when few <= 100000 then few
            else (select max(rowid) from todoku_history) - (select min(rowid) from todoku_history) + 1 end
  from (select count(*) as few from (select 1 from todoku_history limit 100001))

-- name: dead_groups
-- Only reads, once, the index by cause alone, whose order the groups have: a subquery with a limit would be sorted
-- again, and take three times as long. The newest of each group is its example.
select coalesce(g.reason, ''), g.destination, g.number, g.since / 1e6, g.until / 1e6, g.newest,
       (select error from todoku_delivery where id = g.newest), g.fingerprint
  from (select reason, destination, null as fingerprint,
               count(*) as number, min(updated_at) as since, max(updated_at) as until, max(id) as newest
          from todoku_delivery indexed by todoku_delivery_cause where status = 'aborted'
         group by reason, destination
         order by number desc, 1, 2, 3 limit :groups) g
 order by g.number desc, 1, 2, g.fingerprint

-- name: dead_causes
-- As `dead_groups`, and by the fingerprint of the traceback.
select coalesce(g.reason, ''), g.destination, g.number, g.since / 1e6, g.until / 1e6, g.newest,
       (select error from todoku_delivery where id = g.newest), g.fingerprint
  from (select reason, destination, fingerprint as fingerprint,
               count(*) as number, min(updated_at) as since, max(updated_at) as until, max(id) as newest
          from todoku_delivery indexed by todoku_delivery_cause where status = 'aborted'
         group by reason, destination, fingerprint
         order by number desc, 1, 2, 3 limit :groups) g
 order by g.number desc, 1, 2, g.fingerprint

-- name: full_gates
-- Only reads: gates at their limit at which deliveries wait, found by their running deliveries. No more are counted
-- than are returned.
select queue, destination, key, "limit", rate, running, number from (
    select g.queue, g.destination, g.key, g."limit", g.rate, g.running,
           (select count(*) from (select 1 from todoku_delivery w indexed by todoku_delivery_gate
                                   where w.gate = g.id and w.gate is not null and w.status in ('pending', 'failed')
                                   limit :counted)) as number
      from (select distinct gate from todoku_delivery indexed by todoku_delivery_gate_running
             where status = 'sending' and gate is not null) d
      join todoku_gate g on g.id = d.gate and g.running >= g."limit")
 where number > 0
 order by number desc, destination, key limit :most

-- name: count_parked
-- Only reads a limited number of rows, of parked lanes by the index of lanes.
select count(distinct lane), count(*), min(id) from (
    select d.lane, d.id from todoku_lane l cross join todoku_delivery d indexed by todoku_delivery_lane
        on d.lane = l.id and d.lane is not null and d.status <> 'aborted'
     where l.parked limit :most)

-- name: series_size
-- Only reads both ends of the span: rows are appended in order of time, so their distance is about their number.
select coalesce((select rowid from todoku_history where finished_at < :until order by finished_at desc limit 1)
                - (select rowid from todoku_history where finished_at >= :since order by finished_at limit 1) + 1, 0)

-- name: series
-- Only reads the span, from the index.
select finished_at / 1000000 / :width * :width, count(*)
  from todoku_history
 where finished_at >= :since and finished_at < :until
 group by 1

-- name: series_sampled
-- Only reads: one row in :step, each counted :step times.
with recursive
    picked(id, last) as (
        select (select rowid from todoku_history where finished_at >= :since order by finished_at limit 1),
               (select rowid from todoku_history where finished_at < :until order by finished_at desc limit 1)
        union all
        select id + :step, last from picked where id + :step <= last)
select h.finished_at / 1000000 / :width * :width, count(*) * :step
  from picked p join todoku_history h on h.rowid = p.id
 where h.finished_at >= :since and h.finished_at < :until
 group by 1

-- name: series_failed
-- Only reads, by the index, the latest :most of the span.
select ended_at / 1000000 / :width * :width, count(*)
  from (select ended_at from todoku_attempt
         where ended_at >= :since and ended_at < :until order by ended_at desc limit :most)
 group by 1

-- name: count_read
-- Only reads.
select (:now - counted_at) / 1e6, value from todoku_count where name = :name

-- name: count_write
-- The last writer wins: all of them counted the same table.
insert into todoku_count (name, counted_at, value) values (:name, :now, :value)
    on conflict (name) do update set counted_at = excluded.counted_at, value = excluded.value

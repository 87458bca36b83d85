-- Statistics.

-- name: size
-- Only reads about 100 blocks, and a limited number of rows if they do not say that there are many more: enough to know
-- whether counting is cheap. The newest first: while a backlog is drained, the oldest lie behind everything deleted.
select case when about > 2 * :most then :most
            else (select count(*) from (select from todoku_delivery order by id desc limit :most) d) end
  from (select count(*) * {coarse_step} as about
          from todoku_delivery tablesample system (100.0 / (select {coarse_step}))) sample

-- name: coarse_step
-- A fragment: one block in so many, of a large table about 100.
greatest(1.0, pg_relation_size('todoku_delivery') / 8192.0 / 100)

-- name: id_range
-- Reads nothing: samples are of blocks here, and while a backlog is drained the first id lies behind everything deleted.
select null::bigint, null::bigint

-- name: is_of_hook
-- A fragment: whether a delivery is a hook's, by its message. Only messages to a hook's destination are looked up.
(d.destination in (select name from todoku_hook)
       and (select m.topic from todoku_message m where m.seq = d.message_seq)
           in ('todoku.succeeded', 'todoku.aborted'))

-- name: has_hooks
-- Only reads.
select exists (select from todoku_hook)

-- name: count_hook_history
-- Only reads a limited number of rows, the newest by the index of messages.
select count(*), count(*) filter (where {is_of_hook})
  from (select destination, message_seq from todoku_history order by message_seq desc limit 100001) d

-- name: count_deliveries
-- Only reads. The limit is above the number of rows, and lets the planner use the primary key.
select status, destination, coalesce(reason, ''), count(*), {is_of_hook}
  from (select status, destination, reason, message_seq from todoku_delivery order by id limit :most) d
 group by 1, 2, 3, 5

-- name: count_dead
-- Only reads a limited number of rows, by the index of dead letters.
select destination, coalesce(reason, ''), count(*), {is_of_hook}
  from (select destination, reason, message_seq from todoku_delivery
         where status = 'aborted' order by id limit :most) d
 group by 1, 2, 4

-- name: edges
-- Not asked: samples are of blocks here.
select null::bigint, null::bigint where false

-- name: block_step
-- A fragment: one block in so many is sampled, of a large table about 500.
greatest(1.0, pg_relation_size('todoku_delivery') / 8192.0 / 500)

-- name: count_sample
-- Only reads: a sample of the blocks; each row counts for as many blocks as were passed over.
select d.status, d.destination, coalesce(d.reason, ''), count(*) * {block_step}, {is_of_hook}
  from todoku_delivery d tablesample system (100.0 / (select {block_step}))
 group by 1, 2, 3, 5

-- name: lag_due
-- Only reads a limited number of rows of each place, from the index alone, oldest first.
select due.number, due.age, due.number
  from json_to_recordset(:places::json) as s(queue text, destination text, priority smallint)
 cross join lateral (
    select count(*) as number, coalesce(date_part('epoch', todoku_now() - min(next_run_at)), 0) as age from (
        select next_run_at from todoku_delivery
         where queue = s.queue and destination = s.destination and priority = s.priority
           and status in ('pending', 'failed') and lane is null and lost = 0 and gate is null
           and next_run_at <= todoku_now() and expires_at > todoku_now()
         order by next_run_at, id limit :most) d) due

-- name: lag_apart
-- Only reads: deliveries that are not in the due index. Lanes by their index, in its order, so that no other row is
-- read; suspects, which are few; gates by their index. A limited number of rows of each.
select count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0), count(*)
  from (select next_run_at, status in ('pending', 'failed') and next_run_at <= todoku_now()
                            and expires_at > todoku_now() as due
          from todoku_delivery where lane is not null and status <> 'aborted' order by lane, id limit :most) d
union all
select count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0), count(*)
  from (select next_run_at, next_run_at <= todoku_now() and expires_at > todoku_now() as due
          from todoku_delivery where status in ('pending', 'failed') and lane is null and lost > 0
         order by queue, destination, next_run_at, id limit :most) d
union all
select count(*) filter (where due),
       coalesce(date_part('epoch', todoku_now() - min(next_run_at) filter (where due)), 0), count(*)
  from (select next_run_at, lost = 0 and next_run_at <= todoku_now() and expires_at > todoku_now() as due
          from todoku_delivery where status in ('pending', 'failed') and gate is not null
         order by gate, priority, next_run_at, id limit :most) d

-- name: lag_held
-- Only reads: deliveries in flight by their small index, and a limited number of dead letters by theirs.
select count(*),
       count(*) filter (where claimed_at < todoku_now() - make_interval(secs => :stuck_after)
                           or not exists (select from todoku_worker w
                                           where w.id = d.worker_id and w.expires_at > todoku_now())),
       (select count(*) from (select from todoku_delivery where status = 'aborted' order by id limit :most) dead)
  from todoku_delivery d where status = 'sending'

-- name: lag_sample
-- Only reads: as count_sample, of due deliveries and of dead letters.
select count(*) filter (where status in ('pending', 'failed') and next_run_at <= todoku_now()
                          and expires_at > todoku_now()) * {block_step},
       count(*) filter (where status = 'aborted') * {block_step}
  from todoku_delivery tablesample system (100.0 / (select {block_step}))

-- name: count_history
-- Only reads: exact for small numbers; otherwise the planner's estimate, scaled to the present number of pages,
-- because counting would read every partition. A partition without statistics is estimated at 100 bytes a row.
select case when few <= 100000 then few else (
           select coalesce(sum(case when c.reltuples > 0 and c.relpages > 0
                                    then c.reltuples / c.relpages * (pg_relation_size(c.oid) / 8192)
                                    else pg_relation_size(c.oid) / 100 end), 0)
             from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = 'todoku_history'::regclass) end::bigint
  from (select count(*) as few from (select from todoku_history limit 100001) h) f

-- name: dead_groups
-- Only reads a limited number of rows, of the index by cause alone. The newest of each group is its example.
select coalesce(g.reason, ''), g.destination, g.number, date_part('epoch', g.since), date_part('epoch', g.until),
       g.newest, d.error, g.fingerprint
  from (select reason, destination, null::text as fingerprint,
               count(*) as number, min(updated_at) as since, max(updated_at) as until, max(id) as newest
          from (select id, reason, destination, fingerprint, updated_at from todoku_delivery
                 where status = 'aborted' order by reason, destination, fingerprint, updated_at limit :most) dead
         group by reason, destination
         order by number desc, 1, 2, 3 limit :groups) g
 cross join lateral (select error from todoku_delivery where id = g.newest limit 1) d
 order by g.number desc, 1, 2, g.fingerprint

-- name: dead_causes
-- As `dead_groups`, and by the fingerprint of the traceback.
select coalesce(g.reason, ''), g.destination, g.number, date_part('epoch', g.since), date_part('epoch', g.until),
       g.newest, d.error, g.fingerprint
  from (select reason, destination, fingerprint as fingerprint,
               count(*) as number, min(updated_at) as since, max(updated_at) as until, max(id) as newest
          from (select id, reason, destination, fingerprint, updated_at from todoku_delivery
                 where status = 'aborted' order by reason, destination, fingerprint, updated_at limit :most) dead
         group by reason, destination, fingerprint
         order by number desc, 1, 2, 3 limit :groups) g
 cross join lateral (select error from todoku_delivery where id = g.newest limit 1) d
 order by g.number desc, 1, 2, g.fingerprint

-- name: full_gates
-- Only reads: gates at their limit at which deliveries wait, found by their running deliveries. No more are counted
-- than are returned.
select g.queue, g.destination, g.key, g."limit", g.rate, g.running, w.number
  from (select distinct gate from todoku_delivery where status = 'sending' and gate is not null) d
 cross join lateral (select * from todoku_gate where id = d.gate and running >= "limit" limit 1) g
 cross join lateral (
    select count(*) as number from (
        select from todoku_delivery where gate = g.id and status in ('pending', 'failed') limit :counted) d) w
 where w.number > 0
 order by w.number desc, g.destination, g.key limit :most

-- name: count_parked
-- Only reads a limited number of rows: parked lanes by their index, the deliveries of each by the index of lanes.
select count(distinct lane), count(*), min(id) from (
    select d.lane, d.id from (select id from todoku_lane where parked order by queue limit :most) l
     cross join lateral (select lane, id from todoku_delivery
                          where lane = l.id and status <> 'aborted' order by id limit :most) d
     limit :most) parked

-- name: series_size
-- Only reads: the approximate number of rows of a span, by the planner's statistics of its days; nothing is counted.
select (coalesce(sum(case when c.reltuples > 0 and c.relpages > 0
                          then c.reltuples / c.relpages * (pg_relation_size(c.oid) / 8192)
                          else pg_relation_size(c.oid) / 100 end), 0)
        * least(1.0, date_part('epoch', :until::timestamptz - :since::timestamptz)
                     / (86400.0 * greatest(1, count(*) - 1))))::bigint
  from pg_inherits i join pg_class c on c.oid = i.inhrelid
 where i.inhparent = 'todoku_history'::regclass
   and (right(c.relname, 8) = '_default'
        or right(c.relname, 8) between to_char(:since::timestamptz at time zone 'UTC', 'YYYYMMDD')
                                   and to_char(:until::timestamptz at time zone 'UTC', 'YYYYMMDD'))

-- name: series
-- Only reads the blocks of the span, by an index of a few pages.
select floor(date_part('epoch', finished_at) / :width)::bigint * :width, count(*)
  from todoku_history
 where finished_at >= :since::timestamptz and finished_at < :until::timestamptz
 group by 1

-- name: series_sampled
-- Only reads: one block in :step, each of its rows counted :step times; always the same blocks.
select floor(date_part('epoch', finished_at) / :width)::bigint * :width, count(*) * :step
  from todoku_history tablesample system (100.0 / :step) repeatable (0)
 where finished_at >= :since::timestamptz and finished_at < :until::timestamptz
 group by 1

-- name: series_failed
-- Only reads, by the index, the latest :most of the span.
select floor(date_part('epoch', ended_at) / :width)::bigint * :width, count(*)
  from (select ended_at from todoku_attempt
         where ended_at >= :since::timestamptz and ended_at < :until::timestamptz
         order by ended_at desc limit :most) a
 group by 1

-- name: count_read
-- Only reads.
select date_part('epoch', todoku_now() - counted_at), value::text from todoku_count where name = :name

-- name: count_write
-- The last writer wins: all of them counted the same table.
insert into todoku_count (name, counted_at, value) values (:name, todoku_now(), :value)
    on conflict (name) do update set counted_at = excluded.counted_at, value = excluded.value

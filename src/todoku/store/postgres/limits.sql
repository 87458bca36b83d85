-- Limits and breakers of queues and destinations.

-- name: rooms
-- Only reads: how many more the limits in force let start, by their rate and at once. What is in flight is counted in
-- its small index, no further than the limit.
select 'queue', name, {allowed}, most - (select count(*) from (
           select from todoku_delivery d where d.status = 'sending' and d.queue = l.name limit l.most) f)
  from (select name, "limit" as most, rate, tat from todoku_queue
         where name = any (:queues::text[]) and {counts}) l
union all
select 'destination', name, {allowed}, most - (select count(*) from (
           select from todoku_delivery d where d.status = 'sending' and d.destination = l.name limit l.most) f)
  from (select name, "limit" as most, rate, tat from todoku_destination
         where name = any (:destinations::text[]) and {counts}) l

-- name: allowed
-- A fragment: how many a rate lets start now. What was not used is kept for a moment, so that a poll that comes late
-- loses nothing.
case when rate is null then null when tat > todoku_now() then 0
     else 1 + floor(least(date_part('epoch', todoku_now() - {credit}) * rate, 1e6))::int end

-- name: credit
-- A fragment: from when on starts that were not used are kept.
greatest(tat, todoku_now() - interval '100 milliseconds')

-- name: lock_limits
-- A statement of its own: the next one counts what others committed before it had these locks, and until the commit
-- nobody else counts. Queues before destinations, each sorted: no deadlock (H11).
with q as materialized (
    select name from todoku_queue where name = any (:queues::text[]) order by name for update
), d as materialized (
    select name from todoku_destination where name = any (:destinations::text[]) order by name for update
)
select (select count(*) from q), (select count(*) from d)

-- name: spend_rates
-- The rows are locked by this transaction, which has claimed so many of each.
with q as (
    update todoku_queue l set tat = {credit} + make_interval(secs => s.number::float8 / l.rate)
      from json_each_text(:queues::json) as s(name, number) where l.name = s.name and l.rate is not null
)
update todoku_destination l set tat = {credit} + make_interval(secs => s.number::float8 / l.rate)
  from json_each_text(:destinations::json) as s(name, number) where l.name = s.name and l.rate is not null

-- name: limit_queue
-- One row; running workers read it every second or so (`limits`). A new rate begins anew.
insert into todoku_queue (name, "limit", rate, limit_until, updated_at)
values (:name, :concurrency, :rate, todoku_now() + make_interval(secs => :lasts), todoku_now())
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null,
           updated_at = excluded.updated_at

-- name: limit_destination
-- As limit_queue. A destination nobody has announced yet is not announced by this: it was never seen.
insert into todoku_destination (name, "limit", rate, limit_until, seen_at)
values (:name, :concurrency, :rate, todoku_now() + make_interval(secs => :lasts), '-infinity')
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null

-- name: set_breaker
-- One row, seen by the claims of all workers (H24).
insert into todoku_destination (name, open_until, failures, seen_at)
values (:name, todoku_now() + make_interval(secs => :open_for), :failures, todoku_now())
    on conflict (name) do update set open_until = excluded.open_until, failures = excluded.failures

-- name: limits
-- Only reads: one row per queue and destination that says something, and per live lease. A few rows, in one statement,
-- because every worker asks every second. A limit whose time is over says nothing. Each part repeats the condition of a
-- partial index (todoku_queue_held, todoku_destination_held), so that the others are not walked.
select 'queue', name, paused, case when {counts} then "limit" end, case when {counts} then rate end, 0::float8, 0
  from todoku_queue
 where paused or {counts}
union all
select 'destination', name, false, case when {counts} then "limit" end, case when {counts} then rate end,
       case when open_until > todoku_now() then date_part('epoch', open_until) else 0 end, failures
  from todoku_destination
 where (open_until > '-infinity' and open_until > todoku_now()) or failures > 0 or {counts}
union all
select 'worker', id::text, false, null, null, 0, 0 from todoku_worker where expires_at > todoku_now()
 order by 1, 2

-- name: counts
-- A fragment: whether the limit of a row is in force. Each part names one column of the partial indexes of `limits`.
(("limit" is not null and (limit_until is null or limit_until > todoku_now()))
        or (rate is not null and (limit_until is null or limit_until > todoku_now())))

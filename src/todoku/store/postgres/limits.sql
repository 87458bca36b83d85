-- Limits and breakers of queues and destinations.

-- name: rooms
-- Only reads: how many more deliveries the limits in force allow, by rate and at once. Deliveries in flight are
-- counted in their small index, no further than the limit.
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
-- A fragment: how many starts a rate allows now. Unused starts are retained for a moment, so that a late poll loses
-- none.
case when rate is null then null when tat > todoku_now() then 0
     else 1 + floor(least(date_part('epoch', todoku_now() - {credit}) * rate, 1e6))::int end

-- name: credit
-- A fragment: the time from which unused starts are retained.
greatest(tat, todoku_now() - interval '100 milliseconds')

-- name: lock_limits
-- A separate statement: the next one counts what others committed before this one got the locks, and no other
-- transaction counts until the commit. Queues before destinations, each sorted: no deadlock (H11).
with q as materialized (
    select name from todoku_queue where name = any (:queues::text[]) order by name for update
), d as materialized (
    select name from todoku_destination where name = any (:destinations::text[]) order by name for update
)
select (select count(*) from q), (select count(*) from d)

-- name: spend_rates
-- The rows are locked by this transaction. Counts the deliveries it has claimed of each.
with q as (
    update todoku_queue l set tat = {credit} + make_interval(secs => s.number::float8 / l.rate)
      from json_each_text(:queues::json) as s(name, number) where l.name = s.name and l.rate is not null
)
update todoku_destination l set tat = {credit} + make_interval(secs => s.number::float8 / l.rate)
  from json_each_text(:destinations::json) as s(name, number) where l.name = s.name and l.rate is not null

-- name: limit_queue
-- One row; running workers read it about every second (`limits`). A new rate starts without credit or debt.
insert into todoku_queue (name, "limit", rate, limit_until, updated_at)
values (:name, :concurrency, :rate, todoku_now() + make_interval(secs => :lasts), todoku_now())
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null,
           updated_at = excluded.updated_at

-- name: limit_destination
-- As limit_queue. This does not announce the destination: in a new row `seen_at` is "never".
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
-- Only reads: one row for each queue and destination with a setting, and for each live lease, with what operators ask of
-- its worker: to drain in the place of a pause, and the number of the request for stacks in that of failures. A few
-- rows, in one statement, because every worker reads them every second. An expired limit is not returned. Each part repeats the
-- condition of a partial index (todoku_queue_held, todoku_destination_held), so that other rows are not read.
select 'queue', name, paused, case when {counts} then "limit" end, case when {counts} then rate end, 0::float8, 0
  from todoku_queue
 where paused or {counts}
union all
select 'destination', name, false, case when {counts} then "limit" end, case when {counts} then rate end,
       case when open_until > todoku_now() then date_part('epoch', open_until) else 0 end, failures
  from todoku_destination
 where (open_until > '-infinity' and open_until > todoku_now()) or failures > 0 or {counts}
union all
select 'worker', id::text, drain_requested, null, null, 0, stack_request from todoku_worker where expires_at > todoku_now()
 order by 1, 2

-- name: counts
-- A fragment: whether the limit of a row is in force. Each part names one column of the partial indexes of `limits`.
(("limit" is not null and (limit_until is null or limit_until > todoku_now()))
        or (rate is not null and (limit_until is null or limit_until > todoku_now())))

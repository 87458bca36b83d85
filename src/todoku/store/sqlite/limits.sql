-- Limits and breakers of queues and destinations.

-- name: rooms
-- Only reads: how many more deliveries the limits in force allow, by rate and at once. Deliveries in flight are
-- counted in their small index.
select 'queue', name, {allowed}, "limit" - (
           select count(*) from todoku_delivery d indexed by todoku_delivery_owner
            where d.status = 'sending' and d.queue = todoku_queue.name)
  from todoku_queue where name in (select value from json_each(:queues)) and {counts}
union all
select 'destination', name, {allowed}, "limit" - (
           select count(*) from todoku_delivery d indexed by todoku_delivery_owner
            where d.status = 'sending' and d.destination = todoku_destination.name)
  from todoku_destination where name in (select value from json_each(:destinations)) and {counts}

-- name: allowed
-- A fragment: how many starts a rate allows now. Unused starts are retained for a moment, so that a late poll loses
-- none.
case when rate is null then null when tat > :now then 0
     else 1 + cast(min((:now - {credit}) / 1e6 * rate, 1e6) as integer) end

-- name: credit
-- A fragment: the time from which unused starts are retained.
max(coalesce(tat, 0), :now - 100000)

-- name: lock_limits
-- No lock to take: there is one writer.
select 0

-- name: spend_rates
-- Counts the deliveries this transaction has claimed of each; no other connection writes meanwhile.
update todoku_queue as l set tat = {credit} + cast(s.value * 1000000 / l.rate as integer)
  from json_each(:queues) s where l.name = s.key and l.rate is not null;
update todoku_destination as l set tat = {credit} + cast(s.value * 1000000 / l.rate as integer)
  from json_each(:destinations) s where l.name = s.key and l.rate is not null

-- name: limit_queue
-- One row; running workers read it about every second (`limits`). A new rate starts without credit or debt.
insert into todoku_queue (name, "limit", rate, limit_until, updated_at)
values (:name, :concurrency, :rate, :now + cast(:lasts * 1000000 as integer), :now)
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null,
           updated_at = excluded.updated_at

-- name: limit_destination
-- As limit_queue. This does not announce the destination: in a new row `seen_at` is "never".
insert into todoku_destination (name, "limit", rate, limit_until, seen_at)
values (:name, :concurrency, :rate, :now + cast(:lasts * 1000000 as integer), 0)
    on conflict (name) do update
       set "limit" = excluded."limit", rate = excluded.rate, limit_until = excluded.limit_until, tat = null

-- name: set_breaker
-- One row, seen by the claims of all workers (H24).
insert into todoku_destination (name, open_until, failures, seen_at)
values (:name, :now + cast(:open_for * 1000000 as integer), :failures, :now)
    on conflict (name) do update set open_until = excluded.open_until, failures = excluded.failures

-- name: limits
-- Only reads: one row for each queue and destination with a setting, and for each live lease, with what operators ask of
-- its worker: to drain in the place of a pause, and the number of the request for stacks in that of failures. A few
-- rows, in one statement, because every worker reads them every second. An expired limit is not returned.
select 'queue', name, paused, case when {counts} then "limit" end, case when {counts} then rate end, 0.0, 0
  from todoku_queue
 where paused or {counts}
union all
select 'destination', name, 0, case when {counts} then "limit" end, case when {counts} then rate end,
       case when open_until > :now then open_until / 1e6 else 0.0 end, failures
  from todoku_destination
 where open_until > :now or failures > 0 or {counts}
union all
select 'worker', id, drain_requested, null, null, 0.0, stack_request from todoku_worker where expires_at > :now
 order by 1, 2

-- name: counts
-- A fragment: whether the limit of a row is in force.
(("limit" is not null or rate is not null) and (limit_until is null or limit_until > :now))

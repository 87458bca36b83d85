-- Gates: the limits of one key.

-- name: waiting_gates
-- Only reads; as `waiting`, over gates that are not full and over calls that no claim has processed yet. Returns the
-- seconds until the first gate of each place is due.
with recursive groups as (
    (select queue, destination, ready_at from todoku_gate where {able}
      order by queue, destination, ready_at limit 1)
    union all
    select later.* from groups g cross join lateral (
        select queue, destination, ready_at from todoku_gate l
         where {able} and (l.queue, l.destination) > (g.queue, g.destination)
         order by queue, destination, ready_at limit 1) later
), called as (
    (select queue, destination from todoku_gate_call order by queue, destination limit 1)
    union all
    select later.* from called g cross join lateral (
        select queue, destination from todoku_gate_call l
         where (l.queue, l.destination) > (g.queue, g.destination)
         order by queue, destination limit 1) later
)
select queue, destination, date_part('epoch', ready_at - todoku_now()) as seconds from groups
 where {served}
union all
select queue, destination, 0 from called
 where {served}

-- name: claim_suspect
-- As claim, for one row whose owner died: alone, so that if it kills this worker, too, no other delivery is lost with
-- it (H6).
with due as materialized (
    select d.id from json_to_recordset(:places::json) as s(queue text, destination text)
      cross join lateral (
        select id from todoku_delivery
         where queue = s.queue and destination = s.destination
           and status in ('pending', 'failed') and lane is null and lost > 0
           and (gate is null or gate = any (:gates::bigint[]))
           and next_run_at <= todoku_now() and expires_at > todoku_now()
         order by next_run_at, id limit 1 for update skip locked) d
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     limit 1
), {me}, {taken}
select {claimed}

-- name: heed_calls
-- A call is committed with its delivery: a statement that reads the gate after this sees the delivery. Calls locked by
-- another claim are skipped. Unordered: all of them are processed, and an order would make the planner read those of
-- other places.
with call as materialized (
    select c.id from json_to_recordset(:places::json) as s(queue text, destination text)
     cross join lateral (
        select id from todoku_gate_call where queue = s.queue and destination = s.destination
         limit :most for update skip locked) c
), heeded as (
    delete from todoku_gate_call where id = any (array(select id from call)) returning *
)
select distinct on (gate) gate, queue, destination, key from heeded order by gate, id desc

-- name: open_gates
-- Locks existing gates in order (H11) and creates missing ones; gates with waiting deliveries become due.
insert into todoku_gate (id, queue, destination, key, ready_at)
select gate, queue, destination, key, todoku_now()
  from json_to_recordset(:gates::json) as s(gate bigint, queue text, destination text, key text)
 order by gate
    on conflict (id) do update set queue = excluded.queue

-- name: lock_gates
-- A separate statement: the next one sees what others did to these gates before this one got the locks. Sorted (H11).
select id, ("limit" is null or running < "limit") and (rate is null or tat is null or tat <= todoku_now())
  from todoku_gate where id = any (:gates::bigint[]) order by id for update

-- name: priorities
-- A fragment: one index probe for each priority, so that due rows are found behind any number of rows that are not
-- due.
unnest(array[15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]::smallint[]) as p(priority)

-- name: able
-- A fragment: the gate is not full, and deliveries wait at it.
("limit" is null or running < "limit") and ready_at < 'infinity'

-- name: take_gates
-- SKIP LOCKED between workers; full gates and those where nothing waits are not in the index. The claiming worker's
-- limit applies: a change is effective from the first claim. A taken gate goes to the end of the queue.
with due as materialized (
    select g.id, g.running, g.tat, s.concurrency, s.rate
      from json_to_recordset(:places::json)
           as s(queue text, destination text, concurrency int, rate float8)
     cross join lateral (
        select id, running, tat from todoku_gate
         where queue = s.queue and destination = s.destination and {able} and ready_at <= todoku_now()
         order by ready_at, id limit :gates for update skip locked) g
     where not exists (select from todoku_queue q where q.name = s.queue and q.paused)
       and not exists (select from todoku_destination b
                        where b.name = s.destination and b.open_until > todoku_now())
     limit :gates
), taken as (
    update todoku_gate g set "limit" = due.concurrency, rate = due.rate, ready_at = todoku_now()
      from due where g.id = any (array(select id from due)) and g.id = due.id
)
select id, rate, least(coalesce(concurrency - running, 1000000), coalesce({allowed}, 1000000)) from due

-- name: claim_gate_rows
-- The gates are locked and counted by this transaction: takes of each as many as its limit allows, larger priorities
-- first.
with due as materialized (
    select d.id from json_each_text(:mosts::json) as s(gate, most)
     cross join lateral (
        select r.id from {priorities}
         cross join lateral (
            select id from todoku_delivery
             where gate = s.gate::bigint and priority = p.priority and status in ('pending', 'failed') and lost = 0
               and next_run_at <= todoku_now() and expires_at > todoku_now()
             order by next_run_at, id limit s.most::int for update skip locked) r
         limit s.most::int) d
), {me}, {taken}
select {claimed}

-- name: suspect_gates
-- Only reads: the gates of due rows whose owner died, of which there are few.
select distinct d.gate from json_to_recordset(:places::json) as s(queue text, destination text)
 cross join lateral (
    select gate from todoku_delivery
     where queue = s.queue and destination = s.destination
       and status in ('pending', 'failed') and lane is null and lost > 0 and gate is not null
       and next_run_at <= todoku_now() and expires_at > todoku_now()
     order by next_run_at, id limit 100) d

-- name: spend_gates
-- The gates are locked by this transaction. `:spent`: the number of deliveries it has claimed of each.
update todoku_gate g set tat = {credit} + make_interval(secs => s.number::float8 / g.rate)
  from json_each_text(:spent::json) as s(gate, number)
 where g.id = any (array(select gate::bigint from json_object_keys(:spent::json) as k(gate)))
   and g.id = s.gate::bigint and g.rate is not null

-- name: refresh_gates
-- Under the locks of the gates. Running deliveries are counted anew, so that an error does not persist. A gate with
-- due deliveries keeps its place in the queue; a rate delays it, and an empty gate stays until its rate allows a
-- start.
update todoku_gate g
   set running = n.running,
       ready_at = greatest(
           case when n.next_run_at <= todoku_now() then least(g.ready_at, todoku_now())
                when n.next_run_at is not null then n.next_run_at
                when n.running = 0 and g.tat > todoku_now() - interval '100 milliseconds'
                then g.tat + interval '100 milliseconds'
                else 'infinity' end,
           case when g.rate is not null then g.tat end)
  from unnest(:gates::bigint[]) as s(gate)
 cross join lateral (
    select (select count(*) from todoku_delivery d where d.gate = s.gate and d.status = 'sending') as running,
           (select min(d.next_run_at) from {priorities}
             cross join lateral (
                select next_run_at from todoku_delivery
                 where gate = s.gate and priority = p.priority and status in ('pending', 'failed') and lost = 0
                   and expires_at > todoku_now()
                 order by next_run_at, id limit 1) d) as next_run_at) n
 where g.id = any (:gates::bigint[]) and g.id = s.gate
returning g.id, g.running = 0 and g.ready_at = 'infinity'

-- name: drop_gates
-- Under the locks of the gates. No running or waiting delivery is visible to this statement; one that commits later
-- has a call, and the call creates the gate again.
delete from todoku_gate g
 where g.id = any (:gates::bigint[]) and g.running = 0 and g.ready_at = 'infinity'
   and not exists (select from todoku_delivery d
                    where d.gate = g.id and d.status in ('pending', 'failed') offset 0)

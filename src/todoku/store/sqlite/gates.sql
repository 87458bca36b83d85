-- Gates: the limits of one key.

-- name: waiting_gates
-- Only reads; as `waiting`, over gates that are not full and over calls that no claim has processed yet. Returns the
-- seconds until the first gate of each place is due.
with recursive groups(queue, destination, ready_at) as (
    select * from (select queue, destination, ready_at from todoku_gate indexed by todoku_gate_due
      where {able} order by queue, destination, ready_at limit 1)
    union all
    select l.queue, l.destination, l.ready_at from groups g join todoku_gate l
        on l.id = (select id from todoku_gate n indexed by todoku_gate_due
                    where {able}
                      and (n.queue, n.destination, n.ready_at) > (+g.queue, +g.destination, 9223372036854775807)
                    order by n.queue, n.destination, n.ready_at limit 1)
), called(queue, destination) as (
    select * from (select queue, destination from todoku_gate_call indexed by todoku_gate_call_place
      order by queue, destination limit 1)
    union all
    select l.queue, l.destination from called g join todoku_gate_call l
        on l.id = (select id from todoku_gate_call n indexed by todoku_gate_call_place
                    where (n.queue, n.destination, n.id) > (+g.queue, +g.destination, 9223372036854775807)
                    order by n.queue, n.destination limit 1)
)
select queue, destination, (ready_at - :now) / 1e6 as seconds from groups
 where {served}
union all
select queue, destination, 0.0 from called
 where {served}

-- name: suspect
-- A fragment: one due row whose owner died.
select d.id from json_each(:places) p cross join todoku_delivery d indexed by todoku_delivery_suspect
 where d.queue = json_extract(p.value, '$.queue') and d.destination = json_extract(p.value, '$.destination')
   and d.status in ('pending', 'failed') and d.lane is null and d.lost > 0
   and (d.gate is null or d.gate in (select value from json_each(:gates)))
   and d.next_run_at <= :now and d.expires_at > :now and {live}
   and {open}
 limit 1

-- name: claim_suspect
-- As claim, for one row: alone, so that if it kills this worker, too, no other delivery is lost with it (H6).
{claimed} from todoku_delivery t {claimed_from} where t.id in ({suspect});
{take} where id in ({suspect})

-- name: heeded
-- A fragment: the next calls of these places.
select c.id from json_each(:places) p cross join todoku_gate_call c indexed by todoku_gate_call_place
 where c.queue = json_extract(p.value, '$.queue') and c.destination = json_extract(p.value, '$.destination')
 limit :most

-- name: heed_calls
-- A call is committed with its delivery: a transaction that reads the gate after this sees the delivery.
select gate, queue, destination, key from todoku_gate_call
 where id in (select max(id) from todoku_gate_call where id in ({heeded}) group by gate) order by gate;
delete from todoku_gate_call where id in ({heeded})

-- name: open_gates
-- Creates missing gates; gates with waiting deliveries become due.
insert into todoku_gate (id, queue, destination, key, ready_at)
select json_extract(value, '$.gate'), json_extract(value, '$.queue'), json_extract(value, '$.destination'),
       json_extract(value, '$.key'), :now
  from json_each(:gates) where true
    on conflict (id) do update set queue = excluded.queue

-- name: lock_gates
-- No lock to take: there is one writer.
select id, ("limit" is null or running < "limit") and (rate is null or tat is null or tat <= :now)
  from todoku_gate where id in (select value from json_each(:gates)) order by id

-- name: priorities
-- A fragment: one index probe for each priority, so that due rows are found behind any number of rows that are not
-- due.
json_each('[15,14,13,12,11,10,9,8,7,6,5,4,3,2,1,0]')

-- name: able
-- A fragment: the gate is not full, and deliveries wait at it.
("limit" is null or running < "limit") and ready_at < 9223372036854775807

-- name: due_gates
-- A fragment: gates of these places that may let a delivery start.
select g.id, g.running, g.tat, json_extract(p.value, '$.concurrency') as concurrency,
       json_extract(p.value, '$.rate') as rate
  from json_each(:places) p cross join todoku_gate g indexed by todoku_gate_due
 where g.queue = json_extract(p.value, '$.queue') and g.destination = json_extract(p.value, '$.destination')
   and (g."limit" is null or g.running < g."limit") and g.ready_at < 9223372036854775807
   and g.ready_at <= :now and {live} and {open}
 limit :gates

-- name: take_gates
-- As PostgreSQL: full gates and those where nothing waits are not in the index; the claiming worker's limit applies. A
-- taken gate goes to the end of the queue.
select id, rate, min(coalesce(concurrency - running, 1000000), coalesce({allowed}, 1000000)) from ({due_gates});
update todoku_gate as g set "limit" = d.concurrency, rate = d.rate, ready_at = :now
  from ({due_gates}) d where g.id = d.id

-- name: gate_rows
-- A fragment: of each gate as many due rows as its limit allows, larger priorities first.
select id from (
    select d.id, s.value as most,
           row_number() over (partition by s.key order by d.priority desc, d.next_run_at, d.id) as place
      from json_each(:mosts) s cross join {priorities} p cross join todoku_delivery d
        on d.id in (select n.id from todoku_delivery n indexed by todoku_delivery_gate
                     where n.gate = cast(s.key as integer) and n.gate is not null and n.priority = p.value
                       and n.status in ('pending', 'failed') and n.lost = 0
                       and n.next_run_at <= :now and n.expires_at > :now
                     order by n.next_run_at, n.id limit :most))
 where place <= most and {live}

-- name: claim_gate_rows
-- The gates were counted in this transaction. Reads and takes the same rows.
{claimed} from todoku_delivery t {claimed_from} where t.id in ({gate_rows})
 order by t.priority desc, t.next_run_at, t.id;
{take} where id in ({gate_rows})

-- name: suspect_gates
-- Only reads: the gates of due rows whose owner died, of which there are few.
select distinct d.gate from json_each(:places) p cross join todoku_delivery d indexed by todoku_delivery_suspect
 where d.queue = json_extract(p.value, '$.queue') and d.destination = json_extract(p.value, '$.destination')
   and d.status in ('pending', 'failed') and d.lane is null and d.lost > 0 and d.gate is not null
   and d.next_run_at <= :now and d.expires_at > :now
 limit 100

-- name: spend_gates
-- `:spent`: the number of deliveries this transaction has claimed of each gate.
update todoku_gate as g set tat = {credit} + cast(s.value * 1000000 / g.rate as integer)
  from json_each(:spent) s where g.id = cast(s.key as integer) and g.rate is not null

-- name: refresh_gates
-- As PostgreSQL: running deliveries are counted; a gate with due deliveries keeps its place in the queue; a rate
-- delays it.
update todoku_gate as g set running = (
    select count(*) from todoku_delivery d indexed by todoku_delivery_gate_running
     where d.gate = g.id and d.gate is not null and d.status = 'sending')
 where g.id in (select value from json_each(:gates));
update todoku_gate as g
   set ready_at = max(
           case when n.next_run_at <= :now then min(g.ready_at, :now)
                when n.next_run_at is not null then n.next_run_at
                when g.running = 0 and g.tat > :now - 100000 then g.tat + 100000
                else 9223372036854775807 end,
           case when g.rate is not null then coalesce(g.tat, 0) else 0 end)
  from (select s.value as gate, (
            select min((select d.next_run_at from todoku_delivery d indexed by todoku_delivery_gate
                         where d.gate = s.value and d.gate is not null and d.priority = p.value
                           and d.status in ('pending', 'failed') and d.lost = 0 and d.expires_at > :now
                         order by d.next_run_at, d.id limit 1))
              from {priorities} p) as next_run_at
          from json_each(:gates) s) n
 where g.id = n.gate;
select id, running = 0 and ready_at = 9223372036854775807 from todoku_gate where id in (select value from json_each(:gates))

-- name: drop_gates
-- Nothing runs and nothing waits; a later publish adds a call, and the call creates the gate again.
delete from todoku_gate
 where id in (select value from json_each(:gates)) and running = 0 and ready_at = 9223372036854775807
   and not exists (select 1 from todoku_delivery d indexed by todoku_delivery_gate
                    where d.gate = todoku_gate.id and d.gate is not null and d.status in ('pending', 'failed'))

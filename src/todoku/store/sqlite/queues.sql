-- Queues and flow control keys.

-- name: set_queue
-- One row; claim reads it in its own statement, so a pause holds from the commit on.
insert into todoku_queue (name, paused, updated_at) values (:name, :paused, :now)
    on conflict (name) do update set paused = excluded.paused, updated_at = excluded.updated_at

-- name: queue_columns
-- A fragment: a queue with what is in force, and the time it is.
name, paused, case when {counts} then "limit" end, case when {counts} then rate end, spec, created_at / 1e6,
       updated_at / 1e6, tat / 1e6, :now / 1e6

-- name: http_queue
-- Only reads, by the primary key.
select {queue_columns}
  from todoku_queue where name = :name

-- name: http_queues
-- Only reads; the names of a kind lie side by side in the primary key.
select {queue_columns}
  from todoku_queue
 where name >= :kind and name < substr(:kind, 1, 4) || ';' and created_at is not null
   and (:search is null or instr(substr(name, 6), :search) > 0)
 order by name limit :most

-- name: lock_queue
-- There is one writer: nobody changes it before this transaction ends.
select {queue_columns}
  from todoku_queue where name = :name

-- name: make_queue
-- One row, if it is not there; what it says is written by put_queue in this transaction.
insert into todoku_queue (name, updated_at) values (:name, :now) on conflict (name) do nothing

-- name: put_queue
-- One row, seen in this transaction. A rate that is another one now begins anew.
update todoku_queue
   set paused = :paused, "limit" = :concurrency, rate = :rate, spec = :spec, limit_until = null,
       tat = case when rate is :rate then tat end, created_at = coalesce(created_at, :now), updated_at = :now
 where name = :name

-- name: remove_queue
-- One row; deliveries carry the name of their queue, and need no row of it.
delete from todoku_queue where name = :name and created_at is not null returning name

-- name: reset_rate
-- One row; the next claim counts from now.
update todoku_queue set tat = null, updated_at = :now where name = :name and created_at is not null returning name

-- name: queue_loads
-- Only reads: what waits is counted in the indexes that claim reads, up to a number; what runs in its small one.
select json_extract(p.value, '$.name'),
       (select count(*) from (select 1 from todoku_delivery d indexed by todoku_delivery_due
                               where d.queue = json_extract(p.value, '$.name') and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost = 0 and d.gate is null limit :most))
     + (select count(*) from (select 1 from todoku_delivery d indexed by todoku_delivery_suspect
                               where d.queue = json_extract(p.value, '$.name') and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost > 0 limit :most))
     + (select count(*) from (select 1 from todoku_delivery d indexed by todoku_delivery_lane
                               where d.lane = json_extract(p.value, '$.lane') and d.lane is not null
                                 and d.status <> 'aborted' and d.status <> 'sending' limit :most)),
       (select count(*) from todoku_delivery d indexed by todoku_delivery_owner
         where d.status = 'sending' and d.queue = json_extract(p.value, '$.name'))
  from json_each(:places) p

-- name: http_running
-- Only reads: what runs is in a small index, and so are the live leases.
select (select count(*) from todoku_delivery d indexed by todoku_delivery_owner
         where d.status = 'sending' and {is_http}),
       (select count(*) from todoku_worker where expires_at > :now)

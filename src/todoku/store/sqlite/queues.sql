-- Queues and flow control keys.

-- name: set_queue
-- One row; claim reads it in its own statement, so a pause is effective from the commit.
insert into todoku_queue (name, paused, updated_at) values (:name, :paused, :now)
    on conflict (name) do update set paused = excluded.paused, updated_at = excluded.updated_at

-- name: queue_columns
-- A fragment: a queue with the values in force, and the database's clock.
name, paused, case when {counts} then "limit" end, case when {counts} then rate end, spec, created_at / 1e6,
       updated_at / 1e6, tat / 1e6, :now / 1e6

-- name: http_queue
-- Only reads, by the primary key.
select {queue_columns}
  from todoku_queue where name = :name

-- name: http_queues
-- Only reads; the names of a kind are adjacent in the primary key.
select {queue_columns}
  from todoku_queue
 where name >= :kind and name < substr(:kind, 1, 4) || ';' and created_at is not null
   and (:search is null or instr(substr(name, 6), :search) > 0)
 order by name limit :most

-- name: lock_queue
-- There is one writer: the row does not change before this transaction ends.
select {queue_columns}
  from todoku_queue where name = :name

-- name: make_queue
-- One row, if it does not exist; put_queue writes its values in this transaction.
insert into todoku_queue (name, updated_at) values (:name, :now) on conflict (name) do nothing

-- name: put_queue
-- One row, read in this transaction. A changed rate starts without credit or debt.
update todoku_queue
   set paused = :paused, "limit" = :concurrency, rate = :rate, spec = :spec, limit_until = null,
       tat = case when rate is :rate then tat end, created_at = coalesce(created_at, :now), updated_at = :now
 where name = :name

-- name: remove_queue
-- One row; deliveries contain the name of their queue, and need no row of it.
delete from todoku_queue where name = :name and created_at is not null returning name

-- name: reset_rate
-- One row; the next claim counts from now.
update todoku_queue set tat = null, updated_at = :now where name = :name and created_at is not null returning name

-- name: queue_loads
-- Only reads: waiting deliveries are counted in the indexes that claim reads, up to a limit; running ones in their
-- small index.
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
-- Only reads: running deliveries and live leases have small indexes.
select (select count(*) from todoku_delivery d indexed by todoku_delivery_owner
         where d.status = 'sending' and {is_http}),
       (select count(*) from todoku_worker where expires_at > :now)

-- Queues and flow control keys.

-- name: set_queue
-- One row; claim reads it in its own statement, so a pause is effective from the commit.
insert into todoku_queue (name, paused, updated_at) values (:name, :paused, todoku_now())
    on conflict (name) do update set paused = excluded.paused, updated_at = excluded.updated_at

-- name: queue_columns
-- A fragment: a queue with the values in force, and the database's clock.
name, paused, case when {counts} then "limit" end, case when {counts} then rate end, spec::text,
       date_part('epoch', created_at), date_part('epoch', updated_at), date_part('epoch', tat),
       date_part('epoch', todoku_now())

-- name: http_queue
-- Only reads, by the primary key.
select {queue_columns}
  from todoku_queue where name = :name

-- name: http_queues
-- Only reads; the names of a kind are adjacent in the primary key.
select {queue_columns}
  from todoku_queue
 where starts_with(name, :kind) and created_at is not null
   and (:search::text is null or strpos(substr(name, 6), :search) > 0)
 order by name limit :most

-- name: lock_queue
-- Locks the row: it does not change before this transaction ends.
select {queue_columns}
  from todoku_queue where name = :name for update

-- name: make_queue
-- One row, if it does not exist; put_queue writes its values in this transaction.
insert into todoku_queue (name, updated_at) values (:name, todoku_now()) on conflict (name) do nothing

-- name: put_queue
-- One row, locked by this transaction. A changed rate starts without credit or debt.
update todoku_queue
   set paused = :paused, "limit" = :concurrency, rate = :rate, spec = :spec::json, limit_until = null,
       tat = case when rate is not distinct from :rate::float8 then tat end,
       created_at = coalesce(created_at, todoku_now()), updated_at = todoku_now()
 where name = :name

-- name: remove_queue
-- One row; deliveries contain the name of their queue, and need no row of it.
delete from todoku_queue where name = :name and created_at is not null returning name

-- name: reset_rate
-- One row; the next claim counts from now.
update todoku_queue set tat = null, updated_at = todoku_now() where name = :name and created_at is not null
returning name

-- name: queue_loads
-- Only reads: waiting deliveries are counted in the indexes that claim reads, up to a limit; running ones in their
-- small index.
select p.name,
       (select count(*) from (select from todoku_delivery d
                               where d.queue = p.name and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost = 0 and d.gate is null limit :most) w)
     + (select count(*) from (select from todoku_delivery d
                               where d.queue = p.name and d.status in ('pending', 'failed')
                                 and d.lane is null and d.lost > 0 limit :most) w)
     + (select count(*) from (select from todoku_delivery d
                               where d.lane = p.lane and d.lane is not null
                                 and d.status <> 'aborted' and d.status <> 'sending' limit :most) w),
       (select count(*) from todoku_delivery d where d.status = 'sending' and d.queue = p.name)
  from json_to_recordset(:places::json) as p(name text, lane bigint)

-- name: http_running
-- Only reads: running deliveries and live leases have small indexes.
select (select count(*) from todoku_delivery d where d.status = 'sending' and {is_http}),
       (select count(*) from todoku_worker where expires_at > todoku_now())

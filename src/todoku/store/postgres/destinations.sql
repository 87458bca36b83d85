-- Destinations and queues that are known.

-- name: set_on_abort
-- One row; settle reads it when it aborts a lane's head.
insert into todoku_destination (name, on_abort, seen_at) values (:name, :on_abort, todoku_now())
    on conflict (name) do update set on_abort = excluded.on_abort

-- name: announce
-- Records that a worker serves these destinations; sorted, so that two workers cannot deadlock.
insert into todoku_destination (name, seen_at)
select name, todoku_now() from unnest(:destinations::text[]) as s(name) order by name
    on conflict (name) do update set seen_at = excluded.seen_at

-- name: known
-- Only reads: every queue and destination that has a row, and when a worker last announced it.
select 'queue', name, null::float8 from todoku_queue
union all
select 'destination', name, case when seen_at > '-infinity' then date_part('epoch', seen_at) end
  from todoku_destination
 order by 1, 2

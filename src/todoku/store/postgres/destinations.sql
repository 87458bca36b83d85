-- Destinations and queues that are known.

-- name: set_on_abort
-- Settle reads these rows when it aborts a lane's head. Returns the ones that were different before. Sorted, so that two
-- workers cannot deadlock.
insert into todoku_destination as b (name, on_abort, seen_at)
select name, :on_abort, todoku_now() from unnest(:names::text[]) as s(name) order by name
    on conflict (name) do update set on_abort = excluded.on_abort where b.on_abort <> excluded.on_abort
returning name

-- name: blocked_lanes
-- Only reads, once after a change of policy: the lanes of these destinations that wait for a person.
select id from todoku_lane where parked and destination = any (:destinations::text[]) order by id

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
